"""What a world model is (config) and what frames it was made for (contract)."""

import math
from dataclasses import dataclass, field
from typing import Literal

from worldmodel.checked import check_ranges
from worldmodel.data.clips import FPS_TOLERANCE, Aspect, ClipConfig, Merge
from worldmodel.data.layouts import JOINT, Box, Layout, view_boxes
from worldmodel.desk.small_net import Prediction, SmallNetConfig
from worldmodel.mcl.config import ActionMclConfig
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.published.kept_first import check_history
from worldmodel.models.backbone import LoraConfig, WanConfig
from worldmodel.models.idm import IdmConfig
from worldmodel.models.picture_head import HeadConfig
from worldmodel.types import RowReader, num_latent_frames, num_video_frames

Regime = Literal["no_action", "acg", "lacg"]
Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ObjectiveConfig:
    """Weights and sampling of L = L_rec + beta L_KL + lambda_adv L_GRL + lambda_MCL L_MCL."""

    # clip: one noise level behind the history. prefix: a random number of given frames, then frames of noise
    # levels of their own or of one; the first of them is the next frame of a stream, so a causal model learns
    # streams and whole clips at once.
    forcing: Literal["clip", "prefix"] = "clip"  # which latent frames are noisy in training, and how
    context_noise: float = 0.0  # prefix: highest sigma of given frames behind the history; half have none
    sink_jump: float = 0.0  # prefix: share of clips in which frames behind the first are forgotten (causal)
    student_steps: int = 0  # > 0: distill start_from into a model that samples in so many steps; 0: off
    student_substeps: int = 8  # teacher's steps in each step of the student
    shift: float = 3.0  # flow shift of the sampled noise levels; 3 up to about 320 pixels, 5 at 480
    # resample: each step estimates the clean latents and adds new noise of the next level (open-world).
    sampler: Literal["euler", "resample"] = "euler"  # how a rollout steps through the noise levels
    action_dropout: float = 0.1  # share of clips whose actions are hidden behind the null embedding
    beta: float = 1e-4  # weight of the KL term (lacg)
    adversarial_weight: float = 0.01  # lambda_adv of the embodiment classifier (lacg)
    mcl_weight: float = 0.01  # lambda_MCL
    idm_weight: float = 1.0  # weight of judging the robot action from frames; 0: no judge, acg has no IDM
    controller_weight: float = 1.0  # weight of predicting z from robot actions (lacg)
    # The error of decoded pictures, against blur: absolute, of moving pixels and of edges. It needs the vae.
    pixel_weight: float = 0.0  # weight of that error; 0: latents alone
    pixel_share: float = 0.25  # share of the clips that are decoded for it, at least one

    def __post_init__(self) -> None:
        if (self.context_noise or self.sink_jump) and self.forcing != "prefix":
            raise ValueError(f"context_noise and sink_jump need forcing prefix, got {self.forcing!r}")
        if not 0 <= self.context_noise <= 0.5 or not 0 <= self.sink_jump <= 1:
            raise ValueError(
                "context_noise is a sigma in [0, 0.5] and sink_jump a share in [0, 1], got "
                f"{self.context_noise} and {self.sink_jump}"
            )
        if self.student_steps < 0 or self.student_substeps < 1:
            raise ValueError(
                f"student_steps is 0 (off) or more and student_substeps 1 or more, got {self.student_steps} "
                f"and {self.student_substeps}"
            )
        if not 0 <= self.action_dropout < 1:
            raise ValueError(f"action_dropout is a share in [0, 1), got {self.action_dropout}")
        if self.pixel_weight < 0 or not 0 < self.pixel_share <= 1:
            raise ValueError(
                "pixel_weight is 0 or more and pixel_share in (0, 1], got "
                f"{self.pixel_weight} and {self.pixel_share}"
            )
        if self.idm_weight < 0:
            raise ValueError(f"idm_weight is 0 (no judge) or more, got {self.idm_weight}")
        check_ranges(self, shift=(1e-3, 1e3))


