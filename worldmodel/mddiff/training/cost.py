"""What a run of the concept study took: OUTPUT/cost.json."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from worldmodel.files import write_text
from worldmodel.training.loop.fit import FitConfig, FitResult

COST_FILE = "cost.json"


@dataclass(frozen=True)
class Cost:
    """Of one run; validation in passing is included in the time."""

    cpu_seconds: float  # of the main process, all resumptions together; work lost in a kill is not counted
    pictures: int  # seen in training, repeats included
    parameters: int  # that were trained
    batch: int  # pictures per step


def write_cost(output: Path, result: FitResult, config: FitConfig, model: nn.Module) -> None:
    """Keep what a finished run took; to be called before its model is exported, which marks it as done."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    batch = config.global_batch
    cost = Cost(round(result.cpu_seconds, 1), result.step * batch, trained, batch)
    write_text(output / COST_FILE, json.dumps(asdict(cost), indent=1) + "\n")


def read_cost(output: Path) -> Cost | None:
    """What a run took; none when it was trained before this was recorded."""
    file = output / COST_FILE
    return Cost(**json.loads(file.read_text())) if file.exists() else None
