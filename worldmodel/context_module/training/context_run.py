"""Builds a context-model run from its config: data, model, trained parameters, validation."""

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from accelerate import Accelerator
from diffusers.models.autoencoders.vq_model import VQModel

from worldmodel.checked import read_json
from worldmodel.checkpoint.folder import CONTRACT_FILE
from worldmodel.context_module.data.open_contexts import (
    ContextDataConfig,
    ContextPictures,
    context_identity,
    load_contexts,
    open_contexts,
)
from worldmodel.context_module.data.types import ContextDataset, Do, training_contexts
from worldmodel.context_module.models.context_model import ContextModel, ContextModelConfig
from worldmodel.context_module.models.hosts import FirstStageHost, as_host
from worldmodel.context_module.objective import ContextObjective, context_step, elbo
from worldmodel.files import fingerprint
from worldmodel.hub import load_part
from worldmodel.mddiff.models.image_vae import ImageVae
from worldmodel.mddiff.training.image_run import ImageRun
from worldmodel.training.loop.checkpoints import Checkpoint
from worldmodel.training.loop.fit import FitConfig
from worldmodel.training.loop.tracking import Tracker

log = logging.getLogger(__name__)
SCALE_PICTURES = 128  # pictures that measure the scale of a first stage's latents


@dataclass(frozen=True)
class ContextValidationConfig:
    """What is measured on test pictures."""

    num_pictures: int = 256  # of each context; 0 = no validation
    num_held_out: int = 4  # pairs among the contexts that are never trained on


@dataclass(frozen=True)
class ContextTrainConfig:
    """One training run of a context model or of a baseline."""

    output: str = "outputs/context"  # folder of checkpoints, curves and the finished model
    start_from: str = ""  # folder of a trained host: a ContextModel, an ImageVae or a VQ-VAE
    train: Literal["all", "module", "module_first"] = "all"  # module: host frozen; module_first: then all
    module_share: float = 0.2  # module_first: share of the steps for which the host stays frozen
    contexts: Literal["all", "observational"] = "all"  # contexts to train on
    data: ContextDataConfig = field(default_factory=ContextDataConfig)
    model: ContextModelConfig = field(default_factory=ContextModelConfig)
    objective: ContextObjective = field(default_factory=ContextObjective)
    validation: ContextValidationConfig = field(default_factory=ContextValidationConfig)
    fit: FitConfig = field(default_factory=FitConfig)

    def __post_init__(self) -> None:
        if self.train != "all" and not self.start_from:
            raise ValueError(
                f"train={self.train} keeps the host as it is: start_from must name a trained one"
            )
        if not 0 < self.module_share < 1:
            raise ValueError(f"module_share is between 0 and 1, got {self.module_share}")
        if self.fit.machine.parallel == "fsdp2":
            raise ValueError("context models are small: use machine.parallel=ddp")


