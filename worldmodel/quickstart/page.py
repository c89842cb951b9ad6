"""The page of `worldmodel quickstart`: the chosen settings with reasons, the results, and their meaning."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldmodel.evaluation.jsonl_store import read_records
from worldmodel.evaluation.rollouts.page import clip_caption
from worldmodel.quickstart.baseline import FILE, quality_blocks
from worldmodel.quickstart.choices import Plan
from worldmodel.report.intervals import estimate_of
from worldmodel.report.page import Figures, Page, Section, Table, Text, Verdict, write_pages
from worldmodel.types import evenly_spread

READ_SO = (
    "Compare the row of true actions with its neighbors. The static frame is the floor: a model that is no "
    "better has learned nothing that counts. The nearest training frame is what memory alone would show. The "
    "autoencoder is the ceiling: no model draws better. "
    "Rows of wrong actions should be worse than the true ones, or the actions do not matter."
)
# columns of the table below
WHERE = {"clip_psnr": "on whole pictures", "moving_psnr": "on moving pixels"}
VIDEOS_SHOW = (
    "From the left: the recording, the model given the actions, and their difference. Of all held-out clips "
    "these are the best, the middle one and the worst, by the error of what moves."
)
SHEET_SHOWS = "One row for each kind of actions: the truth, the true actions, then wrong ones."
NEEDED = "True actions must give the nearer video in nearly all episodes, whatever they are compared with."
NONE = "none differs enough to count"
WRONG = {
    "null": "no actions",
    "hold": "the first action, held",
    "other_episode": "actions of another episode",
    "static frame": "static frame",
}
LEAST_EPISODES = 4  # all must be won before an interval lies above one half
LITTLE_ROOM = 2.0  # dB from the static frame to the ceiling
FEW_STEPS = 200  # with fewer, a model has hardly been trained
NEXT = (
    "rollouts/report.html has curves, videos and intervals. sensitivity/report.html says how each action "
    "dimension is answered. run/config.yaml holds all settings: worldmodel train takes it for a longer run."
)


@dataclass(frozen=True)
class Spent:
    """The amount of work done, and its time."""

    steps: int
    seconds_a_step: float
    training_s: float  # including inspection, encoding and the trial
    evaluation_s: float


def write_quickstart_page(out: Path, name: str, plan: Plan, spent: Spent) -> Path:
    """Write report.md and report.html in `out`, from the results of the other commands."""
    rows = json.loads((out / "rollouts" / "results.json").read_text())
    verdict = json.loads((out / "sensitivity" / "sensitivity.json").read_text())
    file = out / FILE
    baseline = json.loads(file.read_text()) if file.is_file() else None
    lead = (
        f"{spent.steps} steps of {spent.seconds_a_step:.2f} s; {spent.training_s / 60:.1f} minutes to "
        f"the end of training, {spent.evaluation_s / 60:.1f} minutes of evaluation. "
        f"{_counted(rows['episodes'], 'held-out episode')}. {rows.get('trained_on') or ''}"
    )
    chosen = Table(("setting", "chosen", "why"), tuple((c.setting, c.value, c.reason) for c in plan.choices))
    words = in_short(rows["rows"], rows["episodes"], spent.steps, is_followed=verdict["is_followed"])
    sections = (
        Section("In short", (Text(words),)),
        Section("What was chosen", (chosen,)),
        Section(
            "Your data", (Figures(((out / "contact_sheet.png", "evenly chosen episodes"),), is_wide=True),)
        ),
        Section("Videos", (Text(VIDEOS_SHOW), Figures(_videos(out / "rollouts")))),
        Section(
            "True and wrong actions side by side", (Text(SHEET_SHOWS), Figures(_sheets(out / "sensitivity")))
        ),
        Section("Quality", (*quality_blocks(rows["rows"], baseline), Text(READ_SO))),
        Section("Are the actions followed?", judgment(verdict)),
        Section("Next", (Text(NEXT),)),
    )
    return write_pages(Page(f"First model of {name}", lead, sections), out)


def in_short(rows: Mapping[str, Mapping[str, Any]], episodes: int, steps: int, *, is_followed: bool) -> str:
    """A summary of the results in a few plain sentences."""
    above = {key: _mean(rows, "true", key) - _mean(rows, "static", key) for key in WHERE}
    said = [f"{_side(above[key])} the static frame {words}" for key, words in WHERE.items()]
    found = [f"The model is {said[0]} and {said[1]}."]
    ceiling = _mean(rows, "autoencoder", "moving_psnr") - _mean(rows, "static", "moving_psnr")
    if ceiling > LITTLE_ROOM:
        found.append(f"The autoencoder shows what is possible: {ceiling:.1f} dB above that frame there.")
    if is_followed:
        found.append("It follows the actions: wrong ones give worse pictures.")
    elif episodes >= LEAST_EPISODES:
        found.append("It does not follow the actions yet: wrong ones give pictures that are as good.")
    if steps < FEW_STEPS:
        found.append(f"{steps} steps are very few. Hundreds show whether it learns: raise --minutes.")
    room = _mean(rows, "autoencoder", "clip_psnr") - _mean(rows, "static", "clip_psnr")
    if room < LITTLE_ROOM:
        found.append(
            f"The autoencoder, which was made for simulated pictures, leaves {room:.1f} dB of room above the "
            "static frame: whole pictures can show little here, look at moving pixels."
        )
    if above["clip_psnr"] < 0 and steps >= FEW_STEPS:
        found.append(
            f"After {steps} steps it does not yet keep still what stands still. More steps mend that first: "
            "raise --minutes."
        )
    if episodes < LEAST_EPISODES:
        found.append(
            f"{_counted(episodes, 'held-out episode')} cannot show that actions are followed, "
            f"{LEAST_EPISODES} could: 'not followed' means 'not shown' here. Record more episodes."
        )
    return " ".join(found)


def _videos(folder: Path) -> tuple[tuple[Path, str], ...]:
    """The best, the middle and the worst clip; clips are numbered in the order of their records."""
    records = tuple(read_records(folder / "clips.jsonl").values())
    paths = {int(path.stem.removeprefix("clip")): path for path in (folder / "videos").glob("clip*.mp4")}
    order = sorted(paths, key=lambda number: (moving_error(records[number]), number))
    chosen = [order[place] for place in evenly_spread(len(order), 3)]
    words = ("best", "middle", "worst") if len(chosen) == 3 else ("best", "worst")
    return tuple(
        (paths[number], f"{word}: {clip_caption(records[number])}")
        for number, word in zip(chosen, words, strict=False)
    )


def moving_error(record: Mapping[str, Any]) -> float:
    """Mean squared error of moving pixels under true actions; infinite where nothing moves."""
    known = [value for value in record["rows"]["true"]["moving_mse"] if value is not None]
    return sum(known) / len(known) if known else math.inf


def _sheets(folder: Path) -> tuple[tuple[Path, str], ...]:
    return tuple((path, path.stem) for path in sorted(folder.glob("sheet*.png")))


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _mean(rows: Mapping[str, Mapping[str, Any]], row: str, key: str) -> float:
    return float(rows[row][key]["mean"])


def _side(decibels: float) -> str:
    return f"{abs(decibels):.1f} dB {'above' if decibels >= 0 else 'below'}"


def judgment(results: Mapping[str, Any]) -> tuple[Verdict, Table]:
    """The verdict of `worldmodel sensitivity`: comparisons as a table, other reasons as sentences."""
    checks = results["checks"]
    others = [reason for reason in results["reasons"] if reason.split(":")[0] not in checks]
    rows = tuple(
        (
            WRONG.get(name, f"{name} actions"),
            f"{estimate_of(check['wins']).percent()} of {count}"
            if (count := check["wins"]["count"])
            else NONE,
            "yes" if check["is_passed"] else "no",
        )
        for name, check in checks.items()
    )
    header = ("compared with", "episodes in which true actions are nearer", "passed")
    verdict = Verdict(results["verdict"], (NEEDED, *others), results["is_followed"])
    return verdict, Table(header, rows, note=results["rule"])
