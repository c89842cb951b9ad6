"""Who reads robot actions off a video: the model's own inverse dynamics model, or that of another one."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.data.normalize import ActionNormalizer
from worldmodel.models.idm import InverseDynamicsModel
from worldmodel.models.world_model import WorldModel

# (frames) -> the robot action that each transition looks like
Recover = Callable[[Float[Tensor, "t 3 H W"]], Float[Tensor, "n a"]]


def action_judge(model: WorldModel, source: str, embodiments: Sequence[str]) -> Recover | None:
    """The judge of a model's videos; None where no IDM was trained to tell robot actions.

    Args:
        model: whose videos are judged, and on whose scales.
        source: folder or hub id of a world model that lends its IDM; empty: the model's own.
        embodiments: the robots that are judged; both models must name and scale their actions alike.
    """
    idm = _lent(model, source, embodiments) if source else model.judge
    if idm is None:
        return None
    device = model.text.device
    lent = idm.to(device).eval()

    @torch.no_grad()
    def recover(frames: Float[Tensor, "t 3 H W"]) -> Float[Tensor, "n a"]:
        return lent.robot_actions(lent(frames[None].to(device)))[0].cpu()

    return recover


def _lent(model: WorldModel, source: str, embodiments: Sequence[str]) -> InverseDynamicsModel:
    other = WorldModel.from_pretrained(source)
    if other.judge is None:
        raise ValueError(f"judge {source}: no inverse dynamics model that was trained to tell robot actions")
    try:
        other.contract.check(fps=model.contract.fps, camera=model.contract.camera)
        _check_scales(model.normalizer, other.normalizer, embodiments)
    except ValueError as error:
        raise ValueError(f"judge {source}: {error}") from error
    return other.judge


def _check_scales(ours: ActionNormalizer, theirs: ActionNormalizer, embodiments: Sequence[str]) -> None:
    if ours.width != theirs.width:
        raise ValueError(f"expected actions padded to {ours.width} dimensions, got {theirs.width}")
    for name in embodiments:
        theirs.index(name)
        stats = ours.stats[name]
        theirs.check_names(name, stats.names)
        expected, got = np.stack(stats.bounds()), np.stack(theirs.stats[name].bounds())
        span = np.maximum(expected[1] - expected[0], 1e-6)
        if (off := float((np.abs(got - expected) / span).max())) > 1e-3:
            raise ValueError(f"ranges of {name!r} differ from the judged model's, by {off:.2g} of a range")
