"""The types that cross package borders, the one axis alphabet and its arithmetic.

Axes: b batch, t frames, f latent frames, c h w latent channels / height / width, H W pixels, s tokens,
d width, k latent-action size, a robot-action size, n samples or transitions.
T = 4 (F - 1) + 1 frames have T - 1 transitions and F latent frames:

    frame        0   1   2   3   4   5   6   7   8
    transition     0   1   2   3   4   5   6   7          action i leads from frame i to frame i + 1
    latent frame 0 |------- 1 -------|------- 2 -------|  latent j owns transitions 4(j-1) .. 4j-1
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from worldmodel.checked import is_finite, shorten

SLOWEST, FASTEST = 1e-3, 1e4  # plausible frames per second of a recording
FRAMES_PER_LATENT = 4  # temporal compression of the Wan VAE


def num_latent_frames(num_frames: int) -> int:
    """F for T = 4 (F - 1) + 1 frames; other lengths have no whole number of latent frames."""
    if num_frames < 1 or (num_frames - 1) % FRAMES_PER_LATENT:
        raise ValueError(f"a clip has 1 + 4k frames (1, 5, 9, 13, 17, ...), got {num_frames}")
    return (num_frames - 1) // FRAMES_PER_LATENT + 1


def num_video_frames(num_latents: int) -> int:
    """T = 4 (F - 1) + 1 frames for F latent frames; of `history` latent frames, the frames that are given."""
    return FRAMES_PER_LATENT * (num_latents - 1) + 1


def latent_frame_actions(actions: Float[Tensor, "b n u"]) -> Float[Tensor, "b f g"]:
    """Concatenate the four actions of each latent frame; zeros for latent frame 0, which has none."""
    groups = actions.unflatten(1, (-1, FRAMES_PER_LATENT)).flatten(2)
    return torch.nn.functional.pad(groups, (0, 0, 1, 0))


def evenly_spread(num_items: int, count: int, *, round_down: bool = False) -> list[int]:
    """At most `count` of the numbers 0 .. num_items - 1, evenly spread, first and last among them.

    Places between two items go to the nearer one. `round_down` takes the earlier one, for choices that are
    part of stored keys and published numbers.

    Example:
        >>> evenly_spread(100, 3)
        [0, 50, 99]
        >>> evenly_spread(100, 3, round_down=True)
        [0, 49, 99]
    """
    places = np.linspace(0, num_items - 1, min(count, num_items))
    return np.unique((places if round_down else places.round()).astype(int)).tolist()


def to_unit_range(images: UInt8[Tensor, "*any"] | Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """RGB in [0, 1] as float32: bytes are divided by 255, other numbers are in [0, 1] already."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def to_uint8(images: Float[Tensor, "*any"]) -> UInt8[Tensor, "*any"]:
    """Convert RGB in [0, 1] to the nearest integers in 0 .. 255; values outside are clipped."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


@runtime_checkable
class FrameReader(Protocol):
    """The frames of one camera, decoded only when read."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        ...

    def __len__(self) -> int: ...

    def read(self, indices: Sequence[int]) -> UInt8[np.ndarray, "n H W 3"]:
        """The RGB frames at these positions, in this order; repeats are allowed."""
        ...


@dataclass(frozen=True)
class CameraMatrices:
    """How a camera projects and where it stood: one matrix for all frames, or one for each."""

    intrinsics: Float[np.ndarray, "... 3 3"]  # pixels of the recorded picture
    extrinsics: Float[np.ndarray, "... 3 4"]  # world to camera, OpenCV axes (z ahead, y down), metres
    size: tuple[int, int]  # (height, width) of the recorded picture, pixels


