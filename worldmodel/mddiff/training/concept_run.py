"""Builds a concept-model run from its config: data, the model of each stage, training step and validation."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from diffusers.models.autoencoders.vq_model import VQModel
from torch import nn

from worldmodel.checked import check_ranges
from worldmodel.checkpoint.folder import CONFIG_FILE, CONTRACT_FILE
from worldmodel.config import load_config
from worldmodel.files import fingerprint, replaced_folder
from worldmodel.hub import load_part
from worldmodel.mddiff.data.factors import FactorDataConfig, data_identity, load_images, open_factor_data
from worldmodel.mddiff.data.types import FactorDataset
from worldmodel.mddiff.models.config import MDDiffConfig
from worldmodel.mddiff.models.first_stage import build_vq, codes_from_latents
from worldmodel.mddiff.models.mddiff import MDDiff
from worldmodel.mddiff.objectives.first_stage import VqGan, VqObjective, vq_step
from worldmodel.mddiff.objectives.mddiff import (
    MDDiffObjective,
    mcl_gradient_flow,
    mddiff_step,
    set_trained,
)
from worldmodel.mddiff.training.image_run import ImageRun
from worldmodel.mddiff.training.validation import (
    ConceptValidation,
    ConceptValidationConfig,
    some_indices,
)
from worldmodel.training.loop.checkpoints import Checkpoint
from worldmodel.training.loop.fit import FitConfig
from worldmodel.training.loop.step import StepFn

log = logging.getLogger(__name__)

CONTRAST = "contrast.*"  # parameter-name pattern of critic and heads


@dataclass(frozen=True)
class ConceptTrainConfig:
    """One stage of training a concept model."""

    stage: Literal["vqvae", "diffusion", "mcl"] = "vqvae"  # first stage; 1 (EncDiff or MDDiff); 2
    output: str = "outputs/concepts"  # folder of checkpoints, curves and the finished model
    start_from: str = ""  # diffusion: VQ-VAE folder; mcl: model folder of stage 1
    num_initial_images: int = 128  # images to initialize the codebook (vqvae) or scale latents (diffusion)
    initial_codes: Literal["latents", "uniform"] = "latents"  # codebook at the start; published: uniform
    model: MDDiffConfig = field(default_factory=MDDiffConfig)  # stage mcl only uses decoder and contrast
    vq_objective: VqObjective = field(default_factory=VqObjective)  # stage vqvae
    objective: MDDiffObjective = field(default_factory=MDDiffObjective)  # stages diffusion and mcl
    data: FactorDataConfig = field(default_factory=FactorDataConfig)
    validation: ConceptValidationConfig = field(default_factory=ConceptValidationConfig)
    fit: FitConfig = field(default_factory=FitConfig)

    def __post_init__(self) -> None:
        check_ranges(self, num_initial_images=(1, 1_000_000))
        if (self.stage == "vqvae") == bool(self.start_from):
            raise ValueError(
                f"stage {self.stage}: start_from is for stages diffusion and mcl, got {self.start_from!r}"
            )
        if self.stage != "vqvae":
            self.fit.refuse_micro_batches("the encoder's batch norm takes its statistics from a whole batch")
        if (self.stage == "mcl") != (self.model.contrast is not None):
            raise ValueError(f"model.contrast belongs to stage mcl and to no other, this is {self.stage}")
        if self.stage == "mcl" and self.objective.mcl_weight is None:
            raise ValueError("stage mcl needs objective.mcl_weight (published: 1e-3, for MPI3D 1e-4)")
        if self.stage != "mcl" and self.data.size != self.model.image_size:
            raise ValueError(
                f"data.size {self.data.size} and model.image_size {self.model.image_size} must agree"
            )
        mode = None if self.model.contrast is None else self.model.contrast.mcl.mode
        if self.fit.compile and mode in ("exact", "hessian_diag"):
            raise ValueError(f"torch.compile has no second derivatives, which mcl.mode={mode} needs")
        if self.fit.machine.parallel == "fsdp2":
            raise ValueError("concept models are small: use machine.parallel=ddp")


def build_run(config: ConceptTrainConfig) -> ImageRun:
    """Open the data, build or load the model, and log what is trained."""
    data = open_factor_data(config.data)
    log.info("%s: %s pictures, factors %s", data.name, f"{len(data):,}", factor_summary(data))
    config = resolve(config)
    model = build_model(config, data)
    step: StepFn = vq_step
    if isinstance(model, MDDiff):
        config = replace(config, model=model.config)
        step = partial(mddiff_step, objective=config.objective)
        log.info("parameters: %s", listed(model.parameter_counts()))
    if config.stage == "mcl":
        _log_mcl_flow(config, model, data)
    validation = None
    if config.validation.num_images:
        validation = ConceptValidation(data, config.validation, config.objective, config.fit.seed)
    identity = {
        "start_from": fingerprint(Path(config.start_from), (".safetensors",)) if config.start_from else "",
        "data": data_identity(data),
        "model": asdict(config.model),
        "objective": asdict(config.vq_objective if config.stage == "vqvae" else config.objective),
    }
    export = partial(export_model, config, data)
    return ImageRun(config, model, data, step, load_images, validation, identity, export)


def resolve(config: ConceptTrainConfig) -> ConceptTrainConfig:
    """Fill in the learning rate of critic and heads."""
    contrast = config.model.contrast
    if contrast is None:
        return config
    optim, head_lr = config.fit.optim, contrast.mcl.head_lr
    if head_lr and CONTRAST not in optim.lr_multipliers:
        optim = replace(optim, lr_multipliers={**optim.lr_multipliers, CONTRAST: head_lr / optim.lr})
    return replace(config, fit=replace(config.fit, optim=optim))


def build_model(config: ConceptTrainConfig, data: FactorDataset) -> MDDiff | VqGan:
    """Build the model of this stage; random weights depend only on the seed."""
    torch.manual_seed(config.fit.seed)
    images = data.images(some_indices(len(data), config.num_initial_images, config.fit.seed))
    if config.stage == "vqvae":
        vq = build_vq(config.model.vq)
        if config.initial_codes == "latents":
            codes_from_latents(vq, images.float() / 127.5 - 1, torch.Generator().manual_seed(config.fit.seed))
        return VqGan(vq, config.vq_objective)
    if config.stage == "diffusion":
        model = MDDiff(config.model, _load_vq(config))
        model.set_latent_scale(images)
    else:
        model = _continued(config)
        model.pixels(images[:1])
    set_trained(model, config.objective)
    return model


def _load_vq(config: ConceptTrainConfig) -> VQModel:
    folder = Path(config.start_from)
    if not (folder / "config.json").is_file():
        raise ValueError(f"no VQ-VAE at {folder}: train one with stage vqvae, its result is OUTPUT/model")
    vq = load_part(VQModel, folder)
    expected = build_vq(config.model.vq).config
    for name, asked in expected.items():
        # Tuples became lists in JSON; names with an underscore are internal to diffusers.
        if not name.startswith("_") and list_or_value(vq.config[name]) != list_or_value(asked):
            raise ValueError(f"{folder}: {name} is {vq.config[name]}, but model.vq asks for {asked}")
    return vq


def _continued(config: ConceptTrainConfig) -> MDDiff:
    """A trained model with this config's decoder condition and contrast, newly initialized if they differ."""
    start = MDDiff.from_pretrained(config.start_from, device="cpu")
    kept = replace(start.config, decoder=config.model.decoder, contrast=config.model.contrast)
    model = MDDiff(kept, start.first_stage.vq)
    new = dict(model.parts())
    for name, part in start.parts():
        is_same = {
            "decoder_condition": start.config.decoder == kept.decoder,
            "contrast": start.config.contrast == kept.contrast,
        }
        if is_same.get(name, True):
            new[name].load_state_dict(part.state_dict())
    model.latent_scale.copy_(start.latent_scale)
    return model


