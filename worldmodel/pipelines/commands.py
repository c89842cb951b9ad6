"""Raw commands -> `Actions`: the only way from a robot's own units to the model."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.data.transitions import clip_projections, read_rows, scale_rows
from worldmodel.models.model import WorldModel
from worldmodel.tensors import check_numbers
from worldmodel.types import Actions, CameraMatrices, Extras, Transitions

RawActions = Float[np.ndarray, "b n raw"] | Float[Tensor, "b n raw"]
StartActions = Float[np.ndarray, "b start raw"] | Float[Tensor, "b start raw"]
Cameras = CameraMatrices | Sequence[CameraMatrices] | None
NO_CAMERA = (
    "the camera moved in training, or was not described, and none was given: pass "
    "cameras=episode.cameras[name] to the pipeline"
)


def read_commands(
    model: WorldModel,
    robot_actions: RawActions,
    embodiments: Sequence[str],
    cameras: Cameras = None,
    *,
    before: Float[Tensor, "b 2 raw"] | None = None,
    first_frame: int = 0,
    num_actions: int = 0,
    action_names: Sequence[str] | None = None,
) -> Actions:
    """Commands in the robots' own units as the model takes them, with the rows that its action paths read.

    Args:
        model: knows scales, names and the view of the training data.
        robot_actions: in the robots' own units.
        embodiments: one for each sample.
        cameras: for all samples, or one for each; static, or with one matrix per frame of the video. None:
            the camera of training, if it never moved.
        before: the two commands in force before the first one; none: the first one itself.
        first_frame: of the video, which action 0 leads on from.
        num_actions: the last command is held up to so many.
        action_names: refused where they are not the embodiment's.
    """
    raw = torch.as_tensor(robot_actions)
    held = raw[:, -1:].expand(-1, max(0, num_actions - raw.shape[1]), -1)
    raw = torch.cat([raw, held], 1)
    robot = normalize_actions(model, raw, embodiments, action_names)
    if model.config.reader is None:
        return Actions(robot)
    before = raw[:, :1].expand(-1, 2, -1) if before is None else before
    views = _views(model, cameras, len(raw), range(first_frame, first_frame + 1 + raw.shape[1]))
    clips = [
        Transitions(
            raw[number],
            before[number],
            model.normalizer.names_of(embodiment),
            views=None if views is None else views[number],
            why_no_views=NO_CAMERA,
            source=embodiment,
        )
        for number, embodiment in enumerate(embodiments)
    ]
    return Actions(robot, extras=rows_of(model, clips, embodiments))


def rows_of(model: WorldModel, clips: Sequence[Transitions], embodiments: Sequence[str]) -> Extras:
    """What the model's action paths read of these transitions, one sample each."""
    reader = model.config.reader
    if reader is None:
        return {}
    rows = [
        scale_rows(read_rows(reader, clip), reader, model.normalizer, name)
        for clip, name in zip(clips, embodiments, strict=True)
    ]
    return {name: torch.stack([one[name] for one in rows]) for name in rows[0]}


def first_commands(start_actions: StartActions | None) -> Float[Tensor, "b 2 raw"] | None:
    """The two commands in force at the first given frame, from one or two that are given."""
    if start_actions is None:
        return None
    found = check_numbers(torch.as_tensor(start_actions), "start_actions")
    if found.ndim != 3 or found.shape[1] not in (1, 2):
        raise ValueError(
            f"start_actions are 1 or 2 commands of each sample, [b n raw], got {tuple(found.shape)}"
        )
    return found[:, [0, -1]]


def latest_commands(
    before: Float[Tensor, "b 2 raw"] | None, raw: Float[Tensor, "b n raw"]
) -> Float[Tensor, "b 2 raw"]:
    """The last two commands after these."""
    before = raw[:, :1].expand(-1, 2, -1) if before is None else before.to(raw)
    return torch.cat([before, raw], 1)[:, -2:]


def _views(
    model: WorldModel, cameras: Cameras, count: int, frames: range
) -> list[Float[Tensor, "m 3 4"]] | None:
    contract = model.contract
    if cameras is None:
        if not contract.projection:
            return None
        return [torch.tensor(contract.projection).view(3, 4).expand(len(frames), 3, 4)] * count
    each = [cameras] * count if isinstance(cameras, CameraMatrices) else list(cameras)
    if len(each) != count:
        raise ValueError(f"expected one camera for all samples or {count}, one for each, got {len(each)}")
    size = contract.height, contract.width
    return [clip_projections(camera, frames, size, contract.aspect) for camera in each]


def normalize_actions(
    model: WorldModel,
    robot_actions: Float[np.ndarray, "b n raw"] | Float[Tensor, "b n raw"],
    embodiments: Sequence[str],
    action_names: Sequence[str] | None = None,
) -> Float[Tensor, "b n a"]:
    """Commands in the robots' own units, one embodiment for each sample, as the model takes them."""
    if len(embodiments) != len(robot_actions):
        raise ValueError(
            f"expected one embodiment for all samples or {len(robot_actions)}, one for each, of "
            f"{', '.join(model.normalizer.embodiments)}; got {list(embodiments)}"
        )
    raw = check_numbers(torch.as_tensor(robot_actions).cpu().double(), "actions").numpy()
    normalize = model.normalizer.normalize
    return torch.stack(
        [normalize(row, name, action_names) for row, name in zip(raw, embodiments, strict=True)]
    )
