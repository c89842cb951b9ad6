"""Raw commands -> `Actions`: the only way from a robot's own units to the model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.data.transitions import clip_projections, read_rows, scale_rows
from worldmodel.models.model import WorldModel
from worldmodel.tensors import check_numbers
from worldmodel.types import Actions, CameraMatrices, Extras, Transitions

RawActions = Float[np.ndarray, "b n raw"] | Float[Tensor, "b n raw"]
StartAction = Float[np.ndarray, "b start raw"] | Float[Tensor, "b start raw"]
State = Float[np.ndarray, " s"] | Float[Tensor, " s"]
StartState = Sequence[State | None] | Float[np.ndarray, "b s"] | Float[Tensor, "b s"]
Cameras = CameraMatrices | Sequence[CameraMatrices | None] | None
NO_CAMERA = (
    "the camera moved in training, or was not described, and none was given: pass "
    "camera=episode.cameras[name] to the pipeline"
)


def read_commands(
    model: WorldModel,
    robot_actions: RawActions,
    embodiments: Sequence[str],
    camera: Cameras = None,
    *,
    before: Float[Tensor, "b 2 raw"] | None = None,
    first_frame: int = 0,
    num_actions: int = 0,
    start_state: StartState | None = None,
) -> Actions:
    """Commands in the robots' own units as the model takes them, with the rows that its action paths read.

    Args:
        model: knows scales, names and the view of the training data.
        robot_actions: in the robots' own units.
        embodiments: one for each sample.
        camera: for all samples, or one for each; static, or with one matrix per frame. None: the camera of
            training, if it never moved.
        before: the two commands in force before the first one; none: the first one itself.
        first_frame: of the camera's frames, which action 0 starts from.
        num_actions: the last command is held up to this number.
        start_state: measured at the first given frame, one for each sample; none: unknown.
    """
    raw = torch.as_tensor(robot_actions).to("cpu")
    if len(embodiments) != len(raw):
        raise ValueError(
            f"expected one embodiment for all samples or {len(raw)}, one for each, of "
            f"{', '.join(model.normalizer.embodiments)}; got {list(embodiments)}"
        )
    raw = torch.cat([raw, raw[:, -1:].expand(-1, max(0, num_actions - raw.shape[1]), -1)], 1)
    numbers = check_numbers(raw.double(), "actions").numpy()
    scaled = [model.normalizer.normalize(*row) for row in zip(numbers, embodiments, strict=True)]
    if model.config.reader is None:
        return Actions(torch.stack(scaled))
    before = raw[:, :1].expand(-1, 2, -1) if before is None else before
    cameras, states = cameras_of(camera, len(raw)), start_states(start_state, len(raw))
    frames = range(first_frame, first_frame + 1 + raw.shape[1])
    clips = [
        Transitions(
            raw[number],
            before[number],
            model.normalizer.names_of(embodiment),
            views=_views(model, cameras[number], frames),
            why_no_views=NO_CAMERA,
            source=embodiment,
            state=states[number],
        )
        for number, embodiment in enumerate(embodiments)
    ]
    return Actions(torch.stack(scaled), extras=rows_of(model, clips, embodiments))


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


def first_commands(start_action: StartAction | None) -> Float[Tensor, "b 2 raw"] | None:
    """The two commands in force at the first given frame, from one or two that are given."""
    if start_action is None:
        return None
    found = check_numbers(torch.as_tensor(start_action).to("cpu"), "start_action")
    if found.ndim != 3 or found.shape[1] not in (1, 2):
        raise ValueError(
            f"start_action is 1 or 2 commands of each sample, [b n raw], got {tuple(found.shape)}"
        )
    return found[:, [0, -1]]


def latest_commands(
    before: Float[Tensor, "b 2 raw"] | None, robot_actions: RawActions
) -> Float[Tensor, "b 2 raw"]:
    """The last two commands after these."""
    raw = torch.as_tensor(robot_actions).to("cpu")
    before = raw[:, :1].expand(-1, 2, -1) if before is None else before.to(raw)
    return torch.cat([before, raw], 1)[:, -2:]


def cameras_of(camera: Cameras, count: int) -> list[CameraMatrices | None]:
    """One for each sample."""
    each = [camera] * count if camera is None or isinstance(camera, CameraMatrices) else list(camera)
    if len(each) != count:
        raise ValueError(f"expected one camera for all samples or {count}, one for each, got {len(each)}")
    return each


def start_states(start_state: StartState | None, count: int) -> list[Float[Tensor, " s"] | None]:
    """The measured state of each sample; None: unknown."""
    each = [None] * count if start_state is None else list(start_state)
    if len(each) != count:
        raise ValueError(f"expected {count} states in start_state, one for each sample, got {len(each)}")
    return [
        None if one is None else check_numbers(torch.as_tensor(one).float().to("cpu"), "start_state")
        for one in each
    ]


def _views(model: WorldModel, camera: CameraMatrices | None, frames: range) -> Float[Tensor, "m 3 4"] | None:
    contract = model.contract
    if camera is not None:
        return clip_projections(camera, frames, (contract.height, contract.width), contract.aspect)
    if not contract.projection:
        return None
    return torch.tensor(contract.projection).view(3, 4).expand(len(frames), 3, 4)


def check_actions(model: WorldModel, actions: Actions) -> None:
    """Refuse actions that this model cannot be driven by."""
    robot, latent, reader = actions.robot, actions.latent, model.config.reader
    if robot is not None and latent is not None:
        raise ValueError("a rollout is driven by robot actions or by latent actions, got both")
    if robot is not None and robot.shape[-1] != model.normalizer.width:
        raise ValueError(
            f"expected robot actions padded to {model.normalizer.width} dimensions, got {robot.shape[-1]}"
        )
    if latent is not None and model.config.regime != "lacg":
        raise ValueError(f"latent actions need a model of regime lacg, this one is {model.config.regime}")
    if latent is not None and latent.shape[-1] != model.config.latent_action_dim:
        raise ValueError(
            f"expected latent actions of {model.config.latent_action_dim} dimensions, got {latent.shape[-1]}"
        )
    if reader is not None and robot is not None and not actions.extras:
        raise ValueError(
            f"the model's action paths need {', '.join(reader.row_shapes)} beside the actions: call the "
            "pipeline with raw actions and camera=episode.cameras[name], or pass extras"
        )


def driving(model: WorldModel, actions: Actions, frame: Float[Tensor, "b 3 H W"]) -> Actions:
    """What the model's interface embeds: latent actions from its controller (lacg), nothing (no_action)."""
    if model.config.regime == "no_action":
        return replace(actions, robot=None)
    if model.config.regime == "lacg" and actions.robot is not None:
        return replace(actions, robot=None, latent=model.control(actions.robot, frame))
    return actions
