"""What action paths read: the transitions of a clip before scaling, and how its camera saw every frame.

world point --[K (R|t)]--> pixels of the recording --[crop, resize]--> u, v in [0, 1] of the picture
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from worldmodel.data.cameras import choose_camera
from worldmodel.data.clips import Aspect, ClipConfig, clip_offsets, crop_box
from worldmodel.data.layouts import JOINT
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.types import CameraMatrices, Episode, Extras, RowReader, Transitions


def clip_transitions(
    episode: Episode, start: int, robot_actions: Float[np.ndarray, "n a"], config: ClipConfig
) -> Transitions:
    """The transitions of the clip that starts at this recorded frame, given its raw actions.

    An episode starts with its first command, or with the pose measured at its first frame.
    """
    frames = start + clip_offsets(episode.fps, config)
    first, step = int(frames[0]), int(frames[1] - frames[0]) if len(frames) > 1 else 1
    before = episode.robot_actions[[max(first - 1 - step, 0), max(first - 1, 0)]]
    is_measured = episode.action_space == "measured_poses" and episode.state_names == episode.action_names
    if not first and is_measured and episode.robot_states is not None:
        before = episode.robot_states[[0, 0]]
    changes = episode.delta_actions or (episode.action_names if config.merge == "sum" else ())
    camera = choose_camera(episode, config.camera).name
    views, why = None, ""
    if JOINT in camera:
        why = f"the picture shows several cameras, {camera}: name one in data.clip.camera"
    elif camera not in episode.cameras:
        described = ", ".join(episode.cameras) or "no camera"
        why = f"intrinsics and extrinsics of camera {camera!r} are not known, the data describe {described}"
    else:
        size = config.height, config.width
        try:
            views = clip_projections(episode.cameras[camera], frames, size, config.aspect)
        except ValueError as error:
            raise ValueError(f"{episode.source}: {error}") from error
    return Transitions(
        torch.as_tensor(robot_actions),
        torch.as_tensor(before),
        episode.action_names,
        tuple(changes),
        views,
        why,
        episode.source,
        None if episode.robot_states is None else torch.as_tensor(episode.robot_states[first]).float(),
    )


def read_rows(reader: RowReader, clip: Transitions) -> Extras:
    """The rows of a clip; rows that differ from an action path's declaration are an error."""
    rows = reader.read(clip)
    expected = {name: (len(clip.actions), *row.shape, row.dtype) for name, row in reader.row_shapes.items()}
    got = {name: (*row.shape, row.dtype) for name, row in rows.items()}
    if got != expected:
        raise ValueError(f"{clip.source}: action paths declare rows {expected}, and read {got}")
    return rows


def scale_rows(rows: Extras, reader: RowReader, normalizer: ActionNormalizer, embodiment: str) -> Extras:
    """The rows as a model takes them: those that hold actions are scaled as actions are."""
    return {
        name: normalizer.normalize_tensor(part, embodiment) if reader.row_shapes[name].is_action else part
        for name, part in rows.items()
    }


def clip_projections(
    camera: CameraMatrices,
    frames: Sequence[int] | Int[np.ndarray, " n"],
    size: tuple[int, int],
    aspect: Aspect = "stretch",
) -> Float[Tensor, "n 3 4"]:
    """Projections from the world into a clip's picture, at these recorded frames.

    Args:
        camera: static, or one matrix for every frame of the recording.
        frames: indices in the recording.
        size: (height, width) of the clip's pictures.
        aspect: how they were resized from the recorded ones.
    """
    intrinsics, extrinsics = (
        _at_frames(np.asarray(matrix, np.float64), frames)
        for matrix in (camera.intrinsics, camera.extrinsics)
    )
    top, left, height, width = (0, 0, *camera.size)
    if aspect == "crop":
        top, left, height, width = crop_box(*camera.size, size[0] / size[1])
    picture = np.array([[1 / width, 0, -left / width], [0, 1 / height, -top / height], [0, 0, 1]])
    return torch.from_numpy((picture @ intrinsics @ extrinsics).astype(np.float32))


def _at_frames(matrix: np.ndarray, frames: Sequence[int] | np.ndarray) -> np.ndarray:
    if matrix.ndim == 2:
        return np.broadcast_to(matrix, (len(frames), *matrix.shape))
    if len(frames) and max(frames) >= len(matrix):
        raise ValueError(
            f"a moving camera needs matrices of frame {max(frames)}, got those of {len(matrix)} frames"
        )
    return matrix[np.asarray(frames, int)]
