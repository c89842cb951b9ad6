"""A video that goes on as actions come: open a session, step it, fork it.

stream = RolloutPipeline(model).open(first_frames, embodiment="heron")
frames = stream.step(actions)       # [b 4 3 H W] for [b 4 raw] actions
other = stream.fork()               # what if? leaves `stream` as it is

Commands and frames may come from any device. `step` returns frames on the CPU, and `advance` on the model's
device. On a GPU both compute in bfloat16, unless the pipeline has `mixed_precision="no"`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.device import inference
from worldmodel.diffusion.euler import Generators
from worldmodel.models.actions.published.kept_first import history_frames
from worldmodel.models.compositor import Composed, KnownFrame, renewed
from worldmodel.models.model import WorldModel
from worldmodel.models.picture_head import HeadState, resized
from worldmodel.pipelines import causal, whole_clip
from worldmodel.pipelines.causal import CausalState
from worldmodel.pipelines.commands import (
    Cameras,
    RawActions,
    StartState,
    cameras_of,
    check_actions,
    latest_commands,
    read_commands,
    start_states,
)
from worldmodel.types import FRAMES_PER_LATENT, Actions, map_tensors


@dataclass(frozen=True)
class VideoState:
    """State of an open video; the first axis of its tensors is the batch."""

    recent: Float[Tensor, "b t 3 h w"]  # the latest frames at the model's size, from which it goes on
    past: Actions  # that lead from each of them to the next
    num_frames: int  # so far, given ones included
    command: Float[Tensor, "b 2 raw"] | None = None  # the latest two in the robot's units; None: not known
    causal: CausalState | None = None  # of a causal model
    head: HeadState | None = None  # of a model with a picture head: frames at the size of the given ones
    hands: KnownFrame | None = None  # of a model with a compositor


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
        state: VideoState,
        sampler: whole_clip.Sampler,
        embodiments: Sequence[str] = (),
        camera: Cameras = None,
        start_state: StartState | None = None,
    ) -> None:
        self.model, self.state, self.sampler = model, state, sampler
        self.embodiments, self.cameras = tuple(embodiments), cameras_of(camera, len(state.recent))
        self.start_states = start_states(start_state, len(state.recent))

    @property
    def num_frames(self) -> int:
        """Number of frames, including the given ones."""
        return self.state.num_frames

    @property
    def block(self) -> int:
        """Frames that are generated at once."""
        if self.state.causal is not None:
            return FRAMES_PER_LATENT
        return self.model.contract.num_frames - self.state.recent.shape[1]

    def step(
        self,
        robot_actions: RawActions | None = None,
        *,
        latent_actions: Float[Tensor, "b n k"] | None = None,
        num_actions: int = FRAMES_PER_LATENT,
        camera: Cameras = None,
    ) -> Float[Tensor, "b n 3 H W"]:
        """The next frames, in [0, 1], on the CPU.

        Args:
            robot_actions: 4 commands in the robot's own units, or a multiple; None: unknown.
            latent_actions: instead of robot actions (lacg).
            num_actions: how many, when neither is given.
            camera: of this step alone: static, or with a matrix for the latest frame and each new one. None:
                as the session was opened.
        """
        given = robot_actions if latent_actions is None else latent_actions
        count = num_actions if given is None else given.shape[1]
        self._check(given, count)
        actions, command = Actions(latent=latent_actions), None
        if robot_actions is not None:
            read = read_commands(
                self.model,
                robot_actions,
                self.embodiments,
                self.cameras if camera is None else camera,
                before=self.state.command,
                first_frame=self.num_frames - 1 if camera is None else 0,
                start_state=self.start_states,
            )
            actions = replace(read, latent=latent_actions)
            command = latest_commands(self.state.command, robot_actions)
        frames = self.advance(actions, count)
        self.state = replace(self.state, command=command)
        return frames.cpu()

    @torch.no_grad()
    def advance(self, actions: Actions, num_actions: int) -> Float[Tensor, "b n 3 H W"]:
        """As `step`, for actions as the model takes them, on its device.

        The last raw command is forgotten: for a later `step` its first action stands in.
        """
        check_actions(self.model, actions)
        self._check(actions.values, num_actions)
        device = self.state.recent.device
        actions = map_tensors(actions, lambda part: part.to(device))
        with inference(self.model, device, self.sampler.precision):
            made = [
                self._generate(actions[start : start + self.block], min(self.block, num_actions - start))
                for start in range(0, num_actions, self.block)
            ]
        return torch.cat(made, 1)

    def fork(self, count: int = 1, *, generator: Generators | None = None) -> "Session":
        """A session that goes on from here on its own, with `count` copies of each sample side by side.

        With one generator a sample, forks with the same actions make the same frames. Without, and with a
        generator given here, they draw noise of their own.
        """
        state = self.state
        if count > 1:  # otherwise it can be shared, since it is frozen
            state = map_tensors(state, lambda part: part.repeat_interleave(count, 0))
        if generator is None:
            generator = _cloned(self.sampler.generator, count)
        sampler = replace(self.sampler, generator=generator)
        names = [name for name in self.embodiments for _ in range(count)]
        cameras = [camera for camera in self.cameras for _ in range(count)]
        measured = [one for one in self.start_states for _ in range(count)]
        return Session(self.model, state, sampler, names, cameras, measured)

    def _generate(self, actions: Actions, num_actions: int) -> Float[Tensor, "b n 3 H W"]:
        """Generate one block, update the state, and return the frames to show."""
        model, state = self.model, self.state
        if state.causal is None:
            decoded, past = whole_clip.advance(
                model, state.recent, state.past, actions, num_actions, self.sampler
            )
            state = replace(state, past=past)
        else:
            decoded, stream = causal.advance(model, state.causal, state.recent[:, -1], actions, self.sampler)
            state = replace(state, causal=stream)
        shown = decoded
        if model.compositor is not None and actions.extras:
            last = state.recent[:, -1]
            known = state.hands or known_frame(model, last, actions, 0, self.embodiments)
            assert known is not None, "it needs actions alone"
            composed, known = compose(model, decoded, actions, known)
            # Only to be shown: what is sharpened again and again would not stay true.
            decoded, shown = composed.frames, composed.sharpened(model.config.sharpen)
            state = replace(state, hands=known)
        if model.head is not None and state.head is not None:
            shown, head = model.head(decoded, state.head)
            decoded, state = fitted(model, shown), replace(state, head=head)
        # A copy: a view would keep all frames of the block.
        video, keeps_first = torch.cat([state.recent, decoded], 1), model.config.actions.keeps_first
        recent = history_frames(video, state.recent.shape[1], keeps_first).clone()
        num_frames = state.num_frames + decoded.shape[1]
        self.state = replace(state, recent=recent, num_frames=num_frames, command=None)
        return shown

    def _check(self, given: RawActions | None, count: int) -> None:
        if given is not None and given.shape[1] != count:
            raise ValueError(f"expected {count} actions, got {given.shape[1]}")
        if count < 1 or count % FRAMES_PER_LATENT:
            raise ValueError(
                f"a step takes {FRAMES_PER_LATENT} actions or a multiple (one latent frame each), got {count}"
            )
        num_samples = len(self.state.recent)
        if given is not None and len(given) != num_samples:
            raise ValueError(
                f"expected actions of {num_samples} samples, as the session was opened with, got {len(given)}"
            )


def fitted(model: WorldModel, frames: Float[Tensor, "b t 3 H W"]) -> Float[Tensor, "b t 3 h w"]:
    """Frames at the size that the model goes on from."""
    size = model.contract.height, model.contract.width
    return resized(frames.flatten(0, 1), size).unflatten(0, frames.shape[:2])


def known_frame(
    model: WorldModel,
    frame: Float[Tensor, "b 3 H W"],
    actions: Actions,
    row: int,
    embodiments: Sequence[str] = (),
) -> KnownFrame | None:
    """A given frame, where the hands are in it, and whose they are; None without a compositor or actions.

    `row` is 0 for the frame before the actions, and -1 for the one behind them.
    """
    if model.compositor is None or not actions.extras or not actions.count:
        return None
    numbers = [model.normalizer.index(name) for name in embodiments]
    robots = torch.tensor(numbers, device=frame.device) if numbers else None
    track = model.compositor.track(actions.extras)
    return KnownFrame(frame, track.rows(row, row + 1 or None), robots)


def compose(
    model: WorldModel, decoded: Float[Tensor, "b n 3 H W"], actions: Actions, known: KnownFrame
) -> tuple[Composed, KnownFrame]:
    """Apply the compositor to decoded frames; also returns the updated known frames."""
    assert model.compositor is not None, "there is a known frame"
    track = model.compositor.track(actions.extras)
    composed = model.compose(decoded, track.rows(1), known)
    if model.config.causal:
        known = renewed(known, composed.frames[:, -1], track.rows(-2))
    return composed, known


def _cloned(generator: Generators | None, count: int) -> Generators | None:
    if generator is None:
        return None
    if isinstance(generator, torch.Generator):
        return generator.clone_state()
    return [one.clone_state() for one in generator for _ in range(count)]
