"""A world model as one folder, laid out like a diffusers pipeline; safetensors, YAML and JSON only.

README.md                        model card
config.yaml                      WorldModelConfig
contract.json                    format version, frame contract, action scales by embodiment
trained_on.json                  episodes it was trained on, and how they were divided
transformer/                     backbone, in the hub's layout, as it is under adapters if there are any; not
                                 written for adapters on a published backbone that config.yaml names
transformer_lora.safetensors     the adapters, if there are any
vae/                             autoencoder, unless the config names a published one
interface.safetensors            and small, idm, controller, mcl, ... where they exist
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from huggingface_hub import snapshot_download
from jaxtyping import Float
from torch import Tensor, nn
from transformers import Dinov2Model

from worldmodel.checked import build, check_object, is_regular, read_json, shorten
from worldmodel.checkpoint.lora_files import without_prefix
from worldmodel.config import load_config, save_config
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.data.provenance import FILE as TRAINED_ON_FILE
from worldmodel.data.provenance import TrainedOn
from worldmodel.files import read_tensors, write_json, write_tensors
from worldmodel.models.backbone import (
    WAN_1_3B,
    LoraConfig,
    add_lora,
    load_lora_state,
    load_wan,
    merge_lora,
    read_prompt,
    without_lora,
)
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.idm import IdmConfig, read_encoder_config
from worldmodel.models.parts import build_parts, check_fit
from worldmodel.shipped import WEIGHTS, find_weights, is_hub_id
from worldmodel.tensors import check_headers, read_headers, skeleton

FORMAT = 2
CONTRACT_FILE, CONFIG_FILE, LORA_FILE = "contract.json", "config.yaml", "transformer_lora.safetensors"
IMAGE_ENCODER_FILE = "image_encoder.json"
PROMPT_FILE, SMALL_FILE = "prompt.safetensors", "small.safetensors"
SMALL_PARTS = {"scene": "scene", "refiner": "refiner_width"}  # of a small net, and their settings
PATTERNS = ("*.json", "*.yaml", "*.safetensors", "*.md", "*.png")  # all that is downloaded of a hub id


@dataclass(frozen=True)
class Description:
    """Everything about a saved model but its weights."""

    config: WorldModelConfig
    contract: InputSpec
    normalizer: ActionNormalizer
    trained_on: TrainedOn | None = None  # folders of older versions do not say


def locate(source: str) -> Path:
    """The local folder of a saved model; a shipped one has a name, a hub id is downloaded."""
    folder = find_weights(source)
    if not folder.exists():
        if not is_hub_id(source):
            raise ValueError(f"no world model folder at {source}")
        folder = Path(snapshot_download(source, allow_patterns=list(PATTERNS)))
    if not is_regular(folder / CONTRACT_FILE):
        raise ValueError(
            f"{folder} is not a world model folder: expected a {CONTRACT_FILE} in it, found none"
        )
    return folder


def write_description(folder: Path, description: Description) -> None:
    """Config, contract and scales."""
    save_config(description.config, folder / CONFIG_FILE)
    values = {
        "format": FORMAT,
        "frames": dataclasses.asdict(description.contract),
        "actions": description.normalizer.to_dict(),
        # What callers bring beside actions: name -> shape of one row.
        "extras": {name: list(row.shape) for name, row in description.config.actions.row_shapes.items()},
    }
    write_json(folder / CONTRACT_FILE, values)
    if description.trained_on is not None:
        write_json(folder / TRAINED_ON_FILE, description.trained_on.to_dict(), indent=None)


def read_description(folder: Path) -> Description:
    """What `write_description` wrote; a file of another version or with other fields is refused."""
    path = folder / CONTRACT_FILE
    values = read_json(path)
    if values.get("format") == 1:
        raise ValueError(
            f"{path}: format 1 was written by worldmodel 0.1 and is read by it alone: install "
            f"worldmodel==0.1.0, or train the model anew (this version reads format {FORMAT})"
        )
    if values.get("format") != FORMAT:
        raise ValueError(f"{path}: expected format {FORMAT}, got {shorten(values.get('format'))}")
    contract = build(InputSpec, values.get("frames"), f"{path}: frames")
    try:
        normalizer = ActionNormalizer.from_dict(check_object(values.get("actions"), "actions"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        config = load_config(WorldModelConfig, str(folder / CONFIG_FILE))
    except ValueError as error:
        reason = " ".join(str(error).partition("object_type")[0].split())
        raise ValueError(
            f"{reason}; if an unreleased version between 0.1.0 and 0.2.0 saved this "
            "folder, install the commit that saved it, or train the model anew"
        ) from error
    return Description(config, contract, normalizer, _read_trained_on(folder / TRAINED_ON_FILE))


def _read_trained_on(path: Path) -> TrainedOn | None:
    if not path.is_file():
        return None
    content = read_json(path)
    try:
        return TrainedOn.from_dict(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def external_sources(folder: Path, config: WorldModelConfig) -> dict[str, str]:
    """What would be loaded from elsewhere: parts that config.yaml names, and links that leave the folder."""
    has_idm = config.regime == "lacg" or (config.regime == "acg" and config.objective.idm_weight)
    named = {
        "pretrained": "" if has_backbone(folder) else config.pretrained,
        "vae": "" if (folder / "vae").is_dir() else config.vae,
        "idm.pretrained": config.idm.pretrained
        if has_idm and not is_regular(folder / IMAGE_ENCODER_FILE)
        else "",
    }
    inside = (folder.resolve(), folder.resolve().parent.parent / "blobs")  # of the hub's cache
    for path in () if folder.parent == WEIGHTS else sorted(folder.rglob("*")):
        target = path.resolve()
        if path.is_symlink() and not any(target.is_relative_to(place) for place in inside):
            named[path.relative_to(folder).as_posix()] = str(target)
    return {setting: place for setting, place in named.items() if place}


def describe_sources(folder: Path, config: WorldModelConfig) -> str:
    """One line: the files of the folder that loading reads, and the places outside it."""
    files = [path for path in sorted(folder.rglob("*.safetensors")) if is_regular(path)]
    size = sum(path.stat().st_size for path in files)
    elsewhere = [f"{setting}={place}" for setting, place in external_sources(folder, config).items()]
    return f"{folder}: {len(files)} safetensors files, {size / 1e6:.1f} MB" + (
        f"; from elsewhere: {', '.join(elsewhere)}" if elsewhere else "; nothing from elsewhere"
    )


def check_external(folder: Path, config: WorldModelConfig, given: Mapping[str, str | None]) -> None:
    """Refuse places outside the folder that only the folder itself names; `given` ones are the caller's."""
    named = {
        setting: place
        for setting, place in external_sources(folder, config).items()
        if not given.get(setting)
    }
    if named:
        places = ", ".join(f"{setting}={place}" for setting, place in named.items())
        raise ValueError(
            f"{folder}: its config.yaml or links load from elsewhere ({places}), and nothing was loaded. If "
            f"you trust these places, allow them: --allow-external for commands, allow_external=true for "
            f"training, allow_external=True in Python"
        )


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """A refusal inside names the folder."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error) if str(folder) in str(error) else f"{folder}: {error}") from error


def check_parts(folder: Path, backbone: WanTransformer3DModel, known: Description) -> None:
    """Compare the files beside the backbone with what the description asks for, before any of it is built."""
    with naming(folder):
        check_fit(known.contract, backbone, None)
    # An image encoder from elsewhere has its own sizes, and only its place is known here.
    has_encoder = not known.config.idm.pretrained or is_regular(folder / IMAGE_ENCODER_FILE)
    idm = known.config.idm if has_encoder else IdmConfig()

    def planned() -> nn.ModuleDict:
        config, encoder = dataclasses.replace(known.config, idm=idm), image_encoder(folder)
        parts = build_parts(config, known.contract, known.normalizer, backbone, encoder)
        return nn.ModuleDict({name: part for name, part in parts.items() if part is not None})

    for name, part in skeleton(planned, str(folder)).items():
        if name != "idm" or has_encoder:
            check_headers([folder / f"{name}.safetensors"], part.state_dict())


def image_encoder(folder: Path) -> Dinov2Model | None:
    """The IDM's image encoder as the folder describes it, if it does, with random weights."""
    path = folder / IMAGE_ENCODER_FILE
    return Dinov2Model(read_encoder_config(path)) if path.exists() else None


