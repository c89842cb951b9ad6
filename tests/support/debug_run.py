"""The debug world model that several tests train, and its losses."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "configs/debug/world_model.yaml")
SHARED = [
    "fit.steps=2",
    "fit.micro_batch=2",
    "fit.gradient_checkpointing=true",
    "model.mcl.mode=finite_difference",
]


def losses(folder: Path) -> list[float]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records]