@dataclass(frozen=True)
class Episode:
    """One recorded episode: T frames per camera and the T - 1 robot actions between them."""

    uid: (
        str  # names the episode inside its dataset, on every machine alike ("data/episode12"); splits hash it
    )
    source: str  # the file to name in messages
    frames: Mapping[str, FrameReader]  # camera name -> its frames, all of the same length
    robot_actions: Float[np.ndarray, "n a"]  # action i leads from frame i to frame i + 1
    action_names: tuple[str, ...]  # one per action dimension
    fps: float  # frames per second of the recording
    embodiment: str
    task: str = ""
    robot_states: Float[np.ndarray, "t state"] | None = None  # as recorded beside each frame
    state_names: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what the reader decided or noticed, in words
    action_space: str = ""  # joint_commands, pose_commands or measured_poses; empty: the data do not say
    cameras: Mapping[str, CameraMatrices] = field(default_factory=dict)  # of those that the data describe
    delta_actions: tuple[str, ...] | None = None  # action dimensions that hold changes; none: not known
    frame_times: Float[np.ndarray, " t"] | None = None  # seconds, where recorded unevenly; none: by fps

    def __post_init__(self) -> None:
        if not is_finite(self.fps) or not SLOWEST <= self.fps <= FASTEST:
            raise ValueError(
                f"{self.source}: fps is {shorten(self.fps)}, expected {SLOWEST} to {FASTEST} per second"
            )

    @property
    def num_frames(self) -> int:
        """Number of frames, T."""
        return self.robot_actions.shape[0] + 1


@runtime_checkable
class EpisodeSource(Protocol):
    """A dataset on disk: episodes in a fixed order, each opened when it is indexed."""

    @property
    def name(self) -> str:
        """Short name of the dataset, for tables and cache keys."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Episode: ...


class Row(NamedTuple):
    """What one row of an extra looks like."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    is_action: bool = False  # in the robot's own units where it is read; the model gets it scaled as actions


# What action paths bring beside the actions, by name: [b n ...], one row per transition, as robot_actions;
# of a single clip [n ...].
Extras = dict[str, Tensor]


@dataclass(frozen=True)
class Transitions:
    """n transitions of one sample before scaling: of a recorded clip, or of a step of a session."""

    actions: Float[Tensor, "n a"]  # in the robot's own units; may require grad (diagnostics)
    before: Float[Tensor, "2 a"]  # the two commands in force before the first; unknown: the first itself
    names: tuple[str, ...]  # one per action dimension
    changes: tuple[str, ...] = ()  # dimensions that hold changes, not absolute values
    # One for each of the n + 1 frames: (x, y, z, 1) of the world -> (u depth, v depth, depth); u, v in [0, 1]
    # span the picture of the clip.
    views: Float[Tensor, "m 3 4"] | None = None
    why_no_views: str = ""  # for messages
    source: str = ""  # the file to name in messages
    state: Float[Tensor, " s"] | None = None  # measured at the first frame, in the robot's own units


@runtime_checkable
class RowReader(Protocol):
    """Settings of action paths, as the data and the pipelines know them: what is read of a clip."""

    @property
    def row_shapes(self) -> Mapping[str, Row]:
        """Shape and type of one row of each extra input, by name; empty: the paths read actions alone."""
        ...

    @property
    def versions(self) -> Mapping[str, int]:
        """Of the rows of every path that reads; part of the key of cached latents."""
        ...

    def read(self, clip: Transitions) -> Extras:
        """The rows of a clip; a ValueError says what is missing, and what to set instead."""
        ...


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor in dicts, tuples, lists and dataclasses; leave the rest."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {name: map_tensors(part, change) for name, part in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(map_tensors(part, change) for part in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: map_tensors(getattr(tree, f.name), change) for f in fields(tree)})
    return tree


