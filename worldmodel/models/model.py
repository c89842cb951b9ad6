"""The world model as one object; `parts.py` lists what it has, `objectives/training_step.py` has the loss."""

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn
from transformers import Dinov2Model

from worldmodel.checkpoint.save_load import SavedModel
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.desk.small_net import SmallNet
from worldmodel.diffusion.euler import sigma_schedule
from worldmodel.mcl.contrast import MechanisticContrast
from worldmodel.models.actions.interface import ActionInterface
from worldmodel.models.actions.protocol import ActionEmbedding, blank_extras
from worldmodel.models.attention import TextContext
from worldmodel.models.backbone import add_lora
from worldmodel.models.compositor import Composed, Compositor, KnownFrame
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.dynamics import ForwardDynamics
from worldmodel.models.hand_references import HandReferences
from worldmodel.models.idm import Controller, EmbodimentClassifier, InverseDynamicsModel
from worldmodel.models.parts import build_parts, check_fit, condition_dim
from worldmodel.models.picture_head import PictureHead
from worldmodel.models.pose_track import PoseTrack
from worldmodel.models.vae import VideoAutoencoder, decode_latents, encode_frames, freeze
from worldmodel.types import FRAMES_PER_LATENT, ClipBatch, Extras


class WorldModel(SavedModel):
    """First frames + actions -> video; a new one comes from `build`, a saved one from `from_pretrained`.

    frames --vae--> latents --noise, sigma--> fdm --velocity, sampler--> latents --vae--> frames
    robot actions + extras (acg), or latent actions (lacg) --interface--> ActionEmbedding --> fdm
    frames --idm--> latent actions, or robot actions;  robot actions --controller--> latent actions

    Examples:
        >>> from worldmodel import WorldModel
        >>> model = WorldModel.from_pretrained("desk")  # the shipped one
        >>> model.config.regime, model.contract.num_frames, sorted(model.normalizer.stats)
        ('acg', 17, ['crane', 'heron', 'wren'])
    """

    controller: Controller | None
    embodiment_classifier: EmbodimentClassifier | None
    mcl: MechanisticContrast | None
    compositor: Compositor | None
    hand_references: HandReferences | None
    head: PictureHead | None

    def __init__(
        self,
        config: WorldModelConfig,
        contract: InputSpec,
        normalizer: ActionNormalizer,
        backbone: WanTransformer3DModel,
        vae: VideoAutoencoder | None = None,
        text: Float[Tensor, "1 s e"] | None = None,
        image_encoder: Dinov2Model | None = None,
    ) -> None:
        nn.Module.__init__(self)
        check_fit(contract, backbone, vae)
        self.config, self.contract, self.normalizer = config, contract, normalizer
        self.has_published_base, self.trained_on = False, None
        if config.lora.rank:
            add_lora(backbone, config.lora)
        parts = build_parts(config, contract, normalizer, backbone, image_encoder)
        self._part_names = tuple(parts)
        small, interface = parts.pop("small"), parts["interface"]
        assert isinstance(interface, ActionInterface)
        assert isinstance(small, SmallNet | None)
        self.fdm = ForwardDynamics(backbone, small, interface.gates, causal=config.causal)
        for name, part in parts.items():
            self.register_module(name, part)
        self.vae = None if vae is None else freeze(vae)
        text = torch.zeros(1, 1, backbone.config["text_dim"]) if text is None else text
        self.register_buffer("text", text, persistent=False)
        self.freeze_unused()

    @property
    def small(self) -> SmallNet | None:
        """What only a small net from scratch has; a part of `fdm`."""
        return self.fdm.small

    @property
    def condition_dim(self) -> int:
        """Size of the action vector that drives one transition: robot (acg), latent (lacg) or none."""
        return condition_dim(self.config, self.normalizer)

    @property
    def judge(self) -> InverseDynamicsModel | None:
        """The IDM, if its reading of robot actions has been trained: with idm_weight 0 it never was."""
        return self.idm if self.config.objective.idm_weight > 0 else None

    def train(self, mode: bool = True) -> "WorldModel":
        """As in torch, but the frozen autoencoder stays in evaluation mode."""
        super().train(mode)
        if self.vae is not None:
            self.vae.eval()
        return self

    def sigmas(self, num_inference_steps: int = 0) -> Float[Tensor, " levels"]:
        """Noise levels for this number of sampling steps; 0 takes the model's own default."""
        count = num_inference_steps or self.contract.num_inference_steps
        return sigma_schedule(count, self.config.objective.shift)

    def encode(
        self, frames: UInt8[Tensor, "b t 3 H W"] | Float[Tensor, "b t 3 H W"]
    ) -> Float[Tensor, "b c f h w"]:
        """Normalized latents of frames (uint8, or float in [0, 1])."""
        self.contract.check(size=(frames.shape[-2], frames.shape[-1]))
        return encode_frames(self._autoencoder(), frames)

    def decode(self, latents: Float[Tensor, "b c f h w"]) -> Float[Tensor, "b t 3 H W"]:
        """Frames in [0, 1]."""
        return decode_latents(self._autoencoder(), latents)

    def compose(self, decoded: Float[Tensor, "b n 3 H W"], hands: PoseTrack, known: KnownFrame) -> Composed:
        """Apply the compositor to decoded frames; without one they are returned unchanged."""
        if self.compositor is None:
            return Composed.still(decoded)
        composed: Composed = self.compositor(decoded, hands, known, self.hand_references)
        return composed

    def embed(
        self,
        actions: Float[Tensor, "b n u"] | None,
        extras: Extras | None = None,
        missing: Bool[Tensor, "b f"] | None = None,
    ) -> ActionEmbedding:
        """Actions and the rows of action paths, as the backbone takes them.

        Args:
            actions: of each transition; none: unknown or no_action, `missing` says of how many frames.
            extras: what `config.actions` reads; none: unknown as well.
            missing: latent frames whose actions are unknown.
        """
        if actions is None:
            assert missing is not None, "the size of unknown actions"
            size = len(missing), FRAMES_PER_LATENT * (missing.shape[1] - 1)
            actions = torch.zeros(*size, self.condition_dim, device=missing.device)
            if self.config.regime != "no_action" or not extras:
                missing = torch.ones_like(missing)
            extras = extras or blank_extras(self.config.actions.row_shapes, *size, missing.device)
        embedding: ActionEmbedding = self.interface(actions, extras, missing)
        return embedding

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
        """Latent actions for normalized robot actions that start at `frame` (lacg)."""
        idm, controller = self._latent_parts()
        return controller(robot_actions, idm(frame[:, None]).scene[:, 0])

    def parts(self) -> dict[str, nn.Module]:
        """Trained modules other than the backbone, by name; attribute and file have the same name."""
        found = {name: getattr(self, name) for name in self._part_names}
        return {name: part for name, part in found.items() if part is not None}

    def freeze_untrained(self) -> None:
        """Disable gradients of all parameters that `config.trained` excludes; call it before training."""
        if self.config.trained == "interface":
            self.fdm.requires_grad_(False)
        if self.config.trained in ("compositor", "head"):
            self.requires_grad_(False)
            self.parts()[self.config.trained].requires_grad_()

    def _autoencoder(self) -> VideoAutoencoder:
        if self.vae is None:
            raise ValueError("this world model was built without an autoencoder; name one in config.vae")
        return self.vae

    def _latent_parts(self) -> tuple[InverseDynamicsModel, Controller]:
        if self.idm is None or self.controller is None:
            raise ValueError(f"latent actions need regime 'lacg', this model is {self.config.regime!r}")
        return self.idm, self.controller
