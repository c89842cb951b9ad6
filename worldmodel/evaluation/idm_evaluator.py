"""Recovers robot actions from videos with an inverse dynamics model (IDM) of this or another world model."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.model import WorldModel

# (frames, embodiment) -> the robot action of each transition
Recover = Callable[[Float[Tensor, "t 3 H W"], str], Float[Tensor, "n a"]]


def action_judge(
    model: WorldModel, source: str, embodiments: Sequence[str], *, allow_external: bool = False
) -> Recover | None:
    """The IDM evaluator of a model's videos; None if no IDM was trained to predict robot actions.

    Args:
        model: whose videos are evaluated, and whose action scales are used.
        source: folder or hub id of a world model whose IDM is used; empty: the model's own.
        embodiments: the robots to evaluate; both models must support them with the same action names.
    """
    lender = _idm_owner(model, source, embodiments, allow_external) if source else model
    if lender.judge is None:
        return None
    device, idm = model.device, lender.judge.eval()

    @torch.no_grad()
    def recover(frames: Float[Tensor, "t 3 H W"], embodiment: str) -> Float[Tensor, "n a"]:
        seen = idm.robot_actions(idm(frames[None].to(device)))[0].cpu()
        if lender.normalizer.to_dict() == model.normalizer.to_dict():
            return seen
        raw = lender.normalizer.denormalize(seen, embodiment)
        return model.normalizer.normalize(raw, embodiment, clip=False)

    return recover


def _idm_owner(
    model: WorldModel, source: str, embodiments: Sequence[str], allow_external: bool
) -> WorldModel:
    other = WorldModel.from_pretrained(source, allow_external=allow_external, device=model.device)
    if other.judge is None:
        raise ValueError(f"judge {source}: no inverse dynamics model that was trained to tell robot actions")
    try:
        other.contract.check(fps=model.contract.fps, camera=model.contract.camera)
        for name in embodiments:
            model.normalizer.index(name)
            other.normalizer.check_names(name, model.normalizer.stats[name].names)
    except ValueError as error:
        raise ValueError(f"judge {source}: {error}") from error
    return other
