"""The world model as one object: backbone, autoencoder, action interface, IDM, controller and scales."""

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from jaxtyping import Float, UInt8
from safetensors.torch import load_file
from torch import Tensor, nn

from worldmodel.data.normalize import ActionNormalizer
from worldmodel.models.action_interface import ActionInterface, TextContext
from worldmodel.models.controller import Controller
from worldmodel.models.fdm import ForwardDynamics, SceneEmbedding
from worldmodel.models.idm import InverseDynamicsModel
from worldmodel.models.lora import add_lora
from worldmodel.models.wan import VideoAutoencoder, decode_latents, encode_frames, freeze, load_vae, load_wan
from worldmodel.models.world_model_config import FrameContract, WorldModelConfig
from worldmodel.objectives.critics import LatentVideoCritic, ProjectionHead
from worldmodel.objectives.gradient_reversal import EmbodimentClassifier
from worldmodel.objectives.mcl import MechanisticContrast
from worldmodel.types import FRAMES_PER_LATENT, ClipBatch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class WorldModel(nn.Module):
    """First frames + actions -> video; a new one comes from `build`, a saved one from `from_pretrained`."""

    text: Tensor  # embedding of the one prompt that all clips share

    def __init__(
        self,
        config: WorldModelConfig,
        contract: FrameContract,
        normalizer: ActionNormalizer,
        backbone: WanTransformer3DModel,
        vae: VideoAutoencoder | None = None,
        text: Float[Tensor, "1 s e"] | None = None,
    ) -> None:
        super().__init__()
        self.config, self.contract, self.normalizer = config, contract, normalizer
        _check_parts(contract, backbone, vae)
        if config.lora.rank:
            add_lora(backbone, config.lora)
        self.fdm = ForwardDynamics(
            backbone, prediction=config.prediction, scene=_scene(config, contract, backbone)
        )
        self.interface = ActionInterface(
            self.condition_dim,
            self.fdm.width,
            hidden=config.interface_hidden,
            token_gates=_token_gates(config, backbone),
        )
        self.idm = _idm(config, normalizer)
        self.controller = _controller(config, normalizer)
        self.embodiment_classifier = _embodiment_classifier(config, normalizer)
        self.mcl = _mcl(config, contract, self.condition_dim)
        self.vae = None if vae is None else freeze(vae)
        if text is None:
            text = torch.zeros(1, 1, backbone.config["text_dim"])
        self.register_buffer("text", text, persistent=False)

    @classmethod
    def build(
        cls,
        config: WorldModelConfig,
        contract: FrameContract,
        normalizer: ActionNormalizer,
        *,
        vae: VideoAutoencoder | None = None,
    ) -> "WorldModel":
        """A new model on the backbone, autoencoder and prompt that the config names."""
        if vae is None and config.vae:
            vae = load_vae(config.vae)
        text = load_file(config.prompt)["text"] if config.prompt else None
        backbone = load_wan(config.pretrained or config.backbone, DTYPES[config.dtype])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return cls(config, contract, normalizer, backbone, vae, text)

    @property
    def condition_dim(self) -> int:
        """Size of the action vector that drives one transition: robot (acg), latent (lacg) or none."""
        sizes = {"no_action": 0, "acg": self.normalizer.width, "lacg": self.config.latent_action_dim}
        return sizes[self.config.regime]

    def train(self, mode: bool = True) -> "WorldModel":
        """As in torch, but the frozen autoencoder stays in evaluation mode."""
        super().train(mode)
        if self.vae is not None:
            self.vae.eval()
        return self

    def encode(
        self, frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"]
    ) -> Float[Tensor, "b c f h w"]:
        """Normalised latents of frames (uint8, or float in [0, 1])."""
        self.contract.check(size=(frames.shape[-2], frames.shape[-1]))
        return encode_frames(self._autoencoder(), frames)

    def decode(self, latents: Float[Tensor, "b c f h w"]) -> Float[Tensor, "b t 3 H W"]:
        """Frames in [0, 1]."""
        return decode_latents(self._autoencoder(), latents)

    def latents_of(self, batch: ClipBatch) -> Float[Tensor, "b c f h w"]:
        """The batch's cached latents, or its frames encoded now."""
        if batch.latents is not None:
            return batch.latents.float()
        if batch.frames is None:
            raise ValueError(f"clips need frames or latents, got neither: {batch.sources[0]}, ...")
        return self.encode(batch.frames)

    def text_context(self, *, with_keys: bool = False) -> TextContext:
        """The prompt, projected; `with_keys` prepares it for many calls with the same weights."""
        return self.fdm.embed_text(self.text, with_keys=with_keys)

    @torch.no_grad()
    def infer_latent_actions(
        self, frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"]
    ) -> Float[Tensor, "b n k"]:
        """The most likely latent action of each transition, for driving this or another episode (lacg)."""
        idm, _ = self._latent_parts()
        return idm.latent_actions(idm(frames)).mean

    @torch.no_grad()
    def control(
        self,
        robot_actions: Float[Tensor, "b n a"],
        frame: UInt8[Tensor, "b 3 H W"] | Float[Tensor, "b 3 H W"],
    ) -> Float[Tensor, "b n k"]:
        """Latent actions for normalised robot commands that start at `frame` (lacg)."""
        idm, controller = self._latent_parts()
        return controller(robot_actions, idm(frame[:, None]).scene[:, 0])

    def parts(self) -> dict[str, nn.Module]:
        """Everything trained beside the backbone, by the name of its file."""
        modules = {
            "action_interface": self.interface,
            "scene": self.fdm.scene,
            "idm": self.idm,
            "controller": self.controller,
            "embodiment_classifier": self.embodiment_classifier,
            "mcl": self.mcl,
        }
        return {name: module for name, module in modules.items() if module is not None}

    def _autoencoder(self) -> VideoAutoencoder:
        if self.vae is None:
            raise ValueError("this world model was built without an autoencoder; name one in config.vae")
        return self.vae

    def _latent_parts(self) -> tuple[InverseDynamicsModel, Controller]:
        if self.idm is None or self.controller is None:
            raise ValueError(f"latent actions need regime 'lacg', this model is {self.config.regime!r}")
        return self.idm, self.controller


