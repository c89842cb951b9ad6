"""First frames + actions -> video of any length: a session that is stepped, block by block.

Action i leads from frame i to frame i + 1 of the whole video, given frames included, as in a clip. With three
frames given, a history of one latent frame and clips of five frames:

    frame      0   1   2   3   4   5   6   7   8   9  10
    action       0   1   2   3   4   5   6   7   8   9
    block 1            |-> 3   4   5   6
    block 2                            |-> 7   8   9  10
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from worldmodel.data.clips import crop_box
from worldmodel.device import AnyDevice, Precision, find_device, inference
from worldmodel.diffusion.euler import Generators
from worldmodel.models.actions.published.kept_first import history_actions, history_frames
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.causal import open_video
from worldmodel.pipelines.commands import (
    Cameras,
    RawActions,
    StartAction,
    StartState,
    check_actions,
    first_commands,
    latest_commands,
    read_commands,
)
from worldmodel.pipelines.session import Session, VideoState, fitted, known_frame
from worldmodel.pipelines.whole_clip import Sampler
from worldmodel.tensors import read_frames
from worldmodel.types import FRAMES_PER_LATENT, Actions, RolloutResult, map_tensors, num_video_frames


class RolloutPipeline:
    """`pipeline(frames, robot_actions, embodiment=...)` -> RolloutResult.

    Examples:
        >>> import torch
        >>> from worldmodel import RolloutPipeline, WorldModel
        >>> pipeline = RolloutPipeline(WorldModel.from_pretrained("desk"))
        >>> first_frame, poses = torch.rand(1, 1, 3, 64, 64), torch.zeros(1, 16, 16)
        >>> result = pipeline(first_frame, poses, embodiment="heron")
        >>> tuple(result.frames.shape), result.num_history
        ((1, 17, 3, 64, 64), 1)
    """

    def __init__(
        self, model: WorldModel, device: AnyDevice | None = None, *, mixed_precision: Precision = "auto"
    ) -> None:
        """Leaves the model where it is, or moves it to `device`: auto, cpu, cuda, mps (see `device.py`)."""
        self.model = model if device is None else model.to(find_device(device))
        self.precision: Precision = mixed_precision

    def __call__(
        self,
        frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"],
        robot_actions: RawActions | None = None,
        *,
        embodiment: str | Sequence[str] = (),
        latent_actions: Float[Tensor, "b n k"] | None = None,
        num_frames: int | None = None,
        camera: Cameras = None,
        start_action: StartAction | None = None,
        start_state: StartState | None = None,
        num_inference_steps: int = 0,
        generator: Generators | None = None,
    ) -> RolloutResult:
        """Continue the given frames under actions.

        Args:
            frames: what is known, uint8 or float in [0, 1]; at least the history the model was trained with.
            robot_actions: commands in the robot's own units, from the first given frame on; None: unknown.
            embodiment: whose commands they are, for all samples or one per sample.
            latent_actions: instead of robot actions, for instance inferred from another episode (lacg).
            num_frames: length of the whole video; needed without actions.
            camera: its matrices, for action paths that read them: for all samples or one for each, static or
                with a matrix for every frame of the video. None: the camera of training, if it never moved.
            start_action: the command in force at the first given frame; see `open`.
            start_state: measured at the first given frame; see `open`.
            num_inference_steps: Euler steps per block; 0: those that show the model best.
            generator: one for the batch, or one per sample, which makes a sample independent of its batch.
        """
        actions, names = Actions(latent=latent_actions), _each(embodiment, len(frames))
        if robot_actions is not None:
            count, known = len(robot_actions[0]), frames.shape[1] - 1
            if num_frames not in (None, count + 1):
                raise ValueError(f"{count} actions make {count + 1} frames, not {num_frames}")
            num_frames = count + 1
            # The last command is held to fill a latent frame.
            filled = known - (known - count) // FRAMES_PER_LATENT * FRAMES_PER_LATENT
            read = read_commands(
                self.model,
                robot_actions,
                names,
                camera,
                before=first_commands(start_action),
                num_actions=filled,
                start_state=start_state,
            )
            actions = replace(read, latent=latent_actions)
        return self.rollout(
            frames,
            actions,
            num_frames=num_frames,
            num_inference_steps=num_inference_steps,
            generator=generator,
            embodiments=names,
        )

    def open(
        self,
        frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"],
        past_actions: RawActions | None = None,
        *,
        embodiment: str | Sequence[str] = (),
        camera: Cameras = None,
        start_action: StartAction | None = None,
        start_state: StartState | None = None,
        num_inference_steps: int = 0,
        generator: Generators | None = None,
        window: int | None = None,
    ) -> Session:
        """A session that goes on from the given frames, a few actions at a time.

        Args:
            frames: what is known, uint8 or float in [0, 1]; at least the history the model was trained with.
            past_actions: the commands between these frames, where there are several.
            embodiment: whose commands they are, for all samples or one per sample.
            camera: its matrices, for all samples or one for each; see `__call__`.
            start_action: the command in force at the first given frame, [b 1 raw], for action paths that read
                it; or two, the earlier one first. None: the first action stands in for it.
            start_state: measured at the first given frame in the robot's own units, [b s] or one for each
                sample, for action paths that read it. None: unknown.
            num_inference_steps: Euler steps per latent frame, or per clip of a model that is not causal.
            generator: one for the batch, or one per sample, which makes a sample independent of its batch.
            window: latent frames that a causal model remembers beside the first; None: as in training.
        """
        given, names = self._read(frames), _each(embodiment, len(frames))
        past, command = Actions(), first_commands(start_action)
        if past_actions is not None:
            past = read_commands(
                self.model, past_actions, names, camera, before=command, start_state=start_state
            )
            command = latest_commands(command, past_actions)
        _check_past(self.model, given.shape[1], past)
        session = self._begin(given, past, num_inference_steps, generator, names, camera, window, start_state)
        session.state = replace(session.state, command=command)
        return session

    def rollout(
        self,
        frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"],
        actions: Actions | None = None,
        *,
        num_frames: int | None = None,
        num_inference_steps: int = 0,
        generator: Generators | None = None,
        embodiments: Sequence[str] = (),
    ) -> RolloutResult:
        """As `__call__`, for actions as the model takes them: those of a ClipBatch, or of `read_commands`."""
        actions = actions or Actions()
        check_actions(self.model, actions)
        length = _length(actions.values, num_frames)
        given = self._read(frames)
        num_given = given.shape[1]
        if num_given >= length:
            raise ValueError(
                f"nothing to generate: {num_given} frames are given of a video of {length} "
                "(n actions make n + 1 frames)"
            )
        session = self._begin(given, actions[: num_given - 1], num_inference_steps, generator, embodiments)
        # Filled in place: a list of blocks and their concatenation would need twice the memory.
        video = torch.empty(len(given), length, *given.shape[2:])
        video[:, :num_given] = given
        for start in range(num_given, length, session.block):
            part = actions[start - 1 : start - 1 + session.block].pad_last(session.block)
            made = session.advance(part, session.block)[:, : length - start]
            video[:, start : start + made.shape[1]] = made
        return RolloutResult(video, num_history=num_given)

    def _read(
        self, frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"]
    ) -> Float[Tensor, "b t 3 H W"]:
        given = read_frames(frames, self._check_size).to(self.model.device)
        if given.shape[1] < (least := self.model.config.num_given):
            raise ValueError(
                f"expected the {least} frames of the model's history or more, got {given.shape[1]}"
            )
        return given

    def _check_size(self, size: tuple[int, int]) -> None:
        """A picture head shows frames at the size of the given ones; other models have one size."""
        contract = self.model.contract
        if self.model.head is None:
            contract.check(size=size)
        _, _, *kept = crop_box(*size, contract.height / contract.width)
        if contract.aspect == "crop" and size[0] + size[1] - sum(kept) > 1:
            raise ValueError(
                f"expected frames of the aspect ratio of {contract.height}x{contract.width}, to which clips "
                f"were cropped, got {size[0]}x{size[1]} pixels"
            )

    @torch.no_grad()
    def _begin(
        self,
        given: Float[Tensor, "b t 3 H W"],
        past: Actions,
        num_inference_steps: int,
        generator: Generators | None,
        embodiments: Sequence[str],
        camera: Cameras = None,
        window: int | None = None,
        start_state: StartState | None = None,
    ) -> Session:
        model, num_given = self.model, given.shape[1]
        if window is not None and not model.config.causal:
            raise ValueError("a window is what a causal model remembers; this model generates whole clips")
        past = map_tensors(past, lambda part: part.to(given.device))
        # A causal model keeps latents of the frames before the latest.
        num_recent = 1 if model.config.causal else num_video_frames(model.config.history)
        recent, keeps_first = fitted(model, given), model.config.actions.keeps_first
        with inference(model, model.device, self.precision):
            text = model.text_context(with_keys=True)
            causal = open_video(model, recent, past, window) if model.config.causal else None
        state = VideoState(
            history_frames(recent, num_recent, keeps_first),
            history_actions(past, num_given - 1, num_recent, keeps_first),
            num_given,
            causal=causal,
            head=None if model.head is None else model.head.open(given),
            hands=known_frame(model, given[:, -1], past, -1, embodiments),
        )
        sampler = Sampler(text, model.sigmas(num_inference_steps), generator, self.precision)
        return Session(model, state, sampler, embodiments, camera, start_state)


def _each(embodiment: str | Sequence[str], count: int) -> list[str]:
    """One for each sample."""
    return [embodiment] * count if isinstance(embodiment, str) else list(embodiment)


def _length(actions: Float[Tensor, "b n u"] | None, num_frames: int | None) -> int:
    """Frames of the whole video."""
    if actions is None:
        if num_frames is None:
            raise ValueError("without actions, num_frames must say how long the video shall be")
        return num_frames
    length = actions.shape[1] + 1
    if num_frames is not None and not length - FRAMES_PER_LATENT < num_frames <= length:
        raise ValueError(f"{length - 1} actions make {length} frames, not {num_frames}")
    return num_frames or length


def _check_past(model: WorldModel, num_frames: int, past: Actions) -> None:
    needs_past = model.config.regime == "acg" and model.config.history > 1 and num_frames > 1
    if past.robot is None and needs_past:
        raise ValueError(
            f"this model reads the actions between its {num_frames} given frames too: pass past_actions"
        )
    if past.robot is not None and past.robot.shape[1] != num_frames - 1:
        raise ValueError(
            f"expected {num_frames - 1} past_actions between {num_frames} frames, got {past.robot.shape[1]}"
        )