@dataclass(frozen=True)
class WorldModelConfig:
    """A world model; sizes that come from the data are in the frame contract and the normalizer."""

    regime: Regime = "acg"  # what drives the video: nothing, robot actions or latent actions
    # pretrained takes the backbone alone (with its `small`, if a world model is named): everything else
    # starts from random weights, and every setting here is free. start_from of a training run takes a whole
    # world model with its settings instead.
    pretrained: str = ""  # backbone folder or hub id; empty: random weights of the shape in `backbone`
    backbone: WanConfig = field(default_factory=WanConfig)  # used when `pretrained` is empty
    dtype: Dtype = "float32"  # storage of the backbone's weights
    vae: str = ""  # autoencoder folder or hub id; empty: none (training on cached latents)
    prompt: str = ""  # safetensors file with a cached prompt embedding; empty: one zero token, as Wan pads
    actions: ActionConfig = field(default_factory=ActionConfig)  # how they reach the backbone
    causal: bool = False  # latent frames see themselves and earlier ones only, so that video can be streamed
    small: SmallNetConfig | None = None  # additions for a small net from scratch
    compositor_width: int = 0  # channels of what mixes decoded frames with the given one; 0: none
    hand_references: int = 0  # frames of each robot and arm that the compositor knows hands from; 0: none
    # A picture that is right on average has fainter edges than any true one. What moves gets them back when
    # it is shown, at a small cost in error; training never sees this.
    sharpen: float = 0.0  # of composed frames: how much of their fine detail is added again; 0: nothing
    head: HeadConfig | None = None  # finds decoded things in given frames; none: decoded frames are shown
    latent_action_dim: int = 32  # k (lacg)
    history: int = 1  # clean latent frames given at the start of a clip
    idm: IdmConfig = field(default_factory=IdmConfig)  # inverse dynamics model
    lora: LoraConfig = field(default_factory=LoraConfig)  # adapters on the backbone
    # interface: everything but the backbone and `small` (adapters are settings of `lora`)
    trained: Literal["all", "interface", "compositor", "head"] = "all"  # what a training changes
    seed: int = 0  # of the random weights beside the backbone
    mcl: ActionMclConfig | None = None  # mechanistic contrast on the action channel; none: off
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)  # the training loss

    def __post_init__(self) -> None:
        if not 1 <= self.history <= 6:
            raise ValueError(f"history is 1 to 6 latent frames, got {self.history}")
        check_ranges(
            self,
            compositor_width=(0, 4096),
            hand_references=(0, 1024),
            sharpen=(0.0, 2.0),
            latent_action_dim=(1, 4096),
        )
        if self.objective.student_steps and (self.regime == "lacg" or self.mcl or self.objective.idm_weight):
            raise ValueError(
                "objective.student_steps distills the video alone: set regime acg or no_action, no mcl and "
                "objective.idm_weight=0"
            )
        if self.objective.sink_jump and not self.causal:
            raise ValueError("objective.sink_jump forgets frames of a causal model: set causal")
        self.actions.check(self.regime)
        check_history(self.actions.keeps_first, self.causal, self.history, self.actions.row_shapes)
        if self.compositor_width and not (self.actions.pose_maps and self.objective.pixel_weight):
            raise ValueError(
                "compositor_width follows hand poses and learns from pictures: set actions.pose_maps and "
                f"objective.pixel_weight above 0, got {self.actions.pose_maps} and "
                f"{self.objective.pixel_weight:g}"
            )
        needs_compositor = self.trained == "compositor" or self.hand_references or self.sharpen
        if needs_compositor and not self.compositor_width:
            raise ValueError(
                "trained=compositor, hand_references and sharpen need a compositor: set compositor_width "
                "above 0"
            )
        if self.head is not None and self.compositor_width:
            raise ValueError(
                f"a head needs compositor_width=0, got {self.compositor_width}: a model has one of both"
            )
        if self.trained == "head" and not self.trains_head:
            raise ValueError(
                "trained=head needs a head and pictures: set head={} and objective.pixel_weight above "
                f"0, got {self.head} and {self.objective.pixel_weight:g}"
            )
        if self.mcl is not None and self.regime == "no_action":
            raise ValueError("mcl contrasts actions; a no_action model has none")

    @property
    def trains_head(self) -> bool:
        """Whether there is a picture head that learns; without the error of pictures it stays as it was."""
        return self.head is not None and self.objective.pixel_weight > 0

    @property
    def prediction(self) -> Prediction:
        """Prediction target of the network: velocity, or the clean latents."""
        return "velocity" if self.small is None else self.small.prediction

    @property
    def num_given(self) -> int:
        """Frames that a video starts from."""
        return 1 if self.actions.keeps_first else num_video_frames(self.history)

    @property
    def reader(self) -> RowReader | None:
        """The settings that read further rows of clips; None if actions suffice."""
        return self.actions if self.actions.row_shapes else None


