"""Building, loading, saving and publishing: the part of `WorldModel` that knows files."""

import dataclasses
import logging
import tempfile
from pathlib import Path
from typing import TypeVar

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from huggingface_hub import HfApi
from jaxtyping import Float
from torch import Tensor, nn
from transformers import Dinov2Model

from worldmodel.checkpoint.folder import (
    CONTRACT_FILE,
    IMAGE_ENCODER_FILE,
    LORA_FILE,
    PROMPT_FILE,
    Description,
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
    small_net_file,
    write_backbone,
    write_description,
)
from worldmodel.checkpoint.lora_files import start_backbone, write_lora
from worldmodel.checkpoint.model_card import model_card
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.data.provenance import TrainedOn
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.device import AnyDevice, find_device
from worldmodel.files import read_beneath, read_into, replaced_folder, write_tensors
from worldmodel.models.actions.interface import ActionInterface
from worldmodel.models.backbone import DTYPES, PROMPT_KEY, LoraConfig, merge_lora, read_prompt
from worldmodel.models.config import Dtype, InputSpec, WorldModelConfig
from worldmodel.models.dynamics import ForwardDynamics
from worldmodel.models.idm import InverseDynamicsModel
from worldmodel.models.vae import VideoAutoencoder, load_vae

M = TypeVar("M", bound="SavedModel")
log = logging.getLogger(__name__)


class SavedModel(nn.Module):
    """A model that is built from a config, saved as one folder and loaded from it."""

    config: WorldModelConfig
    contract: InputSpec
    normalizer: ActionNormalizer
    trained_on: TrainedOn | None  # set by training and by `from_pretrained`
    # Whether adapters sit on what config.pretrained names, unchanged: they are then saved without it.
    has_published_base: bool
    vae: VideoAutoencoder | None  # frozen
    fdm: ForwardDynamics  # noisy latents, sigma, embedding, prompt -> velocity and clean estimate
    interface: ActionInterface
    idm: InverseDynamicsModel | None
    text: Tensor  # embedding of the one prompt that all clips share

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
        raise NotImplementedError

    def parts(self) -> dict[str, nn.Module]:
        """Trained modules other than the backbone, by name; attribute and file have the same name."""
        raise NotImplementedError

    @classmethod
    def build(
        cls: type[M],
        config: WorldModelConfig,
        contract: InputSpec,
        normalizer: ActionNormalizer,
        *,
        vae: VideoAutoencoder | None = None,
        allow_external: bool = False,
    ) -> M:
        """A new model on the backbone, autoencoder and prompt that the config names.

        `allow_external` lets a world model named in config.pretrained name another backbone in turn.
        """
        small = small_net_file(config)
        if vae is None and config.vae:
            vae = load_vae(config.vae)
        text = named_prompt(config) if config.prompt else None
        backbone, is_published = _new_backbone(config, allow_external)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = cls(config, contract, normalizer, backbone, vae, text)
        model.has_published_base = is_published
        if small is not None and config.small is not None:
            # A refiner learns to look at pose maps in addition: it serves with and without them.
            # Shorter clips than the backbone was trained on use the first of its positions in time.
            longer = {"scene.time": 1} if config.small.scene else None
            read_into(model.parts()["small"], small, optional=("refiner.poses.",), longer=longer)
        for name, file in backbone_paths(config).items():
            read_beneath(model.interface[name], file, f"{name}.")
        return model

    @property
    def device(self) -> torch.device:
        """The device that holds its parameters."""
        return self.text.device

    @classmethod
    def from_pretrained(
        cls: type[M],
        source: str | Path,
        *,
        pretrained: str | None = None,
        vae: str | None = None,
        dtype: Dtype | None = None,
        lora: LoraConfig | None = None,
        allow_external: bool = False,
        device: AnyDevice = "auto",
    ) -> M:
        """A saved model, from a folder or hub id, in evaluation mode.

        What it says about itself is checked against its files before anything is loaded.

        Args:
            source: what `save_pretrained` or `push_to_hub` wrote.
            pretrained: where the backbone under saved adapters is, if not where the config says.
            vae: where a published autoencoder is, if not where the config says.
            dtype: storage of the backbone's weights, if not as saved.
            lora: adapters to train on, if not the saved ones; those of another rank or alpha are merged into
                the backbone, and rank 0 leaves it without any.
            allow_external: load also from other folders or hub ids that the model's config.yaml names.
            device: where it computes: auto (a GPU if there is one), cpu, cuda or mps.
        """
        folder, place = locate(str(source)), find_device(device)
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
        return model.eval().to(place)

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
        self.freeze_unused()
        self.config = dataclasses.replace(self.config, lora=LoraConfig())

    def freeze_unused(self) -> None:
        """No gradients for what a prompt of one token, or a path in its place, leaves without effect."""
        if self.text.shape[1] == 1 and not self.config.actions.cross_attends:
            self.fdm.freeze_unused_query_key()
        if self.config.actions.replaces_prompt:
            self.fdm.backbone.get_submodule("condition_embedder.text_embedder").requires_grad_(False)


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
