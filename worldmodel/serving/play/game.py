"""One visitor's drive: the world model, the simulator under the same commands, and the recording."""

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from worldmodel.data.cameras import find_views
from worldmodel.data.clips import cut_clip
from worldmodel.environments.initial_states import Start, episode_start, open_session
from worldmodel.environments.spaces import WorldSpec
from worldmodel.environments.tabletop import TASK, TabletopScenes
from worldmodel.environments.uncertainty import UncertaintyMeter
from worldmodel.evaluation.action_edits import HOLD, edit_actions
from worldmodel.evaluation.held_out import shown_size
from worldmodel.locator.model import Locator
from worldmodel.models.config import InputSpec
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.pipelines.session import Session
from worldmodel.serving.memory import return_free_memory
from worldmodel.serving.play.ring_buffer import Moment, Tape
from worldmodel.serving.play.teleop import Inputs, Teleop
from worldmodel.types import (
    FRAMES_PER_LATENT,
    Episode,
    EpisodeSource,
    to_uint8,
    to_unit_range,
)

if TYPE_CHECKING:
    from robotwin_adapters.tabletop.drive import DrivenTabletop, TabletopState
    from robotwin_adapters.tabletop.simulate import Frame

BACK = 40  # blocks that can be undone
TRIM_EVERY = 200  # frames between two times that free memory is returned
KEPT_FRAMES = 1500  # length of the recording: three minutes of the desk model


@dataclass(frozen=True)
class Turn:
    """The result of one block of commands."""

    dream: UInt8[np.ndarray, "n H W 3"]
    beside: UInt8[np.ndarray, "n H W 3"] | None
    reading: dict[str, Any]  # numbers for the page


@dataclass(frozen=True)
class _Mark:
    """A state to return to."""

    session: Session
    simulator: "TabletopState | None"
    command: Float[np.ndarray, " a"]
    followed: int


