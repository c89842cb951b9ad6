"""Continuing a trained world model: which settings it keeps, which can change, and which parts are new.

With `start_from`, every setting of `model` that a config leaves out is the trained model's own. Of those that
it names, some can change (the objective, adapters, ...) and some cannot: these are refused by name.
"""

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from worldmodel.checkpoint.folder import PROMPT_FILE, has_backbone, locate, read_description
from worldmodel.data.index import EpisodeIndex
from worldmodel.desk.small_net import build_refiner
from worldmodel.files import fingerprint
from worldmodel.models.backbone import read_prompt
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.models.parts import (
    build_compositor,
    build_embodiment_classifier,
    build_hand_references,
    build_head,
    build_idm,
    build_mcl,
)
from worldmodel.training.datasets import DataConfig, extended_normalizer
from worldmodel.training.model_data import frame_contract

log = logging.getLogger(__name__)

# Settings that training goes on with whatever they were.
CHANGEABLE = ("causal", "dtype", "history", "lora", "mcl", "objective", "sharpen", "trained")
ON_ITS_BACKBONE = "; for a new model on its backbone set model.pretrained={} instead of start_from"
ANEW = "; for another one train a new model, without start_from"
# Why the others cannot change, and what to do instead, by their name or the first part of it.
FIXED = {
    "regime": ("it decides which parts a model has", ON_ITS_BACKBONE),
    "pretrained": ("its own backbone is in the folder", "; for the other one leave start_from out"),
    "backbone": ("its backbone is trained already", ANEW),
    "vae": ("its backbone knows the latents of its own autoencoder only", ANEW),
    "prompt": ("it is trained with its own prompt", ON_ITS_BACKBONE),
    "actions": ("its action interface is trained already", ON_ITS_BACKBONE),
    "latent_action_dim": ("its latent actions have their size already", ON_ITS_BACKBONE),
    "small": ("its backbone is trained with or without these additions already", ANEW),
    "small.prediction": ("its backbone has learned what its output stands for", ANEW),
    "small.refiner_width": ("its refiner is trained already", ANEW),
    "compositor_width": ("its compositor is trained already", ANEW),
    "hand_references": ("its compositor is trained with or without them already", ANEW),
    "head": ("its picture head is trained already", ANEW),
    "idm": ("its IDM is trained already", ON_ITS_BACKBONE),
    "lora": ("its adapters are trained already", ""),
    "seed": ("nothing is drawn from it: new parts are drawn from fit.seed", ""),
}


def settings_beneath(values: Any) -> Mapping[str, WorldModelConfig]:
    """What a config leaves out of `model`: the settings of the model that it starts from, if it does."""
    return {"model": read_description(locate(values.start_from)).config} if values.start_from else {}


def continued_model(
    start_from: str,
    asked: WorldModelConfig,
    data: DataConfig,
    index: EpisodeIndex,
    *,
    allow_external: bool = False,
) -> WorldModel:
    """A trained model with the asked settings, its new parts, and the new data's embodiments added."""
    folder = locate(start_from)
    known = read_description(folder).config
    _check_settings(start_from, folder, known, asked)
    _log_lora_change(start_from, known, asked)
    model = WorldModel.from_pretrained(
        folder,
        # What equals the model's own setting was not named by the user.
        pretrained=asked.pretrained if asked.pretrained != known.pretrained else None,
        vae=asked.vae if asked.vae != known.vae else None,
        dtype=asked.dtype,
        lora=asked.lora,
        allow_external=allow_external,
        device="cpu",
    )
    assert model.vae is not None, "from_pretrained loads the autoencoder"
    _check_clips(start_from, model.contract, frame_contract(index, model.vae))
    num_known = len(model.normalizer.embodiments)
    model.normalizer = extended_normalizer(data, index, model.normalizer)
    asked = _without_lone_class(asked, index)
    model.config, model.fdm.causal = asked, asked.causal
    _fit_judge(model)
    if model.small is not None and asked.small is not None and model.small.refiner is None:
        model.small.refiner = build_refiner(
            asked.small,
            model.contract.latent_grid,
            model.contract.latent_channels,
            asked.actions.map_channels,
        )
    if model.compositor is None:
        model.compositor = build_compositor(asked, model.contract)
    if model.hand_references is None:
        model.hand_references = build_hand_references(asked, model.contract, model.normalizer)
    elif len(model.normalizer.embodiments) != num_known:
        model.hand_references = model.hand_references.extended(len(model.normalizer.embodiments))
    if model.head is None:
        if asked.head is not None and not asked.trains_head:
            raise ValueError("a new picture head needs pictures: set model.objective.pixel_weight above 0")
        model.head = build_head(asked)
    classifier = build_embodiment_classifier(asked, model.normalizer)
    is_outgrown = len(model.normalizer.embodiments) != num_known
    if is_outgrown or classifier is None or model.embodiment_classifier is None:
        model.embodiment_classifier = classifier
    # The contrast last: with and without it, everything else is drawn from the seed alike.
    names_robots = asked.mcl is not None and "embodiment" in asked.mcl.auxiliaries
    if asked.mcl != known.mcl or (names_robots and is_outgrown):
        model.mcl = build_mcl(asked, model.contract, model.normalizer, model.fdm.width)
    return model


