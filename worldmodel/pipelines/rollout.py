"""First frames + actions -> video of any length, chunk by chunk.

Action i leads from frame i to frame i + 1 of the whole video, given frames included, as in a clip. With three
frames given, a history of one latent frame and clips of five frames:

    frame      0   1   2   3   4   5   6   7   8   9  10
    action       0   1   2   3   4   5   6   7   8   9
    chunk 1            |-> 3   4   5   6
    chunk 2                            |-> 7   8   9  10
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from worldmodel.models.model import WorldModel
from worldmodel.pipelines.action_conditions import ActionConditions
from worldmodel.pipelines.causal_stream import CausalStream
from worldmodel.pipelines.chunk_stream import ChunkStream
from worldmodel.pipelines.commands import (
    Cameras,
    RawActions,
    StartActions,
    first_commands,
    latest_commands,
    read_commands,
)
from worldmodel.pipelines.hand_follower import HandFollower, robot_numbers
from worldmodel.pipelines.sampling import Generators, continue_clip, evaluation_mode
from worldmodel.pipelines.session import Session, Stream, on_device
from worldmodel.tensors import read_frames
from worldmodel.types import (
    FRAMES_PER_LATENT,
    Actions,
    CameraMatrices,
    RolloutResult,
    num_video_frames,
)


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

    def __init__(self, model: WorldModel) -> None:
        self.model = model

    def __call__(
        self,
        frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"],
        robot_actions: Float[np.ndarray, "b n raw"] | Float[Tensor, "b n raw"] | None = None,
        *,
        embodiment: str | Sequence[str] = (),
        latent_actions: Float[Tensor, "b n k"] | None = None,
        num_frames: int | None = None,
        num_inference_steps: int = 0,
        generator: Generators | None = None,
        fps: float | None = None,
        camera: str | None = None,
        action_names: Sequence[str] | None = None,
        cameras: CameraMatrices | Sequence[CameraMatrices] | None = None,
        start_actions: StartActions | None = None,
    ) -> RolloutResult:
        """Continue the given frames under actions.

        Args:
            frames: what is known, uint8 or float in [0, 1]; at least the history the model was trained with.
            robot_actions: commands in the robot's own units, from the first given frame on; none: unknown.
            embodiment: whose commands they are, for all samples or one per sample.
            latent_actions: instead of robot actions, for instance inferred from another episode (lacg).
            num_frames: length of the whole video; needed when there are no actions to tell.
            num_inference_steps: Euler steps per chunk; 0: those that show the model best.
            generator: one for the batch, or one per sample, which makes a sample independent of its batch.
            fps: rate of frames and actions; refused when it is not the model's.
            camera: refused when it is not the model's.
            action_names: one per action dimension; refused when they are not the embodiment's.
            cameras: matrices of the camera, for action paths that read it: for all samples or one for each,
                static or with a matrix for every frame of the video. None: the camera of
                training, if it never moved.
            start_actions: the command in force at the first given frame; see `open`.
        """
        self.model.contract.check(fps=fps, camera=camera)
        actions, names = Actions(latent=latent_actions), []
        if robot_actions is not None:
            names = [embodiment] * len(frames) if isinstance(embodiment, str) else list(embodiment)
            count = len(robot_actions[0])
            if num_frames not in (None, count + 1):
                raise ValueError(f"{count} actions make {count + 1} frames, not {num_frames}")
            known, num_frames = frames.shape[1] - 1, count + 1
            # A causal model makes whole latent frames: the last command is held to fill one.
            steps = -(-(count - known) // FRAMES_PER_LATENT) if self.model.config.causal else 0
            actions = read_commands(
                self.model,
                robot_actions,
                names,
                cameras,
                before=first_commands(start_actions),
                num_actions=known + FRAMES_PER_LATENT * steps,
                action_names=action_names,
            )
            actions = replace(actions, latent=latent_actions)
        return self.rollout(
            frames,
            actions,
            num_frames=num_frames,
            num_inference_steps=num_inference_steps,
            generator=generator,
            embodiments=names,
        )

    @torch.no_grad()
    def open(
        self,
        frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"],
        past_actions: RawActions | None = None,
        *,
        embodiment: str | Sequence[str] = (),
        cameras: Cameras = None,
        num_inference_steps: int = 0,
        generator: Generators | None = None,
        window: int | None = None,
        start_actions: StartActions | None = None,
    ) -> Session:
        """A session that goes on from the given frames, a few actions at a time.

        Args:
            frames: what is known, uint8 or float in [0, 1]; at least the history the model was trained with.
            past_actions: the commands between these frames, where there are several.
            embodiment: whose commands they are, for all samples or one per sample.
            cameras: its matrices, for all samples or one for each; needed by a model that draws poses.
            num_inference_steps: Euler steps per latent frame, or per clip of a model that is not causal.
            generator: one for the batch, or one per sample, which makes a sample independent of its batch.
            window: latent frames that a causal model remembers beside the first; none: as in training.
            start_actions: the command in force at the first given frame, [b 1 raw], for a model that draws
                poses; or two, the earlier one first. None: the first action stands in for it.
        """
        names = [embodiment] * len(frames) if isinstance(embodiment, str) else list(embodiment)
        given = read_frames(frames.to(self.model.text.device), self.model.contract.check)
        past, commands = Actions(), first_commands(start_actions)
        if past_actions is not None:
            read = read_commands(self.model, past_actions, names, cameras, before=commands)
            past = on_device(read, given)
            commands = latest_commands(commands, torch.as_tensor(past_actions))
        _check_past(self.model, given.shape[1], past)
        with evaluation_mode(self.model):
            robots = robot_numbers(self.model, names, given.device)
            stream = self._open(given, past, num_inference_steps, generator, window, robots)
        return Session(self.model, stream, names, given[:, -1], given.shape[1], cameras, commands)

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
        robots = robot_numbers(self.model, embodiments, self.model.text.device)
        conditions = ActionConditions(self.model, actions or Actions(), num_frames, robots)
        given = read_frames(frames.to(self.model.text.device), self.model.contract.check)
        num_known = given.shape[1]
        # Filled in place: a list of chunks and their concatenation would need twice the memory.
        video = given.new_empty(len(given), conditions.num_frames, *given.shape[2:])
        with evaluation_mode(self.model):
            for made in self.stream(given, conditions, num_inference_steps, generator):
                video[:, num_known : num_known + made.shape[1]] = made
                num_known += made.shape[1]
        video[:, : given.shape[1]] = given
        return RolloutResult(video, num_history=given.shape[1])

    def _open(
        self,
        frames: Float[Tensor, "b t 3 H W"],
        past: Actions,
        num_inference_steps: int,
        generator: Generators | None,
        window: int | None = None,
        robots: Int[Tensor, " b"] | None = None,
    ) -> Stream:
        hands = HandFollower(self.model, frames, past.extras, robots)
        if self.model.config.causal:
            return CausalStream(self.model, frames, past, num_inference_steps, generator, window, hands)
        if window is not None:
            raise ValueError("a window is what a causal model remembers; this model generates whole clips")
        return ChunkStream(self.model, frames, past, num_inference_steps, generator, hands)

    @torch.no_grad()
    def stream(
        self,
        frames: Float[Tensor, "b t 3 H W"],
        conditions: ActionConditions,
        num_inference_steps: int = 0,
        generator: Generators | None = None,
    ) -> Iterator[Float[Tensor, "b n 3 H W"]]:
        """The generated frames, chunk by chunk: memory does not grow with the length of the video."""
        model, config = self.model, self.model.config
        num_recent = num_video_frames(config.history)
        _check_start(frames.shape[1], num_recent, conditions.num_frames)
        if config.causal:
            yield from self._latent_frames(frames, conditions, num_inference_steps, generator)
            return
        text = model.text_context(with_keys=True)
        sigmas = model.sigmas(num_inference_steps)
        num_known, recent = frames.shape[1], frames[:, -num_recent:]
        while num_known < conditions.num_frames:
            embedding = conditions.embed(num_known, recent)
            made = continue_clip(model, recent, embedding, text, sigmas, generator)
            composed = conditions.compose(made, num_known, frames)
            recent = torch.cat([recent, composed.frames], 1)[:, -num_recent:]
            yield composed.sharpened(config.sharpen)[:, : conditions.num_frames - num_known]
            num_known += made.shape[1]

    def _latent_frames(
        self,
        frames: Float[Tensor, "b t 3 H W"],
        conditions: ActionConditions,
        num_inference_steps: int,
        generator: Generators | None,
    ) -> Iterator[Float[Tensor, "b n 3 H W"]]:
        """The frames of a causal model, one latent frame at a time."""
        num_known = frames.shape[1]
        known = Actions(conditions.robot_actions, conditions.latent_actions, conditions.extras)
        actions, robots = on_device(known, frames), conditions.robots
        past = actions[: num_known - 1]
        stream = self._open(frames, past, num_inference_steps, generator, robots=robots)
        for start in range(num_known - 1, conditions.num_frames - 1, FRAMES_PER_LATENT):
            following = actions[start : start + FRAMES_PER_LATENT].pad_last(FRAMES_PER_LATENT)
            made = stream.advance(following, FRAMES_PER_LATENT)
            yield made[:, : conditions.num_frames - 1 - start]


def _check_start(num_given: int, num_recent: int, num_frames: int) -> None:
    if num_given < num_recent:
        raise ValueError(f"expected the {num_recent} frames of the model's history or more, got {num_given}")
    if num_given >= num_frames:
        raise ValueError(
            f"nothing to generate: {num_given} frames are given of a video of {num_frames} "
            f"(n actions make n + 1 frames)"
        )


def _check_past(model: WorldModel, num_frames: int, past: Actions) -> None:
    needs_past = model.config.regime == "acg" and model.config.history > 1
    if past.robot is None and needs_past:
        raise ValueError(
            f"this model hears the actions between its {num_video_frames(model.config.history)} given frames "
            "too: pass past_actions"
        )
    if past.robot is not None and past.robot.shape[1] != num_frames - 1:
        raise ValueError(
            f"expected {num_frames - 1} past_actions between {num_frames} frames, got {past.robot.shape[1]}"
        )
