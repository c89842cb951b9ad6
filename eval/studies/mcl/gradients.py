"""MCL's share of the backbone's gradient at the end of a training, and the angle to the rest."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from studies.mcl.cells import MclStudyConfig, arm_folder, arm_names, arms_of, comparisons
from worldmodel.data.dataset import collate_clips
from worldmodel.files import write_json
from worldmodel.models.model import WorldModel
from worldmodel.objectives.training_step import mcl_term, world_model_step
from worldmodel.training.loop.checkpoints import CheckpointStore
from worldmodel.training.world_model import build_run, load_train_config
from worldmodel.types import ClipBatch, evenly_spread

FILE = "gradients.json"


def measure_gradients(config: MclStudyConfig, phase: str, num_batches: int = 4) -> Iterator[Path]:
    """Write gradients.json into every finished training with MCL; yields the written files."""
    seeds = config.choose_seeds if phase == "choose" else config.confirm_seeds
    for comparison in comparisons(config, phase):
        for arm in arm_names(arms_of(config, comparison)):
            for seed in seeds:
                trained = arm_folder(config, comparison, arm, seed) / "trained"
                if (trained / "model").exists() and not (trained / FILE).exists():
                    write_json(trained / FILE, backbone_gradients(trained, num_batches))
                    yield trained / FILE


def backbone_gradients(trained: Path, num_batches: int) -> dict[str, float]:
    """Norms of the weighted MCL gradient and of the rest, MCL's share of their sum, and their cosine."""
    config = load_train_config(str(trained / "config.yaml"))
    run = build_run(config, torch.device("cpu"))
    last = CheckpointStore(trained / "checkpoints", 1).last_good()
    assert last is not None, trained
    run.model.load_state_dict(last.tensors("weights"), strict=False)
    size = config.fit.micro_batch
    numbers = evenly_spread(len(run.train_clips), num_batches * size)
    batches = [numbers[start : start + size] for start in range(0, len(numbers), size)]
    found = [
        _norms(run.model.eval(), collate_clips([run.train_clips[number] for number in some]))
        for some in batches
    ]
    return {name: sum(one[name] for one in found) / len(found) for name in found[0]}


def _norms(model: WorldModel, batch: ClipBatch) -> dict[str, float]:
    weight = model.config.objective.mcl_weight
    whole = _gradient(model, world_model_step(model, batch, torch.Generator().manual_seed(0)).total)
    mcl = weight * _gradient(model, mcl_term(model, batch, torch.Generator().manual_seed(0)))
    rest = whole - mcl
    share = mcl.norm() / (mcl.norm() + rest.norm())
    cosine = torch.cosine_similarity(mcl, rest, dim=0)
    values = {"mcl": mcl.norm(), "rest": rest.norm(), "share": share, "cosine": cosine}
    return {name: float(value) for name, value in values.items()}


def _gradient(model: WorldModel, loss: Tensor) -> Tensor:
    trained = [parameter for parameter in model.fdm.backbone.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss, trained, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(parameter) if gradient is None else gradient).flatten()
            for parameter, gradient in zip(trained, found, strict=True)
        ]
    )