def _log_mcl_flow(config: ConceptTrainConfig, model: MDDiff | VqGan, data: FactorDataset) -> None:
    """Log what stage 2 adds and which parts the contrast trains."""
    assert isinstance(model, MDDiff)
    added = additions(load_config(MDDiffConfig, str(Path(config.start_from) / CONFIG_FILE)), model)
    log.info(
        "stage 2 adds %s parameters: %s (the paper says about 265,000 in all, its code has about 471,000)",
        f"{sum(added.values()):,}",
        listed(added) or "none",
    )
    log.info("lambda_MCL %g", config.objective.mcl_weight)
    images = data.images(some_indices(len(data), min(config.fit.micro_batch, 16), config.fit.seed))
    rng = torch.Generator().manual_seed(config.fit.seed)
    # In evaluation mode, so that computing these gradients leaves the batch statistics unchanged.
    log.info("%s", mcl_gradient_flow(model.eval(), images, rng, config.objective))


def additions(before: MDDiffConfig, model: MDDiff) -> dict[str, int]:
    """Number of newly initialized parameters in stage 2, by submodule."""
    parts: dict[str, nn.Module] = {}
    if before.decoder != model.config.decoder:
        parts["decoder condition"] = model.first_stage.condition
    if model.contrast is not None and before.contrast != model.config.contrast:
        parts |= {name.replace("_", " "): part for name, part in model.contrast.named_children()}
    return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}


def export_model(config: ConceptTrainConfig, data: FactorDataset, saved: Checkpoint, folder: Path) -> None:
    """Write a training checkpoint as a model folder, with averaged weights if there are any."""
    model = build_model(config, data)
    tensors = {**saved.tensors("weights"), **saved.tensors("ema")}
    unexpected = model.load_state_dict(tensors, strict=False).unexpected_keys
    assert not unexpected, unexpected
    if isinstance(model, MDDiff):
        model.eval().save_pretrained(folder)
        return
    with replaced_folder(folder, CONTRACT_FILE) as new:
        model.vq.save_pretrained(new)
        (new / CONTRACT_FILE).write_text(json.dumps({"format": 1, "model": "VQModel"}) + "\n")


def factor_summary(data: FactorDataset) -> str:
    """Factor names with their sizes, as text."""
    return listed(dict(zip(data.factor_names, data.factor_sizes, strict=True)))


def listed(counts: Mapping[str, int]) -> str:
    """Format as `name 1,234`, separated by commas."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def list_or_value(value: object) -> object:
    """Convert sequences to lists, so that values read from JSON compare equal."""
    return list(value) if isinstance(value, (list, tuple)) else value
