"""Inverse dynamics: q(z_t | x_t, x_{t+1}), a latent action per transition, and prediction of robot actions.

Every frame is encoded once; pairs are formed from its tokens. The mean of z is computed from token
differences by layers without biases, so two identical frames give exactly z = 0: no motion, no action.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from transformers import Dinov2Config, Dinov2Model

from worldmodel.checked import check_range, check_ranges, check_type, read_json
from worldmodel.hub import load_encoder
from worldmodel.types import to_unit_range

IMAGE_MEAN, IMAGE_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the encoder's pretraining
LOGVAR_RANGE = (-10.0, 4.0)
INITIAL_LOGVAR = -3.0  # start nearly deterministic: the forward model needs z before the KL term shapes it


@dataclass(frozen=True)
class IdmConfig:
    """Image encoder and fusion of the inverse dynamics model."""

    pretrained: str = ""  # Dinov2 folder or hub id; empty: random weights of the shape below
    freeze_encoder: bool = False  # keep the image encoder frozen
    image_height: int = 64  # pixels; frames are resized to this before encoding
    image_width: int = 64  # pixels
    patch_size: int = 16  # pixels per token and side
    encoder_width: int = 96  # channels of the encoder
    encoder_layers: int = 3  # blocks of the encoder
    encoder_heads: int = 3  # attention heads of the encoder
    hidden: int = 128  # channels of fusion and heads
    num_queries: int = 4  # number of attention queries per pair

    def __post_init__(self) -> None:
        check_ranges(
            self,
            image_height=(1, 4096),
            image_width=(1, 4096),
            patch_size=(1, 256),
            encoder_width=(1, 8192),
            encoder_layers=(1, 128),
            encoder_heads=(1, 256),
            hidden=(1, 16384),
            num_queries=(1, 1024),
        )
        if not self.pretrained and (
            self.image_height % self.patch_size or self.image_width % self.patch_size
        ):
            raise ValueError(
                f"idm image size {self.image_height}x{self.image_width} is not a multiple of patch_size "
                f"{self.patch_size}"
            )


@dataclass(frozen=True)
class LatentActions:
    """Diagonal Gaussian posterior over the latent action of each transition."""

    mean: Float[Tensor, "b n k"]
    logvar: Float[Tensor, "b n k"]

    def sample(self, generator: torch.Generator) -> Float[Tensor, "b n k"]:
        """One draw, differentiable in mean and variance."""
        noise = torch.randn(self.mean.shape, generator=generator)
        return self.mean + torch.exp(0.5 * self.logvar) * noise.to(self.mean)

    def kl(self) -> Float[Tensor, ""]:
        """KL divergence to the standard normal in nats, summed over k, mean over transitions."""
        terms = self.mean.square() + self.logvar.exp() - 1 - self.logvar
        return 0.5 * terms.sum(-1).mean()


@dataclass(frozen=True)
class PairFeatures:
    """Features of each transition and each frame."""

    motion: Float[Tensor, "b n e"]  # zero where the two frames are the same
    scene: Float[Tensor, "b t e"]

    def detach(self) -> "PairFeatures":
        """The same features, detached from the graph."""
        return PairFeatures(self.motion.detach(), self.scene.detach())


class InverseDynamicsModel(nn.Module):
    """Predicts actions from consecutive frames."""

    def __init__(
        self,
        config: IdmConfig,
        *,
        latent_action_dim: int | None,
        robot_action_dim: int,
        encoder: Dinov2Model | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = _prepared(encoder or _image_encoder(config), config)
        width, hidden = self.encoder.config.hidden_size, config.hidden
        self.pair_query = nn.Linear(2 * width, config.num_queries)
        self.motion = nn.Linear(width, hidden, bias=False)
        self.motion_gain = nn.Linear(width, hidden)
        self.motion_out = nn.Linear(config.num_queries * hidden, hidden, bias=False)
        self.scene_query = nn.Linear(width, config.num_queries)
        self.scene = nn.Linear(width, hidden)
        self.scene_out = nn.Linear(config.num_queries * hidden, hidden)
        self.robot_action = nn.Sequential(
            nn.Linear(3 * hidden, hidden), nn.GELU(), nn.Linear(hidden, robot_action_dim)
        )
        self.latent_mean = self.latent_logvar = None
        if latent_action_dim is not None:
            self.latent_mean = nn.Sequential(
                nn.GELU(),
                nn.Linear(hidden, hidden, bias=False),
                nn.GELU(),
                nn.Linear(hidden, latent_action_dim, bias=False),
            )
            self.latent_logvar = nn.Linear(2 * hidden, latent_action_dim)
            nn.init.zeros_(self.latent_logvar.weight)
            nn.init.constant_(self.latent_logvar.bias, INITIAL_LOGVAR)

    def forward(self, frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"]) -> PairFeatures:
        """Features of every transition and frame; frames are uint8, or float in [0, 1]."""
        tokens = self._encode(frames)
        before, after = tokens[:, :-1], tokens[:, 1:]
        gaze = self.pair_query(torch.cat([before, after], -1)).softmax(-2)
        moved = self.motion(after - before) * (1 + self.motion_gain(before))
        motion = self.motion_out(einsum(gaze, moved, "b n s q, b n s e -> b n q e").flatten(2))
        scene_gaze = self.scene_query(tokens).softmax(-2)
        scene = einsum(scene_gaze, self.scene(tokens), "b t s q, b t s e -> b t q e").flatten(2)
        return PairFeatures(motion, self.scene_out(scene))

    def latent_actions(self, features: PairFeatures) -> LatentActions:
        """The posterior over z, one per transition."""
        assert self.latent_mean is not None, "built without latent actions"
        assert self.latent_logvar is not None
        mean = self.latent_mean(features.motion)
        logvar = self.latent_logvar(torch.cat([features.motion, features.scene[:, :-1]], -1))
        return LatentActions(mean, logvar.clamp(*LOGVAR_RANGE))

    def robot_actions(self, features: PairFeatures) -> Float[Tensor, "b n a"]:
        """The predicted robot action of each transition, normalized."""
        pair = [features.motion, features.scene[:, :-1], features.scene[:, 1:]]
        return self.robot_action(torch.cat(pair, -1))

    def _encode(self, frames: Tensor) -> Float[Tensor, "b t s e"]:
        images = to_unit_range(frames.flatten(0, 1))
        size = (self.config.image_height, self.config.image_width)
        if tuple(images.shape[-2:]) != size:
            images = F.interpolate(images, size, mode="bilinear", antialias=True)
        mean, std = (images.new_tensor(values).view(3, 1, 1) for values in (IMAGE_MEAN, IMAGE_STD))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze_encoder):
            hidden = self.encoder(pixel_values=(images - mean) / std).last_hidden_state
        return rearrange(hidden[:, 1:], "(b t) s e -> b t s e", b=frames.shape[0])


def _image_encoder(config: IdmConfig) -> Dinov2Model:
    if config.pretrained:
        return load_encoder(Dinov2Model, config.pretrained)
    patch, area = config.patch_size, config.image_height * config.image_width
    side = patch * int(-(-(area**0.5) // patch))  # positions form a square; they are resized for other shapes
    return Dinov2Model(
        Dinov2Config(
            image_size=(side, side),
            patch_size=config.patch_size,
            hidden_size=config.encoder_width,
            num_hidden_layers=config.encoder_layers,
            num_attention_heads=config.encoder_heads,
        )
    )


# The settings we read from an image encoder's JSON, and the limit of each; others may name code.
ENCODER_LIMITS = {
    "hidden_size": 8192,
    "num_hidden_layers": 128,
    "num_attention_heads": 256,
    "mlp_ratio": 64,
    "image_size": 4096,
    "patch_size": 256,
    "num_channels": 16,
}
ENCODER_FLAGS = ("qkv_bias", "use_swiglu_ffn", "use_mask_token", "apply_layernorm", "reshape_hidden_states")
ENCODER_SHARES = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate"),
    *("layer_norm_eps", "layerscale_value", "initializer_range"),
)


def read_encoder_config(path: Path) -> Dinov2Config:
    """The image encoder config of a model folder; only its sizes are used."""
    values = read_json(path)
    known: dict[str, Any] = {"hidden_act": Literal["gelu", "gelu_new", "relu", "silu"]}
    known |= dict.fromkeys(ENCODER_FLAGS, bool) | dict.fromkeys(ENCODER_SHARES, float)
    known |= dict.fromkeys(ENCODER_LIMITS, int | tuple[int, int]) | {"mlp_ratio": int | float}
    settings = {
        name: check_type(values[name], kind, f"{path}: {name}")
        for name, kind in known.items()
        if name in values
    }
    for name, limit in ENCODER_LIMITS.items():
        check_range(settings.get(name, 1), 1, limit, f"{path}: {name}")
    for name in ENCODER_SHARES:
        check_range(settings.get(name, 0.0), 0, 10, f"{path}: {name}")
    return Dinov2Config(**settings)


def _prepared(encoder: Dinov2Model, config: IdmConfig) -> Dinov2Model:
    # Only masked pretraining uses this token; an optimizer must not wait for its gradient.
    assert encoder.embeddings.mask_token is not None
    encoder.embeddings.mask_token.requires_grad_(False)
    return encoder.requires_grad_(False) if config.freeze_encoder else encoder


class Controller(nn.Module):
    """Robot actions, read in order from the last given frame on -> one latent action for each.

    The previous commands determine where the robot is at each command, so no future frames are needed.
    """

    def __init__(
        self, robot_action_dim: int, feature_dim: int, latent_action_dim: int, hidden: int = 128
    ) -> None:
        super().__init__()
        self.start = nn.Linear(feature_dim, hidden)
        self.lift = nn.Sequential(nn.Linear(robot_action_dim + feature_dim, hidden), nn.GELU())
        self.memory = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.GELU(), nn.Linear(hidden, latent_action_dim)
        )

    def forward(
        self, robot_actions: Float[Tensor, "b n a"], features: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b n k"]:
        """Latent actions for normalized robot actions that start at the frame of `features`."""
        context = features[:, None].expand(-1, robot_actions.shape[1], -1)
        lifted = self.lift(torch.cat([robot_actions, context], -1))
        state = self.start(features).tanh()[None].contiguous()
        with torch.autocast(features.device.type, enabled=False):  # which would run a GRU in float16 on a GPU
            remembered, _ = self.memory(lifted.float(), state.float())
        return self.out(torch.cat([lifted, remembered], -1))


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def reverse_gradient(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Identity whose gradient has its sign changed."""
    reversed_: Tensor = _Reverse.apply(x)
    return reversed_


class EmbodimentClassifier(nn.Module):
    """Predicts the robot from a latent action."""

    def __init__(self, latent_action_dim: int, num_embodiments: int, hidden: int = 128) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(latent_action_dim, hidden), nn.GELU(), nn.Linear(hidden, num_embodiments)
        )

    def forward(self, latent_actions: Float[Tensor, "b n k"]) -> Float[Tensor, "b n classes"]:
        """Unnormalized log-probabilities of the embodiments."""
        logits: Tensor = self.net(latent_actions)
        return logits


def embodiment_loss(
    classifier: EmbodimentClassifier, latent_actions: Float[Tensor, "b n k"], embodiment: Int[Tensor, " b"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy that trains the classifier and, reversed, the latent actions; and the accuracy."""
    logits = classifier(reverse_gradient(latent_actions))
    labels = repeat(embodiment, "b -> b n", n=logits.shape[1])
    accuracy = (logits.argmax(-1) == labels).float().mean()
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), accuracy
