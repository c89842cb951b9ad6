"""How close first-order MCL is to double backward:

python eval/bench/mcl_gradients.py DATA
python eval/bench/mcl_gradients.py --models wide

Cosine and norm ratio of the contrast's gradient, for each part of the model, against double backward in
float32. The model `desk` is the shipped one on clips of DATA, tabletop episodes. `wide` has two layers of the
1.3B shape with random weights and latent actions. Half precision is autocast to bfloat16.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from worldmodel.cli_errors import one_way_out
from worldmodel.data.dataset import collate_clips
from worldmodel.mcl.config import ActionMclConfig
from worldmodel.models.config import FrameContract, ObjectiveConfig, WorldModelConfig
from worldmodel.models.idm import IdmConfig
from worldmodel.models.model import WorldModel
from worldmodel.objectives.training_step import mcl_term
from worldmodel.report.page import Table, markdown_table
from worldmodel.training.world_model import build_run, load_train_config
from worldmodel.types import ClipBatch, evenly_spread

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # of a script, only its own folder is there
from bench.world_model import WIDE, make_batch, normalizer

NUM_CLIPS = 4


ONE_SIDED = ActionMclConfig(mode="first_order", difference="one_sided", step=0.1)
CENTRAL = ActionMclConfig(mode="first_order", difference="central", step=0.1)


@dataclass(frozen=True)
class Way:
    """One method to compute the gradient."""

    title: str
    mcl: ActionMclConfig
    is_half: bool = False


WAYS = (
    Way("float32, one-sided 0.01", replace(ONE_SIDED, step=0.01)),
    Way("float32, central 0.1", CENTRAL),
    Way("bfloat16, central 0.1", CENTRAL, is_half=True),
    Way("bfloat16, one-sided 0.1", ONE_SIDED, is_half=True),
)
EXACT = Way("double backward", ActionMclConfig(mode="exact"))


def parts(model: WorldModel) -> dict[str, list[nn.Parameter]]:
    """The parts of the model that MCL may train, by name."""
    assert model.mcl is not None
    critic = model.mcl.critic
    assert isinstance(critic, nn.Module)
    heads = [*model.mcl.gradient_head.parameters(), *model.mcl.condition_head.parameters()]
    return {
        "backbone": list(model.fdm.parameters()),
        "interface": list(model.interface.parameters()),
        "IDM": [] if model.idm is None else list(model.idm.parameters()),
        "critic": list(critic.parameters()),
        "heads": heads,
    }


def gradients(model: WorldModel, batch: ClipBatch, *, is_half: bool = False) -> dict[str, Tensor]:
    """The gradient of the contrast alone, for each part; parts without a gradient are omitted."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16) if is_half else nullcontext():
        loss = mcl_term(model, batch, torch.Generator().manual_seed(1))
    loss.backward()
    found = {
        name: [p.grad.flatten() for p in some if p.grad is not None] for name, some in parts(model).items()
    }
    joined = {name: torch.cat(values) for name, values in found.items() if values}
    return {name: value for name, value in joined.items() if value.abs().max() > 0}


def desk_model(way: Way, data: str) -> tuple[WorldModel, ClipBatch]:
    """The shipped model with MCL, and clips of the data."""
    words = [f"data.paths=[{data}]", "data.latents=", "data.splits.val=0", "model.objective.action_dropout=0"]
    words += [f"model.mcl.{name}={getattr(way.mcl, name)}" for name in ("mode", "difference", "step")]
    config = load_train_config("configs/desk/demo.yaml", words)
    run = build_run(config, torch.device("cpu"))
    clips = [run.train_clips[number] for number in evenly_spread(len(run.train_clips), NUM_CLIPS)]
    return run.model.eval(), collate_clips(clips)


def wide_model(way: Way) -> tuple[WorldModel, ClipBatch]:
    """Two layers of the 1.3B shape with latent actions."""
    contract = FrameContract(num_frames=9, height=64, width=64, fps=10.0, latent_scale=8)
    config = WorldModelConfig(
        regime="lacg",
        backbone=WIDE,
        idm=IdmConfig(image_height=64, image_width=64),
        objective=ObjectiveConfig(action_dropout=0.0),
        mcl=way.mcl,
    )
    torch.manual_seed(0)
    model = WorldModel.build(config, contract, normalizer())
    for parameter in model.interface.parameters():  # it starts at zero, where nothing flows
        nn.init.normal_(parameter, std=0.02)
    return model.eval(), make_batch(contract, NUM_CLIPS)


def compare(name: str, data: str) -> list[tuple[str, ...]]:
    """One table row per method."""

    def make(way: Way) -> tuple[WorldModel, ClipBatch]:
        return wide_model(way) if name == "wide" else desk_model(way, data)

    model, batch = make(EXACT)
    exact, weights = gradients(model, batch), model.state_dict()
    rows = []
    for way in WAYS:
        model, batch = make(way)
        model.load_state_dict(weights)
        found = gradients(model, batch, is_half=way.is_half)
        cells = []
        for part in parts(model):
            if part in exact:
                cosine = torch.cosine_similarity(found[part].double(), exact[part].double(), dim=0)
                cells.append(f"{cosine:.4f}, {found[part].norm() / exact[part].norm():.3f}")
            else:
                cells.append("")
        rows.append((f"{name}, {way.title}", *cells))
    return rows


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", default="", metavar="DATA", help="episodes for the desk model")
    parser.add_argument("--models", nargs="+", choices=("desk", "wide"), default=("desk", "wide"))
    arguments = parser.parse_args(argv)
    if "desk" in arguments.models and not arguments.data:
        raise ValueError("the desk model needs DATA, as written by worldmodel collect; or say --models wide")
    rows = [row for name in arguments.models for row in compare(name, arguments.data)]
    header = ("model, precision, difference, step", "backbone", "interface", "IDM", "critic", "heads")
    print(markdown_table(Table(header, tuple(rows))))
    return 0


if __name__ == "__main__":
    main()