def _check_parts(
    contract: FrameContract, backbone: WanTransformer3DModel, vae: VideoAutoencoder | None
) -> None:
    channels = backbone.config["in_channels"]
    if channels != contract.latent_channels:
        raise ValueError(
            f"the backbone takes {channels} latent channels, the data has {contract.latent_channels}"
        )
    _, patch_height, patch_width = backbone.config["patch_size"]
    _, height, width = contract.latent_grid
    if height % patch_height or width % patch_width:
        raise ValueError(
            f"latents of {height}x{width} do not divide into patches of {patch_height}x{patch_width}"
        )
    if vae is not None:
        expected = (contract.latent_channels, contract.latent_scale)
        got = (vae.config["z_dim"], vae.config["scale_factor_spatial"])
        if got != expected:
            raise ValueError(f"the autoencoder must have (channels, pixels per latent) {expected}, got {got}")


def _scene(
    config: WorldModelConfig, contract: FrameContract, backbone: WanTransformer3DModel
) -> SceneEmbedding | None:
    if not config.scene:
        return None
    shape = backbone.config
    width = shape["num_attention_heads"] * shape["attention_head_dim"]
    return SceneEmbedding(contract.latent_grid, tuple(shape["patch_size"]), shape["in_channels"], width)


def _token_gates(config: WorldModelConfig, backbone: WanTransformer3DModel) -> tuple[int, int] | None:
    if config.action_path == "adaln":
        return None
    return backbone.config["num_layers"], backbone.config["num_attention_heads"]


def _idm(config: WorldModelConfig, normalizer: ActionNormalizer) -> InverseDynamicsModel | None:
    if config.regime == "no_action" or (config.regime == "acg" and not config.objective.idm_weight):
        return None
    latent_action_dim = config.latent_action_dim if config.regime == "lacg" else None
    return InverseDynamicsModel(
        config.idm, latent_action_dim=latent_action_dim, robot_action_dim=normalizer.width
    )


def _controller(config: WorldModelConfig, normalizer: ActionNormalizer) -> Controller | None:
    if config.regime != "lacg":
        return None
    return Controller(normalizer.width, config.idm.hidden, config.latent_action_dim)


def _embodiment_classifier(
    config: WorldModelConfig, normalizer: ActionNormalizer
) -> EmbodimentClassifier | None:
    num_embodiments = len(normalizer.embodiments)
    if config.regime != "lacg" or num_embodiments < 2 or not config.objective.adversarial_weight:
        return None
    return EmbodimentClassifier(config.latent_action_dim, num_embodiments)


def _mcl(config: WorldModelConfig, contract: FrameContract, condition_dim: int) -> MechanisticContrast | None:
    if config.mcl is None:
        return None
    _, height, width = contract.latent_grid
    frame_dim = contract.latent_channels * height * width
    group_dim = FRAMES_PER_LATENT * condition_dim
    contrast = MechanisticContrast(
        config.mcl,
        LatentVideoCritic(contract.latent_channels, group_dim),
        ProjectionHead(config.mcl.feature_dim(frame_dim, frame_dim)),
        ProjectionHead(group_dim),
    )
    _freeze_unreached(contrast)
    return contrast


def _freeze_unreached(contrast: MechanisticContrast) -> None:
    """What this mode cannot train must not ask for a gradient: distributed training would wait for it."""
    config, critic = contrast.config, contrast.critic
    assert isinstance(critic, LatentVideoCritic)
    if config.variant in ("nce", "fisher", "denoising"):
        contrast.gradient_head.requires_grad_(False)
        contrast.condition_head.requires_grad_(False)
    elif config.variant == "jacobian_vjp" or config.mode not in ("exact", "hessian_diag"):
        critic.requires_grad_(False)
    if config.variant != "nce":
        # A constant in the score has no derivative by z.
        assert isinstance(critic.score[-1], nn.Linear)
        critic.score[-1].bias.requires_grad_(False)
