"""Records the cost of a run of the concept study: OUTPUT/cost.json."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from worldmodel.files import write_text
from worldmodel.training.loop.fit import FitConfig, FitResult

COST_FILE = "cost.json"


@dataclass(frozen=True)
class Cost:
    """Cost of one run; time includes validation during training."""

    cpu_seconds: float  # of the main process over all resumptions; work lost in a kill is not counted
    pictures: int  # training images, with repeats
    parameters: int  # trained parameters
    batch: int  # images per step


def write_cost(output: Path, result: FitResult, config: FitConfig, model: nn.Module) -> None:
    """Save time and size of a finished run; call it before the export, which marks the run as done."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    batch = config.global_batch
    cost = Cost(round(result.cpu_seconds, 1), result.step * batch, trained, batch)
    write_text(output / COST_FILE, json.dumps(asdict(cost), indent=1) + "\n")


def read_cost(output: Path) -> Cost | None:
    """The cost of a run; None if it was trained by a version that did not record it."""
    file = output / COST_FILE
    return Cost(**json.loads(file.read_text())) if file.exists() else None