def small_net_file(config: WorldModelConfig) -> Path | None:
    """What was trained with the pretrained backbone, in a world model's folder; all of it is used."""
    file = Path(config.pretrained) / SMALL_FILE
    if not config.pretrained or not file.is_file():
        return None
    held = {name.partition(".")[0] for name in read_headers([file])}
    for setting in (SMALL_PARTS[part] for part in sorted(held & SMALL_PARTS.keys())):
        if not getattr(config.small, setting, None):
            raise ValueError(
                f"{file} was trained with the backbone of pretrained={config.pretrained} and would be left "
                f"out: set small.{setting} as in the config.yaml beside it, or name the transformer folder "
                f"alone"
            )
    return file


def backbone_paths(config: WorldModelConfig) -> dict[str, Path]:
    """Action paths whose weights come along with the pretrained backbone -> the file that may hold them."""
    file = Path(config.pretrained) / "interface.safetensors"
    paths = config.actions.paths().items() if config.pretrained and file.is_file() else ()
    return {name: file for name, path in paths if path.on_backbone}


def named_prompt(config: WorldModelConfig) -> Float[Tensor, "1 s e"]:
    """The prompt of a new model, from the file that the config names."""
    if not Path(config.prompt).is_file():
        pipeline = config.pretrained or WAN_1_3B
        raise ValueError(
            f"model.prompt={config.prompt}: no such file. Encode the empty prompt once, with "
            f"`worldmodel encode-prompt {pipeline} {config.prompt}`"
        )
    return read_prompt(Path(config.prompt))


def has_backbone(folder: Path) -> bool:
    """Whether the backbone is in the folder, not only adapters on a published one."""
    return (folder / "transformer").is_dir()


def read_adapters(folder: Path, backbone: WanTransformer3DModel) -> None:
    """Put the saved adapters of a folder on a backbone that has adapters."""
    with naming(folder / LORA_FILE):
        load_lora_state(backbone, without_prefix(read_tensors(folder / LORA_FILE)))


def read_backbone(
    folder: Path, config: WorldModelConfig, dtype: torch.dtype, lora: LoraConfig
) -> WanTransformer3DModel:
    """The backbone of a saved model; saved adapters that `lora` does not continue are merged into it.

    Args:
        folder: of the saved model.
        config: as saved, but `pretrained` may say where the backbone under adapters is now.
        dtype: of the weights.
        lora: the adapters that will be put on it.
    """
    backbone = load_wan(str(folder / "transformer") if has_backbone(folder) else config.pretrained, dtype)
    if config.lora.rank and not lora.continues(config.lora):
        add_lora(backbone, config.lora)
        read_adapters(folder, backbone)
        merge_lora(backbone)
    return backbone


def write_backbone(folder: Path, backbone: WanTransformer3DModel) -> None:
    """The backbone without adapters, as `WanTransformer3DModel.from_pretrained` reads it."""
    folder.mkdir()
    backbone.save_config(folder)
    write_tensors(folder / "diffusion_pytorch_model.safetensors", without_lora(backbone))
