"""The world model as one object: backbone, autoencoder, action interface, IDM, controller and scales."""

import dataclasses
import logging
import tempfile
from pathlib import Path

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from huggingface_hub import HfApi
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn
from transformers import Dinov2Model

from worldmodel.checkpoint.folder import (
    CONTRACT_FILE,
    IMAGE_ENCODER_FILE,
    LORA_FILE,
    Description,
    backbone_parts,
    backbone_paths,
    check_external,
    check_parts,
    describe_sources,
    has_backbone,
    image_encoder,
    locate,
    named_prompt,
    naming,
    read_adapters,
    read_backbone,
    read_description,
    write_backbone,
    write_description,
)
from worldmodel.checkpoint.lora_files import start_backbone, write_lora
from worldmodel.checkpoint.model_card import model_card
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.data.provenance import TrainedOn
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.diffusion.euler import sigma_schedule
from worldmodel.files import read_beneath, read_into, replaced_folder, write_tensors
from worldmodel.models.actions.protocol import ActionEmbedding, blank_extras
from worldmodel.models.attention import TextContext
from worldmodel.models.backbone import (
    PROMPT_KEY,
    LoraConfig,
    add_lora,
    merge_lora,
    read_prompt,
)
from worldmodel.models.compositor import Composed, KnownFrame
from worldmodel.models.config import Dtype, FrameContract, WorldModelConfig
from worldmodel.models.dynamics import ForwardDynamics
from worldmodel.models.idm import Controller, InverseDynamicsModel
from worldmodel.models.parts import build_parts, check_fit, condition_dim
from worldmodel.models.pose_track import PoseTrack
from worldmodel.models.vae import VideoAutoencoder, decode_latents, encode_frames, freeze, load_vae
from worldmodel.types import FRAMES_PER_LATENT, ClipBatch, Extras

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROMPT_FILE = "prompt.safetensors"