class Game:
    """Steps the world model and the simulator, a block at a time."""

    def __init__(
        self,
        model: WorldModel,
        *,
        embodiment: str | None = None,
        task: str = TASK,
        dataset: EpisodeSource | None = None,
        num_inference_steps: int = 0,
        locator: Locator | None = None,
    ) -> None:
        """Create a game; the first scene is set by `reset` or `load`."""
        self.model, self.dataset, self.locator = model, dataset, locator
        self.spec = WorldSpec.of(model.contract, model.normalizer, embodiment)
        self.num_frames = model.config.num_given
        self.pipeline, self.num_inference_steps = RolloutPipeline(model), num_inference_steps
        self.task, self.scenes = task, _scenes(self.spec, task, self.num_frames)
        self.meter = UncertaintyMeter(model)
        self.simulator: DrivenTabletop | None = None
        self.episode: Episode | None = None
        self.num_made = self._followed = 0
        self._follow: tuple[np.ndarray, np.ndarray | None] | None = None  # commands, pictures
        self._followed_frames: np.ndarray | None = None
        self._marks: deque[_Mark] = deque(maxlen=BACK)
        self._unmeasured: tuple[Session, Tensor, Tensor] | None = None  # before the block, commands, frames
        self._measured: dict[str, Any] = {}
        self.moments = Tape(KEPT_FRAMES)

    @property
    def has_simulator(self) -> bool:
        """Whether new scenes can be simulated."""
        return self.scenes is not None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        height, width, _ = self.moments[-1].dream.shape
        return height, width

    @property
    def robots(self) -> tuple[str, ...]:
        """The robots of the model."""
        return tuple(self.model.normalizer.embodiments)

    def change_robot(self, name: str, seed: int) -> Turn:
        """Start a new scene with another robot of the model."""
        self._set_robot(name)
        return self.reset(seed)

    def _set_robot(self, name: str) -> None:
        self.spec = WorldSpec.of(self.model.contract, self.model.normalizer, name)
        self.scenes = _scenes(self.spec, self.task, self.num_frames)

    def reset(self, seed: int) -> Turn:
        """Start a new scene: simulated if possible, else at the beginning of a recorded episode.

        In a simulated scene the commands of the scripted expert can be followed until a key is pressed.
        """
        if self.scenes is None:
            if self.dataset is None or not len(self.dataset):
                raise ValueError(
                    f"no simulator shows {self.spec.camera} at {self.spec.fps:.3g} frames per second: name a "
                    "dataset with --dataset to take first frames from"
                )
            return self.load(seed % len(self.dataset), 0)
        self.simulator, self.episode = self.scenes.build(seed), None
        turn = self._begin(self.scenes.start_of(self.simulator), seed)
        self._follow = (self.scenes.expert(seed), None)
        return turn

    def load(self, number: int, frame: int) -> Turn:
        """Start at a frame of a recorded episode, which is followed until a key is pressed."""
        if self.dataset is None or not 0 <= number < len(self.dataset):
            have = 0 if self.dataset is None else len(self.dataset)
            raise ValueError(f"episode {number}: the dataset has {have}")
        episode = self.dataset[number]
        if episode.embodiment != self.spec.embodiment:
            self._set_robot(episode.embodiment)
        last = episode.num_frames - 1 - round((self.num_frames - 1) * episode.fps / self.spec.fps)
        start = episode_start(
            episode, min(max(frame, 0), max(last, 0)), self._shown_as(episode), self.num_frames
        )
        self.simulator, self.episode = None, episode
        turn = self._begin(start, number)
        self._follow = self._recorded(episode, int(start.facts["frame"]))
        return turn

    def step(self, inputs: Inputs, *, follow: bool = False) -> Turn:
        """Run one block of commands, from the keys or from the recording."""
        began = time.perf_counter()
        self._marks.append(self._mark())
        commands, beside, robot = self._commands(inputs, follow), None, None
        given = torch.from_numpy(commands)[None]
        made = self.session.step(given)
        dream = to_uint8(made[0]).permute(0, 2, 3, 1).contiguous().numpy()
        made_in = time.perf_counter() - began
        if self.simulator is not None:
            beside, robot = self._simulate(commands)
        elif self._followed_frames is not None:
            beside = self._followed_frames
        for number, command in enumerate(commands):
            shown = None if beside is None else beside[number]
            self.moments.append(
                Moment(dream[number], shown, command, None if robot is None else robot[number])
            )
        self.num_made += len(commands)
        self._unmeasured = (self._marks[-1].session, given, made)
        reading = {"seconds": made_in, "frames": self.num_made, "left": self._num_left}
        reading |= {**self._measured, **self._places()}
        return Turn(dream, beside, reading)

    def measure(self) -> dict[str, Any]:
        """Uncertainty and errors of the last block, shown with the next one so that they cause no delay."""
        if self._unmeasured is None:
            return self._measured
        before, given, made = self._unmeasured
        signals = {name: float(values[0]) for name, values in self.meter(before, given, made).items()}
        shown = self.moments[-1]
        level = {"distrust": self.meter.level(signals)}
        self._measured = {**signals, **level, **self._errors(shown.dream, shown.beside)}
        self._unmeasured = None
        if self.num_made % TRIM_EVERY == 0:
            return_free_memory()
        return self._measured

    def back(self) -> Turn:
        """Undo the last block."""
        if not self._marks:
            raise ValueError("nothing to take back")
        mark = self._marks.pop()
        self.session, self.teleop.command, self._followed = mark.session, mark.command, mark.followed
        if self.simulator is not None and mark.simulator is not None:
            self.simulator.restore(mark.simulator)
        for _ in range(min(FRAMES_PER_LATENT, len(self.moments) - 1)):
            self.moments.pop()
        self.num_made = max(0, self.num_made - FRAMES_PER_LATENT)
        self._unmeasured = None
        return self._shown({"frames": self.num_made, **self._places()})

    def _begin(self, start: Start, seed: int) -> Turn:
        self.start = start
        self.session = open_session(self.pipeline, [start], [seed], self.num_inference_steps)
        self.teleop = Teleop(self.spec, start.camera)
        self.teleop.command = np.asarray(start.state, np.float64).copy()
        self.num_made = self._followed = 0
        self._follow = self._followed_frames = None
        self._marks.clear()
        self.moments.clear()
        self._unmeasured, self._measured = None, {}
        robot = None if self.simulator is None else self.simulator.frame
        picture = start.frames[-1]
        beside = None if self.simulator is None else picture
        first = Moment(picture, beside, self.teleop.command.copy(), robot)
        self.moments.append(first)
        return self._shown({"frames": 0, "start": start.source, **self._places()})

    def _shown(self, reading: dict[str, Any]) -> Turn:
        last = self.moments[-1]
        beside = None if last.beside is None else last.beside[None]
        return Turn(last.dream[None], beside, reading)

    @property
    def _num_left(self) -> int:
        """Commands that can still be followed, in whole blocks."""
        left = 0 if self._follow is None else len(self._follow[0]) - self._followed
        return left // FRAMES_PER_LATENT * FRAMES_PER_LATENT

    def _mark(self) -> _Mark:
        simulator = None if self.simulator is None else self.simulator.save()
        return _Mark(self.session.fork(), simulator, self.teleop.command.copy(), self._followed)

    def _commands(self, inputs: Inputs, follow: bool) -> Float[np.ndarray, "n a"]:
        before = self.teleop.command.copy()
        asked, do = self._asked(inputs, follow), dict.fromkeys(inputs.hold, HOLD)
        commands = edit_actions(asked, self.spec.action_names, do, before=before)
        self.teleop.command = commands[-1].copy()
        return commands

    def _asked(self, inputs: Inputs, follow: bool) -> Float[np.ndarray, "n a"]:
        self._followed_frames = None
        if not inputs.is_idle:  # from here on the drive differs from the followed one
            self._follow = None
        if follow and self._follow is not None and self._num_left:
            part = slice(self._followed, self._followed + FRAMES_PER_LATENT)
            actions, frames = self._follow
            self._followed += FRAMES_PER_LATENT
            self._followed_frames = None if frames is None else frames[part]
            return actions[part]
        return self.teleop.block(inputs, FRAMES_PER_LATENT)

    def _shown_as(self, episode: Episode) -> InputSpec:
        """Size and rate of shown frames: the model's; with a picture head the size is the camera's."""
        contract = self.model.contract
        if self.model.head is None:
            return contract
        clip = contract.clip_config()
        height, width = shown_size(find_views(episode, clip.camera)[0].size, clip)
        return replace(contract, height=height, width=width)

    def _recorded(self, episode: Episode, frame: int) -> tuple[np.ndarray, np.ndarray]:
        """Commands and pictures after a frame, at the model's rate."""
        left = int((episode.num_frames - 1 - frame) * self.spec.fps / episode.fps + 1e-6)
        count = 1 + FRAMES_PER_LATENT * (left // FRAMES_PER_LATENT)
        frames, actions = cut_clip(episode, frame, self._shown_as(episode).clip_config(num_frames=count))
        known = self.num_frames - 1
        return actions[known:].astype(np.float64), frames[known + 1 :].permute(0, 2, 3, 1).numpy()

    def _simulate(self, commands: np.ndarray) -> tuple[np.ndarray, "list[Frame]"]:
        assert self.simulator is not None
        pictures, robot = [], []
        for command in commands:
            self.simulator.step(command)
            pictures.append(self.simulator.pictures()[self.spec.camera])
            robot.append(self.simulator.frame)
        return np.stack(pictures), robot

    def _errors(self, dream: np.ndarray, beside: np.ndarray | None) -> dict[str, Any]:
        """Difference of the last frame to the truth: in gray levels, and of the hands in pixels."""
        if beside is None:
            return {}
        gray = float(np.abs(dream.astype(np.int16) - beside).mean())
        if self.locator is None:
            return {"error": gray}
        pair = torch.from_numpy(np.stack([dream, beside])).permute(0, 3, 1, 2)
        found = self.locator.locate(to_unit_range(pair))
        gaps = (found.points[0, :2] - found.points[1, :2]).norm(dim=-1).tolist()
        is_seen = found.is_visible[1, :2].tolist()  # a hand outside the picture cannot be compared
        return {
            "error": gray,
            "gap": [round(g, 2) if seen else None for g, seen in zip(gaps, is_seen, strict=True)],
        }

    def _places(self) -> dict[str, Any]:
        """Positions of the hands in the picture, as shares of its width and height, for dragging."""
        if self.simulator is None:
            return {}
        intrinsics, extrinsics = self.simulator.camera_matrices(self.spec.camera)
        places = {}
        for side, point in self.simulator.tool_places().items():
            u, v, depth = intrinsics @ (extrinsics @ np.append(point, 1.0))
            places[side] = [float(u / depth / self.spec.width), float(v / depth / self.spec.height)]
        return {"hands": places}


def _scenes(spec: WorldSpec, task: str, num_frames: int) -> TabletopScenes | None:
    scenes = TabletopScenes(spec, task, num_frames)
    try:
        scenes.build(0)
    except ValueError:  # another camera, another robot, or no simulator installed
        return None
    return scenes