@dataclass(frozen=True)
class Actions:
    """What drives n transitions, as the model takes it; None: unknown."""

    robot: Float[Tensor, "b n a"] | None = None  # scaled and padded
    latent: Float[Tensor, "b n k"] | None = None  # instead (lacg)
    extras: Extras = field(default_factory=dict)

    @property
    def values(self) -> Float[Tensor, "b n u"] | None:
        """Robot or latent actions, whichever there are."""
        return self.latent if self.robot is None else self.robot

    @property
    def count(self) -> int | None:
        """Number of transitions; None: nothing is known of them."""
        known = [part for part in (self.values, *self.extras.values()) if part is not None]
        return known[0].shape[1] if known else None

    def __getitem__(self, rows: slice) -> "Actions":
        """Those of some transitions."""
        found: Actions = map_tensors(self, lambda part: part[:, rows])
        return found

    def concat(self, others: "Actions") -> "Actions":
        """These and the others after them, where both are known."""
        pairs = ((self.robot, others.robot), (self.latent, others.latent))
        robot, latent = (b if a is None or b is None else torch.cat([a, b], 1) for a, b in pairs)
        extras = {
            name: torch.cat([self.extras[name], rows], 1) if name in self.extras else rows
            for name, rows in others.extras.items()
        }
        return Actions(robot, latent, extras)

    def pad_last(self, count: int) -> "Actions":
        """Pad to `count` transitions by repeating the last one."""

        def padded(part: Tensor) -> Tensor:
            missing = max(0, count - part.shape[1])
            return torch.cat([part, part[:, -1:].expand(-1, missing, *part.shape[2:])], 1)

        held: Actions = map_tensors(self, padded)
        return held


@dataclass(frozen=True)
class Clip:
    """A training example: T frames and/or their latents, with T - 1 normalized, padded robot actions."""

    robot_actions: Float[Tensor, "n a"]  # in [-1, 1], zeros in padded dimensions
    action_mask: Bool[Tensor, " a"]  # True where the embodiment has this dimension
    embodiment: int  # index into the embodiment table of the dataset
    source: str  # "file#first_frame"
    frames: UInt8[Tensor, "t 3 H W"] | None = None
    latents: Float[Tensor, "c f h w"] | None = None
    extras: Extras = field(default_factory=dict)  # rows of the action paths that read more than actions
    task: str = ""  # name of the task, where the data say it


@dataclass(frozen=True)
class ClipBatch:
    """Clips stacked along b; same meaning as in Clip."""

    robot_actions: Float[Tensor, "b n a"]
    action_mask: Bool[Tensor, "b a"]
    embodiment: Int[Tensor, " b"]
    sources: tuple[str, ...]
    frames: UInt8[Tensor, "b t 3 H W"] | None = None
    latents: Float[Tensor, "b c f h w"] | None = None
    extras: Extras = field(default_factory=dict)
    tasks: tuple[str, ...] = ()

    def __getitem__(self, which: slice) -> "ClipBatch":
        """Some of the clips."""
        some: ClipBatch = map_tensors(self, lambda part: part[which])
        return replace(some, sources=self.sources[which], tasks=self.tasks[which])

    def to(self, device: torch.device | str) -> "ClipBatch":
        """The same batch on another device."""
        moved: ClipBatch = map_tensors(self, lambda part: part.to(device, non_blocking=True))
        return moved

    def pin_memory(self) -> "ClipBatch":
        """The same batch in page-locked memory, for copies to a GPU in the background (DataLoader's hook)."""
        pinned: ClipBatch = map_tensors(self, Tensor.pin_memory)
        return pinned

    @property
    def batch_size(self) -> int:
        """Number of clips."""
        return self.robot_actions.shape[0]


@dataclass(frozen=True)
class RolloutResult:
    """Generated video: history frames first, then what the model predicted."""

    frames: Float[Tensor, "b t 3 H W"]  # RGB in [0, 1]
    num_history: int  # leading frames that were given, not generated


@dataclass(frozen=True)
class Losses:
    """The return value of a training step: the scalar to minimize, and unweighted terms (detached) to log."""

    total: Float[Tensor, ""]
    parts: Mapping[str, Float[Tensor, ""]]
