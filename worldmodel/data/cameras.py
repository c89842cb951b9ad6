"""Selects the camera of an episode: the same rule for `inspect`, training, evaluation and diagnostics.

A picture may show several cameras (`layouts.py`); its name is then theirs, joined by a plus.

1. the camera named in the settings (`data.clip.camera`, `--camera`, the model's contract); 2. the only camera
there is; 3. the first of the episode. Readers put the overview camera first and wrist cameras last.
"""

from dataclasses import dataclass

from worldmodel.data.layouts import JOINT
from worldmodel.types import Episode, FrameReader

Cameras = str | tuple[str, ...] | None  # as in the settings: one, several or none


UNNAMED = "no camera was named"


@dataclass(frozen=True)
class CameraChoice:
    """A camera of an episode, and why it was chosen."""

    name: str
    reason: str


def choose_camera(episode: Episode, camera: Cameras = None) -> CameraChoice:
    """Select a camera by the rule of this module; `camera` matches a name in full or at its end."""
    names = tuple(episode.frames)
    if isinstance(camera, tuple):
        return CameraChoice(JOINT.join(_named(episode, one) for one in camera), "named in the settings")
    if camera:
        return CameraChoice(_named(episode, camera), "named in the settings")
    if not names:
        raise ValueError(f"{episode.source}: no camera in the episode")
    if len(names) == 1:
        return CameraChoice(names[0], "the only camera")
    listed = ", ".join(names)
    reason = f"{UNNAMED}, and it is the first of {listed}, where wrist cameras come last"
    return CameraChoice(names[0], reason)


def find_camera(episode: Episode, camera: str | None = None) -> FrameReader:
    """The frames of the chosen camera."""
    return episode.frames[choose_camera(episode, camera).name]


def find_views(episode: Episode, camera: Cameras = None) -> tuple[FrameReader, ...]:
    """The frames of every camera that a picture shows, in the order of the layout."""
    names = camera if isinstance(camera, tuple) else (choose_camera(episode, camera).name,)
    return tuple(episode.frames[_named(episode, name)] for name in names)


def _named(episode: Episode, camera: str) -> str:
    if camera in episode.frames:
        return camera
    # A set may call the same camera "observation.images.top" in one place and "top" in another.
    close = [name for name in episode.frames if name.endswith(camera) or camera.endswith(f".{name}")]
    if len(close) != 1:
        found = ", ".join(episode.frames) or "no camera"
        raise ValueError(
            f"{episode.source}: camera {camera!r} expected, found {found}; name one of these in "
            "data.clip.camera (training) or --camera (commands), or give it that name in a mapping: cameras"
        )
    return close[0]