class ContextValidation:
    """Bound on test pictures in bits per dimension, for trained contexts and for held-out pairs."""

    def __init__(self, dataset: ContextDataset, config: ContextValidationConfig, seed: int) -> None:
        self.dataset, self.seed = dataset, seed
        self.indices = np.arange(min(config.num_pictures, len(dataset)))
        self.trained = training_contexts(len(dataset.concept_names))
        step = max(1, len(dataset.held_out) // max(config.num_held_out, 1))
        self.held_out = dataset.held_out[::step][: config.num_held_out]

    def __call__(
        self, model: ContextModel, step: int, accelerator: Accelerator, tracker: Tracker | None
    ) -> dict[str, float]:
        """Bits per image dimension: `loss` on interventions that were trained, `held_out` on others."""
        measured = {"loss": self._bits(model, self.trained, accelerator)}
        if self.held_out:
            measured["held_out"] = self._bits(model, self.held_out, accelerator)
        return measured

    def _bits(self, model: ContextModel, contexts: tuple[Do, ...], accelerator: Accelerator) -> float:
        generator = torch.Generator().manual_seed(self.seed)
        bits = []
        for do in contexts:
            images = self.dataset.images(do, self.indices).to(accelerator.device)
            bound = elbo(model, images, do, generator)
            nats = (bound.nll + bound.kl).mean()
            bits.append(float(nats) / np.log(2) / model.host.pixels(images[:1]).numel())
        return float(np.mean(bits))


def build_run(config: ContextTrainConfig) -> ImageRun:
    """Open the data, build or load the model, and freeze what is not trained."""
    dataset = open_contexts(config.data, "train")
    pictures = ContextPictures(dataset, config.contexts)
    log.info("%s: concepts %s", dataset.name, ", ".join(dataset.concept_names))
    check_concepts(config, dataset)
    model = build_model(config, dataset)
    step = partial(
        context_step, objective=config.objective, num_pictures=len(pictures) * len(pictures.contexts)
    )
    validation = None
    if config.validation.num_pictures:
        test = open_contexts(config.data, "test")
        validation = ContextValidation(test, config.validation, config.fit.seed)
    identity = {
        "start_from": fingerprint(Path(config.start_from), (".safetensors",)) if config.start_from else "",
        "train": config.train,
        "data": context_identity(pictures),
        "model": asdict(config.model),
        "objective": asdict(config.objective),
    }
    export = partial(export_model, config, dataset)
    return ImageRun(config, model, pictures, step, load_contexts, validation, identity, export)


def check_concepts(config: ContextTrainConfig, dataset: ContextDataset) -> None:
    """Raise ValueError unless the model has as many concepts as the data."""
    found = len(dataset.concept_names)
    if found != config.model.module.num_concepts:
        raise ValueError(
            f"{dataset.name} has {found} concepts ({', '.join(dataset.concept_names)}): set "
            f"model.module.num_concepts={found}, got {config.model.module.num_concepts}"
        )


def build_model(config: ContextTrainConfig, dataset: ContextDataset) -> ContextModel:
    """Build the model; random weights depend only on the seed."""
    torch.manual_seed(config.fit.seed)
    model = ContextModel(config.model)
    if config.start_from:
        load_start(model, config.start_from, dataset)
    if config.train == "module":
        model.freeze_host()
    return model


def load_start(model: ContextModel, folder: str, dataset: ContextDataset) -> None:
    """Load a trained host, and its module too if the folder holds a model of the same kind."""
    found = list(_started(model, folder, dataset))
    try:
        model.load_state_dict(dict(found), strict=False)
    except RuntimeError as error:
        raise ValueError(f"start_from={folder} does not fit the model: {error}") from error
    missing = [name for name in model.host.state_dict() if f"host.{name}" not in dict(found)]
    if missing:
        raise ValueError(f"start_from={folder} lacks {missing[0]} of the host: is it of the same kind?")


def _started(model: ContextModel, folder: str, dataset: ContextDataset) -> Iterator[tuple[str, torch.Tensor]]:
    contract = Path(folder) / CONTRACT_FILE
    kind = read_json(contract).get("model") if contract.is_file() else "VQ-VAE"
    if kind == "ContextModel":
        trained = ContextModel.from_pretrained(folder, device="cpu")
        is_same = trained.config == model.config
        yield from (
            (name, tensor)
            for name, tensor in trained.state_dict().items()
            if is_same or name.startswith("host.")
        )
        return
    if kind not in ("ImageVae", "VQ-VAE"):
        raise ValueError(f"{contract}: expected a ContextModel, an ImageVae or a VQ-VAE, found {kind!r}")
    if kind == "VQ-VAE" and not (Path(folder) / "config.json").is_file():
        raise ValueError(f"no model at {folder}: expected {CONTRACT_FILE} or a VQ-VAE's config.json in it")
    loaded = (
        ImageVae.from_pretrained(folder, "cpu") if kind == "ImageVae" else load_part(VQModel, Path(folder))
    )
    host, _ = as_host(loaded, model.config.host.image_size)
    if isinstance(host, FirstStageHost):
        host.set_latent_scale(dataset.images((), np.arange(min(SCALE_PICTURES, len(dataset)))))
    yield from ((f"host.{name}", tensor) for name, tensor in host.state_dict().items())


def export_model(
    config: ContextTrainConfig, dataset: ContextDataset, checkpoint: Checkpoint, folder: Path
) -> None:
    """Write a training checkpoint as a model folder, with averaged weights if there are any."""
    model = build_model(config, dataset)
    tensors = {**checkpoint.tensors("weights"), **checkpoint.tensors("ema")}
    unexpected = model.load_state_dict(tensors, strict=False).unexpected_keys
    assert not unexpected, unexpected
    model.project()
    model.save_pretrained(folder)
