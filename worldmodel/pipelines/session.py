"""A video that goes on as actions come: open a session, step it, fork it.

stream = RolloutPipeline(model).open(first_frames, embodiment="heron")
frames = stream.step(actions)       # [b 4 3 H W] for [b 4 raw] actions
other = stream.fork()               # what if? leaves `stream` as it is
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.models.model import WorldModel
from worldmodel.pipelines.commands import Cameras, RawActions, latest_commands, read_commands
from worldmodel.pipelines.sampling import Generators, evaluation_mode
from worldmodel.types import FRAMES_PER_LATENT, Actions, CameraMatrices, map_tensors


@runtime_checkable
class Stream(Protocol):
    """What a session needs of the thing that makes its frames."""

    generator: Generators | None

    def advance(self, actions: Actions, num_actions: int) -> Float[Tensor, "b n 3 H W"]:
        """The frames that so many actions lead to."""

    def copies(self, count: int) -> "Stream":
        """The same stream with every sample so many times."""


class Session:
    """An open video of `RolloutPipeline.open`; every sample of the batch goes on at once.

    Examples:
        >>> import torch
        >>> from worldmodel import RolloutPipeline, WorldModel
        >>> pipeline = RolloutPipeline(WorldModel.from_pretrained("desk"))
        >>> stream = pipeline.open(torch.rand(1, 1, 3, 64, 64), embodiment="heron")
        >>> frames = stream.step(torch.zeros(1, 4, 16))
        >>> tuple(frames.shape), stream.num_frames
        ((1, 4, 3, 64, 64), 5)
    """

    def __init__(
        self,
        model: WorldModel,
        stream: Stream,
        embodiments: Sequence[str],
        last_frame: Float[Tensor, "b 3 H W"],
        num_frames: int,
        cameras: Cameras = None,
        commands: Float[Tensor, "b 2 raw"] | None = None,
    ) -> None:
        self.model, self.embodiments, self.cameras = model, tuple(embodiments), cameras
        self.commands = commands  # the latest two in the robot's own units; none: not known
        self.last_frame = last_frame  # the latest, in [0, 1]
        self.num_frames = num_frames  # so far, given ones included
        self._stream = stream

    @torch.no_grad()
    def step(
        self,
        robot_actions: RawActions | None = None,
        *,
        latent_actions: Float[Tensor, "b n k"] | None = None,
        num_actions: int = FRAMES_PER_LATENT,
    ) -> Float[Tensor, "b n 3 H W"]:
        """The next frames, in [0, 1].

        Args:
            robot_actions: 4 commands in the robot's own units, or a multiple; none: unknown.
            latent_actions: instead of robot actions (lacg).
            num_actions: how many, when neither is given.
        """
        given = robot_actions if latent_actions is None else latent_actions
        count = num_actions if given is None else given.shape[1]
        self._check(given, count)
        if robot_actions is None or latent_actions is not None:
            return self.advance(Actions(latent=latent_actions), count)
        before, first = self.commands, self.num_frames - 1
        actions = read_commands(
            self.model, robot_actions, self.embodiments, self.cameras, before=before, first_frame=first
        )
        frames = self.advance(actions, count)
        self.commands = latest_commands(before, torch.as_tensor(robot_actions))
        return frames

    @torch.no_grad()
    def advance(self, actions: Actions, num_actions: int) -> Float[Tensor, "b n 3 H W"]:
        """As `step`, for robot actions that are normalized and padded."""
        with evaluation_mode(self.model):
            frames = self._stream.advance(on_device(actions, self.last_frame), num_actions)
        # A copy: a view would keep the frames of the whole step.
        self.last_frame, self.num_frames = frames[:, -1].clone(), self.num_frames + num_actions
        return frames

    def fork(self, copies: int = 1, *, generator: Generators | None = None) -> "Session":
        """A session that goes on from here on its own, each sample so many times side by side.

        It draws the noise that this one would draw: forks that hear the same actions make the same frames.
        With a generator of its own it draws other noise.
        """
        stream = self._stream.copies(copies)
        stream.generator = _cloned(self._stream.generator, copies) if generator is None else generator
        names = [name for name in self.embodiments for _ in range(copies)]
        cameras = self.cameras
        if cameras is not None and not isinstance(cameras, CameraMatrices):
            cameras = [camera for camera in cameras for _ in range(copies)]
        last = self.last_frame.repeat_interleave(copies, 0)
        commands = map_tensors(self.commands, lambda part: part.repeat_interleave(copies, 0))
        return Session(self.model, stream, names, last, self.num_frames, cameras, commands)

    def _check(self, given: RawActions | None, count: int) -> None:
        if count < 1 or count % FRAMES_PER_LATENT:
            raise ValueError(
                f"a step takes {FRAMES_PER_LATENT} actions or a multiple (one latent frame each), got {count}"
            )
        if given is not None and len(given) != len(self.last_frame):
            raise ValueError(
                f"expected actions of {len(self.last_frame)} samples, as the session was opened with, "
                f"got {len(given)}"
            )


def on_device(actions: Actions, like: Tensor) -> Actions:
    """The same actions on the device of another tensor."""
    moved: Actions = map_tensors(actions, lambda part: part.to(like.device))
    return moved


def _cloned(generator: Generators | None, copies: int) -> Generators | None:
    if generator is None:
        return None
    if isinstance(generator, torch.Generator):
        return generator.clone_state()
    return [one.clone_state() for one in generator for _ in range(copies)]
