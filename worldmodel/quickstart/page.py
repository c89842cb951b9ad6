"""The page of `worldmodel quickstart`: the chosen settings with reasons, the results, and their meaning."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldmodel.evaluation.jsonl_store import read_records
from worldmodel.evaluation.rollouts.page import clip_caption
from worldmodel.quickstart.baseline import FILE, quality_blocks
from worldmodel.quickstart.budget import Budget
from worldmodel.quickstart.choices import LEAST_TEST, Plan
from worldmodel.quickstart.pictures import chosen_clips
from worldmodel.report.intervals import Estimate, estimate_of
from worldmodel.report.page import Figures, Page, Section, Table, Text, Verdict, write_pages

READ_SO = (
    "Compare the row of true actions with its neighbors. The static frame is the floor: a model that is no "
    "better has learned nothing that counts. The nearest training frame is what memory alone would show. The "
    "autoencoder is the ceiling: no model draws better. "
    "Rows of wrong actions should be worse than the true ones, or the actions do not matter."
)
# columns of the table below
WHERE = {"clip_psnr": "on whole pictures", "moving_psnr": "on moving pixels"}
CLIPS_SHOW = (
    "Held-out clips: the model gets the first frame and the actions. The same frame under wrong actions "
    "must go another way. Last comes the training frame that was seen under the nearest action."
)
SOFT = (
    " There were too few minutes for a picture head: the model shows its own small picture, enlarged. "
    "More minutes make it sharp."
)
NOT_SHOWN = "Whether actions are followed is not shown: too few held-out episodes."
MOVES_SHOW = (
    "Each action dimension alone is raised; dark is where the video changes. One scale for all, the "
    "twelve strongest; the number is the mean change over the picture."
)
NEEDED = "True actions must give the nearer video in nearly all episodes, whatever they are compared with."
NONE = "none differs enough to count"
WRONG = {
    "null": "no actions",
    "hold": "the first action, held",
    "other_episode": "actions of another episode",
    "static frame": "static frame",
}
LITTLE_ROOM = 2.0  # dB from the static frame to the ceiling
FEW_STEPS = 200  # with fewer, a model has hardly been trained
NEXT = (
    "rollouts/report.html has curves, videos and intervals. sensitivity/report.html says how each action "
    "dimension is answered. run/config.yaml holds all settings: worldmodel train takes it for a longer run."
)


@dataclass(frozen=True)
class Spent:
    """The amount of work done, and its time."""

    budget: Budget
    training_s: float  # including inspection, encoding and the trial
    evaluation_s: float
    kept: int  # step of the base whose weights are used


def write_quickstart_page(out: Path, name: str, plan: Plan, spent: Spent) -> Path:
    """Write report.md and report.html in `out`, from the results of the other commands."""
    rows = json.loads((out / "rollouts" / "results.json").read_text())
    records = read_records(out / "rollouts" / "clips.jsonl")
    verdict = json.loads((out / "sensitivity" / "sensitivity.json").read_text())
    file = out / FILE
    baseline = json.loads(file.read_text()) if file.is_file() else None
    plateau = f" (best on validation at step {spent.kept})" if spent.kept < spent.budget.steps else ""
    lead = (
        f"{spent.budget.steps} steps of {spent.budget.speeds.step:.2f} s{plateau}; "
        f"{spent.training_s / 60:.1f} minutes to the end of training, "
        f"{spent.evaluation_s / 60:.1f} minutes of evaluation. "
        f"{_counted(rows['episodes'], 'held-out episode')}. {rows.get('trained_on') or ''}"
    )
    chosen = Table(("setting", "chosen", "why"), tuple((c.setting, c.value, c.reason) for c in plan.choices))
    words = in_short(rows["rows"], rows["episodes"], spent.budget.steps, is_followed=verdict["is_followed"])
    parts = Table(("part", "minutes", "what"), tuple(spent.budget.parts()))
    clips = [(place, clip_caption(records[key])) for place, key in chosen_clips(records).items()]
    shown = CLIPS_SHOW + ("" if spent.budget.head_steps or not spent.budget.speeds.head_step else SOFT)
    sections = (
        Section("In short", (headline(verdict, words),)),
        Section(
            "What the model shows",
            (Text(shown), _figures(out / "clips", "mp4", clips), _figures(out / "clips", "png", clips)),
        ),
        Section("Quality", (*quality_blocks(rows["rows"], baseline), Text(READ_SO))),
        Section("Are the actions followed?", judgment(verdict)),
        Section("Which action moves what", (Text(MOVES_SHOW), _moves(out / "sensitivity"))),
        Section(
            "Your data", (Figures(((out / "contact_sheet.png", "evenly chosen episodes"),), is_wide=True),)
        ),
        Section("What was chosen", (chosen, parts)),
        Section("Next", (Text(NEXT),)),
    )
    return write_pages(Page(f"World model of {name}", lead, sections), out)


def headline(verdict: Mapping[str, Any], words: str) -> Verdict:
    """The verdict in one sentence with its count, and the summary."""
    counted = _counted_wins(verdict)
    if not counted:
        return Verdict(NOT_SHOWN, (words,), None)
    least = min(counted, key=lambda one: one.mean)
    found = f"in {round(least.mean * least.count)} of {least.count} held-out episodes"
    if verdict["is_followed"]:
        more = "" if least.mean == 1 else " or more"
        title = f"The actions are followed: {found}{more}, true ones give a better video than any wrong ones."
    elif all(check["is_passed"] for check in verdict["checks"].values()):
        title = " ".join((verdict["verdict"], *verdict["reasons"][:1]))
    else:
        title = f"The actions are not followed yet: true ones beat the best wrong ones {found}."
    return Verdict(title, (words,), verdict["is_followed"])


def _counted_wins(verdict: Mapping[str, Any]) -> list[Estimate]:
    """Of all comparisons that count; none where they are of too few episodes."""
    wins = [estimate_of(check["wins"]) for check in verdict["checks"].values()]
    counted = [one for one in wins if one.count]
    return [] if any(one.count < LEAST_TEST for one in counted) else counted


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
    elif episodes >= LEAST_TEST:
        found.append("More minutes help first, then more episodes.")
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
    if episodes < LEAST_TEST:
        found.append(
            f"{_counted(episodes, 'held-out episode')} cannot show that actions are followed, "
            f"{LEAST_TEST} could: 'not followed' means 'not shown' here. Record more episodes."
        )
    return " ".join(found)


def _figures(folder: Path, kind: str, clips: Sequence[tuple[str, str]]) -> Figures:
    return Figures(
        tuple((folder / f"{place}.{kind}", f"{place}: {caption}") for place, caption in clips), is_wide=True
    )


def _moves(folder: Path) -> Figures:
    return Figures(
        tuple((path, "one held-out clip") for path in sorted(folder.glob("moves*.png"))), is_wide=True
    )


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
    if not _counted_wins(results):
        verdict = Verdict(NOT_SHOWN, (NEEDED,), None)
    return verdict, Table(header, rows, note=results["rule"])
