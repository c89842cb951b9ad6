"""Corrupted action sequences used as negative controls.

All in the model's own action space ([-1, 1] per dimension). Only actions after the given frames change; the
actions that led to those frames stay.

    true           as recorded
    zero           zeros: the middle of every dimension's range (for latent actions: no motion)
    null           no actions at all, an input that the model was trained with
    hold           the first one, repeated
    reversed       last to first
    shuffled       the same ones in random order
    shifted        too early by SHIFT transitions, padded with the last one
    mirrored       left and right arm exchanged
    scaled         half as large
    other_episode  those of another episode of the same robot
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

SHIFT = 4  # transitions: one latent frame
SCALE = 0.5
CONTROLS = (
    "zero",
    "null",
    "hold",
    "reversed",
    "shuffled",
    "shifted",
    "mirrored",
    "scaled",
    "other_episode",
)


def controlled_actions(
    actions: Float[Tensor, "n a"],
    names: Sequence[str],
    *,
    num_given: int = 1,
    other: Float[Tensor, "n a"] | None = None,
    generator: torch.Generator,
) -> dict[str, Float[Tensor, "n a"] | None]:
    """Name of the control -> its actions (None: no actions); controls that do not apply are omitted.

    Args:
        actions: as recorded, normalized and padded.
        names: of the dimensions that are not padding; mirroring needs left_... and right_... of each.
        num_given: context frames of the model, whose num_given - 1 transitions stay unchanged.
        other: actions of another episode of the same robot.
        generator: of the random order.
    """
    past, future = actions[: num_given - 1], actions[num_given - 1 :]
    changed = {
        "true": future,
        "zero": torch.zeros_like(future),
        "hold": future[:1].expand_as(future),
        "reversed": future.flip(0),
        "shuffled": future[other_order(len(future), generator)],
        "shifted": torch.cat([future[SHIFT:], future[-1:].expand(min(SHIFT, len(future)), -1)]),
        "scaled": SCALE * future,
    }
    if (order := mirror_order(names, actions.shape[1])) is not None:
        changed["mirrored"] = future[:, order]
    if other is not None:
        changed["other_episode"] = other[num_given - 1 :]
    return {"null": None, **{name: torch.cat([past, part]) for name, part in changed.items()}}


def mirror_order(names: Sequence[str], width: int) -> list[int] | None:
    """The source dimension of each mirrored value; None unless all names are pairs of left and right.

    Dimensions beyond the names are padding and stay.
    """
    twins = {name: _twin(name) for name in names}
    if not names or any(twin not in twins for twin in twins.values()):
        return None
    place = {name: index for index, name in enumerate(names)}
    return [place[twins[name]] for name in names] + list(range(len(names), width))


def other_order(count: int, generator: torch.Generator) -> Tensor:
    """A random order other than the identity, if there is one."""
    order = torch.randperm(count, generator=generator)
    while count > 1 and torch.equal(order, torch.arange(count)):
        order = torch.randperm(count, generator=generator)
    return order


def static_video(last_given: Float[Tensor, "3 H W"], count: int) -> Float[Tensor, "t 3 H W"]:
    """The static baseline: the last given frame, repeated."""
    return last_given.expand(count, -1, -1, -1)


def _twin(name: str) -> str:
    for side, opposite in (("left", "right"), ("right", "left")):
        if name.startswith(side):
            return opposite + name.removeprefix(side)
    return ""
