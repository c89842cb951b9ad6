"""The history of a whole clip: the latest frames of a video, or its first frame and the latest ones (BWM).

With 9 frames of history and a block of 8, for BWM:

    block 1   frame 0 nine times           -> 1 .. 8
    block 2   frame 0, frames 1 .. 8       -> 9 .. 16
    block 3   frame 0, frames 9 .. 16      -> 17 .. 24
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.actions.published.first_action import PREVIOUS
from worldmodel.types import Actions


def check_history(keeps_first: bool, causal: bool, history: int, rows: Iterable[str]) -> None:
    """Refuse models that cannot keep the first frame in their history."""
    if keeps_first and (causal or history < 2 or set(rows) != {PREVIOUS}):
        raise ValueError(
            "actions.bwm.keep_first needs whole clips, a history of 2 latent frames or more and no other "
            f"path that reads rows of clips: got causal={causal}, history={history} and the rows "
            f"{', '.join(rows)}; set it to false for a history of the latest frames"
        )


def history_frames(
    frames: Float[Tensor, "b t 3 H W"], count: int, keeps_first: bool
) -> Float[Tensor, "b count 3 H W"]:
    """The frames of a video that its next clip begins with."""
    if not keeps_first:
        return frames[:, -count:]
    latest = frames[:, 1:][:, 1 - count :]
    first = frames[:, :1].expand(-1, count - latest.shape[1], *frames.shape[2:])
    return torch.cat([first, latest], 1)


def history_actions(actions: Actions, num_known: int, count: int, keeps_first: bool) -> Actions:
    """The actions between these frames, of the first `num_known` actions of a video."""
    start = max(0, num_known + 1 - count)
    kept = actions[start:num_known]
    if not keeps_first:
        return kept
    rows = {
        name: torch.cat([found[:, :1], found[:, start + 1 : num_known]], 1)
        for name, found in actions.extras.items()
    }
    return replace(kept, extras=rows)


def standing_before(past: Actions, ahead: Actions, count: int) -> Actions:
    """`count` past actions; those before the video hold the pose at its first frame."""
    if not ahead.count:
        return past
    past = past if past.count else ahead[:0]
    missing = count - (past.count or 0)
    pose = past.concat(ahead).extras[PREVIOUS][:, :1].expand(-1, missing, -1)
    return Actions(pose, extras={PREVIOUS: pose}).concat(past)
