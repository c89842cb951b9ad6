"""The page of `worldmodel quickstart`: what was chosen and why, what came out, and what it is worth."""

import json
from dataclasses import dataclass
from pathlib import Path

from worldmodel.evaluation.rollouts.page import quality_table
from worldmodel.quickstart.choices import Plan
from worldmodel.report.page import Figures, Page, Section, Table, Text, Verdict, write_pages

READ_SO = (
    "Compare the row of true actions with its neighbors. The static frame is the floor: a model that is no "
    "better has learned nothing that counts. The autoencoder is the ceiling: no model draws better. "
    "Rows of wrong actions should be worse than the true ones, or the actions do not matter."
)
NEXT = (
    "rollouts/report.html has curves, videos and intervals. sensitivity/report.html says how each action "
    "dimension is answered. run/config.yaml holds all settings: `worldmodel train` takes it for a longer run."
)


@dataclass(frozen=True)
class Spent:
    """What was done, and the time it took."""

    steps: int
    seconds_a_step: float
    training_s: float  # with inspection, encoding and the trial
    evaluation_s: float


def write_quickstart_page(out: Path, name: str, plan: Plan, spent: Spent) -> Path:
    """report.md and report.html in `out`, from what the other commands wrote there."""
    rows = json.loads((out / "rollouts" / "results.json").read_text())
    verdict = json.loads((out / "sensitivity" / "sensitivity.json").read_text())
    lead = (
        f"{spent.steps} steps of {spent.seconds_a_step:.2f} s; {spent.training_s / 60:.1f} minutes to "
        f"the end of training, {spent.evaluation_s / 60:.1f} minutes of evaluation. "
        f"{rows['episodes']} held-out episodes. {rows.get('trained_on') or ''}"
    )
    chosen = Table(("setting", "chosen", "why"), tuple((c.setting, c.value, c.reason) for c in plan.choices))
    videos = tuple((path, path.stem) for path in sorted((out / "rollouts" / "videos").glob("*.mp4")))
    sections = (
        Section("What was chosen", (chosen,)),
        Section(
            "Your data", (Figures(((out / "contact_sheet.png", "evenly chosen episodes"),), is_wide=True),)
        ),
        Section(
            "Videos", (Figures(videos), Text("Left: the recording. Right: the model, given the actions."))
        ),
        Section("Quality", (quality_table(rows["rows"]), Text(READ_SO))),
        Section("Are the actions followed?", (_verdict(verdict),)),
        Section("Next", (Text(NEXT),)),
    )
    return write_pages(Page(f"First model of {name}", lead, sections), out)


def _verdict(results: dict) -> Verdict:
    return Verdict(results["verdict"], tuple(results["reasons"]), results["is_followed"])