class WorldModel(nn.Module):
    """First frames + actions -> video; a new one comes from `build`, a saved one from `from_pretrained`.

    Examples:
        >>> from worldmodel import WorldModel
        >>> model = WorldModel.from_pretrained("desk")  # the shipped one
        >>> model.config.regime, model.contract.num_frames, sorted(model.normalizer.stats)
        ('acg', 17, ['crane', 'heron', 'wren'])
    """

    text: Tensor  # embedding of the one prompt that all clips share

    def __init__(
        self,
        config: WorldModelConfig,
        contract: FrameContract,
        normalizer: ActionNormalizer,
        backbone: WanTransformer3DModel,
        vae: VideoAutoencoder | None = None,
        text: Float[Tensor, "1 s e"] | None = None,
        image_encoder: Dinov2Model | None = None,
    ) -> None:
        super().__init__()
        check_fit(contract, backbone, vae)
        self.config, self.contract, self.normalizer = config, contract, normalizer
        # Whether adapters sit on what config.pretrained names, unchanged: they are then saved without it.
        self.has_published_base = False
        self.trained_on: TrainedOn | None = None  # set by training and by `from_pretrained`
        if config.lora.rank:
            add_lora(backbone, config.lora)
        parts = build_parts(config, contract, normalizer, backbone, image_encoder)
        self.fdm = ForwardDynamics(
            backbone,
            prediction=config.prediction,
            causal=config.causal,
            scene=parts.scene,
            refiner=parts.refiner,
            gates=parts.interface.gates,
        )
        self.interface = parts.interface
        self.idm, self.controller = parts.idm, parts.controller
        self.embodiment_classifier, self.mcl = parts.embodiment_classifier, parts.mcl
        self.compositor, self.hand_references = parts.compositor, parts.hand_references
        self.vae = None if vae is None else freeze(vae)
        if text is None:
            text = torch.zeros(1, 1, backbone.config["text_dim"])
        self.register_buffer("text", text, persistent=False)
        self._freeze_unused()

    @classmethod
    def build(
        cls,
        config: WorldModelConfig,
        contract: FrameContract,
        normalizer: ActionNormalizer,
        *,
        vae: VideoAutoencoder | None = None,
        allow_external: bool = False,
    ) -> "WorldModel":
        """A new model on the backbone, autoencoder and prompt that the config names.

        `allow_external` lets a world model named in config.pretrained name another backbone in turn.
        """
        trained = backbone_parts(config)
        if vae is None and config.vae:
            vae = load_vae(config.vae)
        text = named_prompt(config) if config.prompt else None
        backbone, is_published = _new_backbone(config, allow_external)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = cls(config, contract, normalizer, backbone, vae, text)
        model.has_published_base = is_published
        for name, file in trained.items():
            # A refiner learns to look at pose maps in addition: it serves with and without them.
            # Shorter clips than the backbone was trained on use the first of its positions in time.
            longer = {"time": 1} if name == "scene" else None
            read_into(model.parts()[name], file, optional=("poses.",), longer=longer)
        for name, file in backbone_paths(config).items():
            read_beneath(model.interface[name], file, f"{name}.")
        return model

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        pretrained: str | None = None,
        vae: str | None = None,
        dtype: Dtype | None = None,
        lora: LoraConfig | None = None,
        allow_external: bool = False,
    ) -> "WorldModel":
        """A saved model, from a folder or hub id.

        What it says about itself is checked against its files before anything is loaded.

        Args:
            source: what `save_pretrained` or `push_to_hub` wrote.
            pretrained: where the backbone under saved adapters is, if not where the config says.
            vae: where a published autoencoder is, if not where the config says.
            dtype: storage of the backbone's weights, if not as saved.
            lora: adapters to train on, if not the saved ones; those of another rank or alpha are merged into
                the backbone, and rank 0 leaves it without any.
            allow_external: load also from other folders or hub ids that the model's config.yaml names.
        """
        folder = locate(str(source))
        known = read_description(folder)
        log.info("%s", describe_sources(folder, known.config))
        if not allow_external:
            check_external(folder, known.config, {"pretrained": pretrained, "vae": vae})
        saved = dataclasses.replace(
            known.config,
            pretrained=pretrained or known.config.pretrained,
            vae=vae or known.config.vae,
            dtype=dtype or known.config.dtype,
        )
        config = dataclasses.replace(saved, lora=lora or saved.lora)
        backbone = read_backbone(folder, saved, DTYPES[config.dtype], config.lora)
        autoencoder = str(folder / "vae") if (folder / "vae").is_dir() else config.vae
        prompt = folder / PROMPT_FILE
        text = read_prompt(prompt, backbone.config["text_dim"]) if prompt.exists() else None
        check_parts(folder, backbone, dataclasses.replace(known, config=config))
        loaded = load_vae(autoencoder) if autoencoder else None
        with naming(folder):
            model = cls(
                config, known.contract, known.normalizer, backbone, loaded, text, image_encoder(folder)
            )
        model.trained_on = known.trained_on
        for name, module in model.parts().items():
            read_into(module, folder / f"{name}.safetensors")
        if config.lora.continues(saved.lora):
            read_adapters(folder, backbone)
            model.has_published_base = not has_backbone(folder)
        return model.eval()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model as one folder (see `folder.py`); an older one there is replaced at the end."""
        with replaced_folder(Path(folder), CONTRACT_FILE) as new:
            known = Description(self.config, self.contract, self.normalizer, self.trained_on)
            write_description(new, known)
            (new / "README.md").write_text(model_card(self.config, self.contract, self.normalizer))
            if not (self.config.lora.rank and self.has_published_base):
                write_backbone(new / "transformer", self.fdm.backbone)
            if self.config.lora.rank:
                write_lora(new / LORA_FILE, self.fdm.backbone)
            for name, module in self.parts().items():
                write_tensors(new / f"{name}.safetensors", module.state_dict())
            if self.config.prompt:
                write_tensors(new / PROMPT_FILE, {PROMPT_KEY: self.text})
            if self.idm is not None:
                self.idm.encoder.config.to_json_file(new / IMAGE_ENCODER_FILE)
            if isinstance(self.vae, CausalAutoencoder) or (self.vae is not None and not self.config.vae):
                self.vae.save_pretrained(new / "vae")

    def push_to_hub(self, repo_id: str, *, private: bool = False) -> None:
        """Upload what `save_pretrained` writes."""
        api = HfApi()
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            self.save_pretrained(folder)
            api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(repo_id=repo_id, folder_path=folder)

    def merge_adapters(self) -> None:
        """Fold LoRA adapters into the backbone: the same model without them, saved in full from now on."""
        if not self.config.lora.rank:
            raise ValueError("this model has no adapters to merge")
        merge_lora(self.fdm.backbone)
        self._freeze_unused()
        self.config = dataclasses.replace(self.config, lora=LoraConfig())

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
        """Noise levels of so many sampling steps; 0: as many as show this model best."""
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
        """Frames for those decoded, with hands where the rows have them; the same without a compositor."""
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
        """Everything trained beside the backbone, by the name of its file."""
        modules = {
            "interface": self.interface,
            "scene": self.fdm.scene,
            "refiner": self.fdm.refiner,
            "idm": self.idm,
            "controller": self.controller,
            "embodiment_classifier": self.embodiment_classifier,
            "mcl": self.mcl,
            "compositor": self.compositor,
            "hand_references": self.hand_references,
        }
        return {name: module for name, module in modules.items() if module is not None}

    def freeze_untrained(self) -> None:
        """Before a training: no gradients for what the config leaves as it is."""
        if self.config.trained == "interface":
            for part in (self.fdm.backbone, self.fdm.scene, self.fdm.refiner):
                if part is not None:
                    part.requires_grad_(False)
        if self.config.trained == "compositor":
            self.requires_grad_(False)
            assert self.compositor is not None, "the config asks for one"
            self.compositor.requires_grad_()

    def _freeze_unused(self) -> None:
        if self.text.shape[1] == 1 and not self.config.actions.cross_attends:
            self.fdm.freeze_unused_query_key()
        if self.config.actions.replaces_prompt:
            self.fdm.backbone.get_submodule("condition_embedder.text_embedder").requires_grad_(False)

    def _autoencoder(self) -> VideoAutoencoder:
        if self.vae is None:
            raise ValueError("this world model was built without an autoencoder; name one in config.vae")
        return self.vae

    def _latent_parts(self) -> tuple[InverseDynamicsModel, Controller]:
        if self.idm is None or self.controller is None:
            raise ValueError(f"latent actions need regime 'lacg', this model is {self.config.regime!r}")
        return self.idm, self.controller


def _new_backbone(config: WorldModelConfig, allow_external: bool) -> tuple[WanTransformer3DModel, bool]:
    """The backbone of a new model, and whether it is exactly what `pretrained` names."""
    dtype, folder = DTYPES[config.dtype], Path(config.pretrained)
    if config.pretrained and (folder / LORA_FILE).is_file():
        # A world model with adapters: its backbone is the one with the adapters in it.
        known = read_description(folder).config
        if not allow_external:
            check_external(folder, known, {"vae": config.vae, "idm.pretrained": "not loaded"})
        return read_backbone(folder, known, dtype, LoraConfig()), False
    return start_backbone(config, dtype), bool(config.pretrained) and not config.lora.start
