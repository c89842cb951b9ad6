"""Where an episode begins: first frames and last command, from a dataset, given pictures, or simulated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, UInt8

from worldmodel.data.cameras import choose_camera
from worldmodel.data.clips import cut_clip, resize_frames
from worldmodel.data.video import MissingVideoError
from worldmodel.environments.spaces import WorldSpec
from worldmodel.models.config import InputSpec
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.pipelines.session import Session
from worldmodel.types import CameraMatrices, Episode, EpisodeSource


@dataclass(frozen=True)
class Start:
    """The known beginning of an episode."""

    frames: UInt8[np.ndarray, "t H W 3"]  # oldest first
    state: Float[np.ndarray, " a"]  # the last command
    embodiment: str
    past_actions: Float[np.ndarray, "n a"] | None = None  # between the frames; None: the state, held
    camera: CameraMatrices | None = None  # None: not known
    measured: Float[np.ndarray, " s"] | None = None  # state of the robot at the first frame; None: not known
    task: str = ""
    objects: Float[np.ndarray, "2 3"] | None = None  # places of A and B (m, world), for judges; None: unknown
    source: str = ""  # what to name in messages
    facts: Mapping[str, Any] = field(default_factory=dict)  # for `info`

    @property
    def known_actions(self) -> Float[np.ndarray, "n a"]:
        """One for each transition between the frames."""
        if self.past_actions is not None:
            return self.past_actions
        return np.repeat(self.state[None], len(self.frames) - 1, axis=0)


class StartSource(Protocol):
    """Gives the start of an episode for a seed, the same one every time."""

    def __call__(self, seed: int) -> Start: ...


@dataclass(frozen=True)
class DatasetStarts:
    """A random frame of a random episode of one robot of a dataset."""

    source: EpisodeSource
    contract: InputSpec
    spec: WorldSpec
    num_frames: int = 1  # 1 + 4k
    first_frame_only: bool = False  # start where the recording starts

    def __call__(self, seed: int) -> Start:
        rng = np.random.default_rng(seed)
        for number in rng.permutation(len(self.source)):
            try:
                episode = self.source[int(number)]
            except MissingVideoError:
                continue
            if episode.embodiment != self.spec.embodiment:
                continue
            last = episode.num_frames - self._span(episode)
            frame = 0 if self.first_frame_only else int(rng.integers(max(1, last + 1)))
            return episode_start(episode, frame, self.contract, self.num_frames)
        raise ValueError(f"{self.source.name}: no episode of robot {self.spec.embodiment!r}")

    def _span(self, episode: Episode) -> int:
        return 1 + round((self.num_frames - 1) * episode.fps / self.contract.fps)


def episode_start(
    episode: Episode, frame: int, contract: InputSpec, num_frames: int = 1, task: str = ""
) -> Start:
    """The start at a recorded frame, cut as the contract asks."""
    clip = contract.clip_config(num_frames=num_frames)
    frames, commands = cut_clip(episode, frame, clip)
    camera = choose_camera(episode, clip.camera).name
    if len(commands):
        state = commands[-1]
    elif frame > 0:
        state = episode.robot_actions[frame - 1]
    else:
        state = _first_state(episode)
    return Start(
        frames.permute(0, 2, 3, 1).numpy(),
        np.asarray(state, np.float64),
        episode.embodiment,
        np.asarray(commands, np.float64),
        camera=episode.cameras.get(camera),
        measured=None if episode.robot_states is None else episode.robot_states[frame],
        task=task or episode.task,
        source=episode.source,
        facts={"episode": episode.uid, "frame": frame},
    )


def _first_state(episode: Episode) -> np.ndarray:
    """Where the robot stands before its first command; where states are something else, that command."""
    states = episode.robot_states
    if states is not None and states.shape[1] == episode.robot_actions.shape[1]:
        return states[0]
    return episode.robot_actions[0]


def given_starts(
    options: Mapping[str, Any], count: int, contract: InputSpec, spec: WorldSpec, num_frames: int
) -> list[Start] | None:
    """The starts that reset options name: `starts`, `episode` (and `frame`), or `frames` (and `state`)."""
    if "starts" in options:
        starts = list(options["starts"])
        if len(starts) != count:
            raise ValueError(f"options['starts']: expected {count}, one per row to reset, got {len(starts)}")
        return starts
    if "episode" in options:
        frame = int(options.get("frame", 0))
        return [episode_start(options["episode"], frame, contract, num_frames)] * count
    if "frames" in options:
        return _from_pictures(options, count, contract, spec, num_frames)
    return None


def _from_pictures(
    options: Mapping[str, Any], count: int, contract: InputSpec, spec: WorldSpec, num_frames: int
) -> list[Start]:
    frames = np.asarray(options["frames"])
    if frames.dtype != np.uint8 or frames.ndim not in (3, 4, 5) or frames.shape[-1] != 3:
        raise ValueError(
            "options['frames']: expected uint8 [H W 3], [t H W 3] or one clip per row [n t H W 3], "
            f"got {frames.dtype} {list(frames.shape)}"
        )
    clips = frames if frames.ndim == 5 else np.broadcast_to(_clip(frames), (count, *_clip(frames).shape))
    if len(clips) != count:
        raise ValueError(f"options['frames']: expected {count} clips, one per row to reset, got {len(clips)}")
    middle = (spec.low + spec.high) / 2
    states = np.broadcast_to(np.asarray(options.get("state", middle), np.float64), (count, len(spec.low)))
    return [
        Start(
            _sized(clip, contract, num_frames),
            state,
            spec.embodiment,
            camera=options.get("camera"),
            measured=options.get("measured"),
            task=str(options.get("task", "")),
            objects=options.get("objects"),
            source="options['frames']",
        )
        for clip, state in zip(clips, states, strict=True)
    ]


def _clip(frames: np.ndarray) -> np.ndarray:
    return frames[None] if frames.ndim == 3 else frames


def _sized(clip: np.ndarray, contract: InputSpec, num_frames: int) -> np.ndarray:
    """In the model's size, and long enough: the oldest frame is repeated, as if nothing had moved."""
    sized = resize_frames(clip, contract.height, contract.width, contract.aspect)
    frames = sized.permute(0, 2, 3, 1).numpy()[-num_frames:]
    return np.concatenate([np.repeat(frames[:1], num_frames - len(frames), axis=0), frames])


def open_session(
    pipeline: RolloutPipeline, starts: Sequence[Start], seeds: Sequence[int], num_inference_steps: int = 0
) -> Session:
    """Open a batched rollout session from initial states, with one noise seed for each."""
    frames = torch.from_numpy(np.stack([start.frames for start in starts])).permute(0, 1, 4, 2, 3)
    past = np.stack([start.known_actions for start in starts])
    return pipeline.open(
        frames,
        past if past.shape[1] else None,
        start_state=[start.measured for start in starts],
        start_action=None if past.shape[1] else np.stack([start.state for start in starts])[:, None],
        embodiment=[start.embodiment for start in starts],
        num_inference_steps=num_inference_steps,
        generator=[torch.Generator().manual_seed(seed) for seed in seeds],
        camera=[start.camera for start in starts],
    )


def seeds_of(seed: int | Sequence[int | None] | None, count: int, rng: np.random.Generator) -> list[int]:
    """One seed per row, by gymnasium's habit: a number counts up over the rows."""
    if isinstance(seed, int | np.integer):
        return [int(seed) + row for row in range(count)]
    given = [None] * count if seed is None else list(seed)
    if len(given) != count:
        raise ValueError(f"expected {count} seeds, one per row, got {len(given)}")
    return [int(rng.integers(2**31)) if one is None else int(one) for one in given]