def _without_lone_class(asked: WorldModelConfig, index: EpisodeIndex) -> WorldModelConfig:
    """A classifier of robots needs two of them in the batches: with one it is off."""
    robots = {record.embodiment for record in index.of("train")}
    if asked.regime != "lacg" or len(robots) > 1 or not asked.objective.adversarial_weight:
        return asked
    log.warning(
        "all training episodes show %s: a classifier of one class makes nothing invariant, so "
        "objective.adversarial_weight is taken as 0; add the source robots to data.paths to keep it",
        *robots,
    )
    objective = dataclasses.replace(asked.objective, adversarial_weight=0.0)
    return dataclasses.replace(asked, objective=objective)


def _check_settings(start_from: str, folder: Path, known: WorldModelConfig, asked: WorldModelConfig) -> None:
    for name, old, new in _changes(known, asked):
        if not _can_change(name, folder, known, asked):
            reason, remedy = FIXED.get(name) or FIXED[name.partition(".")[0]]
            raise ValueError(
                f"start_from={start_from} has model.{name}={old}, the config asks for model.{name}={new}: "
                f"{reason}. Leave model.{name} out, or set it to {old}{remedy.format(start_from)}"
            )


def _changes(known: Any, asked: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, old, new) of every setting that differs."""
    for field in dataclasses.fields(asked):
        old, new = getattr(known, field.name), getattr(asked, field.name)
        if dataclasses.is_dataclass(old) and dataclasses.is_dataclass(new):
            yield from _changes(old, new, f"{prefix}{field.name}.")
        elif old != new:
            yield f"{prefix}{field.name}", "''" if old == "" else old, new


def _can_change(name: str, folder: Path, known: WorldModelConfig, asked: WorldModelConfig) -> bool:
    """Whether training can honor it, or whether it adds a part or names another place of the same thing."""
    if name == "lora.seed":
        return not asked.lora.continues(known.lora)
    setting = name.partition(".")[0]
    if name == "small.refiner_width":
        return known.small is not None and not known.small.refiner_width
    if setting in ("compositor_width", "hand_references"):
        return not known.compositor_width
    if setting == "head":
        return known.head is None
    if setting == "idm":
        return known.regime == "acg" and not (known.objective.idm_weight and asked.objective.idm_weight)
    if setting == "pretrained":
        return not has_backbone(folder)
    if setting == "vae":
        return _is_same_autoencoder(folder / "vae", asked.vae)
    if setting == "prompt":
        return _is_same_prompt(folder / PROMPT_FILE, Path(asked.prompt))
    return setting in CHANGEABLE


def _is_same_autoencoder(own: Path, asked: str) -> bool:
    """Whether the folder has the weights of the model's own; a published one is taken by its name."""
    if not own.is_dir():
        return True
    places = [Path(asked) / "vae", Path(asked)]
    found = next((place for place in places if (place / "config.json").is_file()), None)
    return found is not None and fingerprint(found, (".safetensors",)) == fingerprint(own, (".safetensors",))


def _is_same_prompt(own: Path, asked: Path) -> bool:
    if not own.is_file() or not asked.is_file():
        return False
    return torch.equal(read_prompt(own), read_prompt(asked))


def _log_lora_change(start_from: str, known: WorldModelConfig, asked: WorldModelConfig) -> None:
    if asked.lora.continues(known.lora):
        log.info("the rank %d adapters of %s are trained further", known.lora.rank, start_from)
    elif known.lora.rank:
        log.info("the rank %d adapters of %s are merged into its backbone", known.lora.rank, start_from)
    if asked.lora.rank and not asked.lora.continues(known.lora):
        log.info("new rank %d adapters are trained; the backbone under them is frozen", asked.lora.rank)


def _check_clips(start_from: str, known: InputSpec, found: InputSpec) -> None:
    """Refuse clips that are not what the model was trained on."""
    try:
        known.check(size=(found.height, found.width), fps=found.fps, camera=found.camera)
        for name in ("num_frames", "aspect", "merge", "layout"):
            if getattr(found, name) != getattr(known, name):
                raise ValueError(
                    f"expected {name} {getattr(known, name)}, got {getattr(found, name)}: set "
                    f"data.clip.{name}={getattr(known, name)}"
                )
    except ValueError as error:
        raise ValueError(f"start_from={start_from} does not fit data.clip: {error}") from error


def _fit_judge(model: WorldModel) -> None:
    """An acg model has an IDM exactly if its objective trains one; what is saved must fit its config."""
    if model.config.regime != "acg":
        return
    if not model.config.objective.idm_weight:
        model.idm = None
    elif model.idm is None:
        model.idm = build_idm(model.config, model.normalizer, None)