@dataclass(frozen=True)
class InputSpec:
    """Format of the clips a model was trained on: size, rate, cameras. Inputs of a rollout must match it."""

    num_frames: int  # frames of one clip, 1 + 4k
    height: int  # pixels
    width: int  # pixels
    fps: float  # frames per second
    camera: str = ""  # name of the camera, of several joined by a plus; empty: not recorded
    layout: Layout | None = None  # of several cameras in one picture; none: there is one
    aspect: Aspect = "stretch"  # how pictures of another aspect ratio came to this size
    merge: Merge = "last"  # how the actions of a coarser transition were made
    latent_channels: int = 16  # of the autoencoder
    latent_scale: int = 8  # pixels per latent and side
    # World -> picture of a camera that never moved, 3x4 row by row, for rollouts that bring none.
    projection: tuple[float, ...] = ()
    num_inference_steps: int = 8  # sampling steps that show the model best; wherever none are asked for

    def __post_init__(self) -> None:
        if len(self.projection) not in (0, 12) or not all(map(math.isfinite, self.projection)):
            raise ValueError(f"projection is empty or 12 finite numbers, got {self.projection}")
        check_ranges(
            self,
            num_frames=(1, 100_001),
            height=(1, 16384),
            width=(1, 16384),
            fps=(1e-3, 1e4),
            latent_channels=(1, 4096),
            latent_scale=(1, 64),
            num_inference_steps=(1, 1000),
        )
        num_latent_frames(self.num_frames)
        if self.height % self.latent_scale or self.width % self.latent_scale:
            raise ValueError(
                f"height and width must be multiples of {self.latent_scale} (pixels per latent), "
                f"got {self.height}x{self.width}"
            )

    @property
    def latent_grid(self) -> tuple[int, int, int]:
        """Latent frames, height and width of a clip."""
        frames = num_latent_frames(self.num_frames)
        return frames, self.height // self.latent_scale, self.width // self.latent_scale

    @property
    def views(self) -> dict[str, Box]:
        """Camera -> its place in the picture; empty where there is one camera."""
        if self.layout is None:
            return {}
        names = self.camera.split(JOINT)
        return dict(zip(names, view_boxes(self.layout, len(names), self.height, self.width), strict=True))

    def clip_config(self, *, num_frames: int | None = None, step: int | None = None) -> ClipConfig:
        """How clips are cut that this model takes, from recordings of any rate and size.

        Args:
            num_frames: length of a clip; none: that of training.
            step: recorded frames between the starts of clips; none: clips share only their end frame.
        """
        return ClipConfig(
            num_frames=num_frames or self.num_frames,
            fps=self.fps,
            step=step,
            height=self.height,
            width=self.width,
            aspect=self.aspect,
            camera=tuple(self.views) or self.camera or None,
            layout=self.layout or "side_by_side",
            merge=self.merge,
        )

    def check(
        self, *, size: tuple[int, int] | None = None, fps: float | None = None, camera: str | None = None
    ) -> None:
        """Refuse frames of another size (height, width), rate or camera; none means not known."""
        if size is not None and size != (self.height, self.width):
            raise ValueError(f"expected frames of {self.height}x{self.width} pixels, got {size[0]}x{size[1]}")
        if fps is not None and abs(fps - self.fps) > FPS_TOLERANCE * self.fps:
            raise ValueError(f"expected {self.fps:g} frames per second, got {fps:g}")
        if camera and self.camera and camera != self.camera:
            raise ValueError(f"expected camera {self.camera!r}, got {camera!r}")
