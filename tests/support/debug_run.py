"""The debug world model that several tests train, and its losses."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "configs/debug/world_model.yaml")
SHARED = [
    "fit.steps=2",
    "fit.micro_batch=2",
    "fit.gradient_checkpointing=true",
]
# Small steps of differences would magnify what sums in another order change.
MCL = ["model.mcl.difference=central", "model.mcl.step=0.1", "model.objective.action_dropout=0"]


def losses(folder: Path) -> list[float]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records]
