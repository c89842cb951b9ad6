"""A world model as one folder, laid out like a diffusers pipeline; safetensors, YAML and JSON only.

README.md                        model card
config.yaml                      WorldModelConfig
contract.json                    format version, frame contract, action scales by embodiment
trained_on.json                  episodes it was trained on, and how they were divided
transformer/                     backbone, in the hub's layout, as it is under adapters if there are any; not
                                 written for adapters on a published backbone that config.yaml names
transformer_lora.safetensors     the adapters, if there are any
vae/                             autoencoder, unless the config names a published one
action_interface.safetensors     and idm, controller, scene, refiner, mcl, ... where they exist
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from huggingface_hub import snapshot_download

from worldmodel.config import load_config, save_config
from worldmodel.data.clips import Aspect, Merge
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.data.trained_on import FILE as TRAINED_ON_FILE
from worldmodel.data.trained_on import TrainedOn
from worldmodel.files import read_tensors, write_json, write_tensors
from worldmodel.models.world_model.config import FrameContract, WorldModelConfig
from worldmodel.models.world_model.lora import (
    LoraConfig,
    add_lora,
    load_lora_state,
    merge_lora,
    without_lora,
)
from worldmodel.models.world_model.wan import load_wan
from worldmodel.shipped import find_weights

FORMAT = 1
CONTRACT_FILE, CONFIG_FILE, LORA_FILE = "contract.json", "config.yaml", "transformer_lora.safetensors"


@dataclass(frozen=True)
class Description:
    """Everything about a saved model but its weights."""

    config: WorldModelConfig
    contract: FrameContract
    normalizer: ActionNormalizer
    trained_on: TrainedOn | None = None  # folders of older versions do not say


def locate(source: str) -> Path:
    """The local folder of a saved model; a shipped one has a name, a hub id is downloaded."""
    folder = find_weights(source)
    if not folder.exists():
        # A hub id is "owner/name"; anything else that does not exist is a wrong path.
        if source.count("/") != 1 or source.startswith((".", "/")):
            raise ValueError(f"no world model folder at {source}")
        folder = Path(snapshot_download(source))
    if not (folder / CONTRACT_FILE).is_file():
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
        "needs_camera_matrices": description.config.draws_poses,
    }
    write_json(folder / CONTRACT_FILE, values)
    if description.trained_on is not None:
        write_json(folder / TRAINED_ON_FILE, description.trained_on.to_dict(), indent=None)


def read_description(folder: Path) -> Description:
    """What `write_description` wrote; a file of another version or with other fields is refused."""
    path = folder / CONTRACT_FILE
    try:
        values = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if values.get("format") != FORMAT:
        raise ValueError(f"{path}: expected format {FORMAT}, got {values.get('format')!r}")
    try:
        _check_words(values["frames"])
        contract = FrameContract(**values["frames"])
        normalizer = ActionNormalizer.from_dict(values["actions"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    config = load_config(WorldModelConfig, str(folder / CONFIG_FILE))
    return Description(config, contract, normalizer, _read_trained_on(folder / TRAINED_ON_FILE))


def _read_trained_on(path: Path) -> TrainedOn | None:
    if not path.is_file():
        return None
    try:
        return TrainedOn.from_dict(json.loads(path.read_text()))
    except ValueError as error:  # of JSON too
        raise ValueError(f"{path}: {error}") from error


def _check_words(frames: Mapping[str, Any]) -> None:
    """Refuse words that cutting a clip would not understand; folders of older versions lack them."""
    for name, allowed in (("aspect", get_args(Aspect)), ("merge", get_args(Merge))):
        if name in frames and frames[name] not in allowed:
            raise ValueError(f"{name} is {' or '.join(allowed)}, got {frames[name]!r}")


def has_backbone(folder: Path) -> bool:
    """Whether the backbone is in the folder, not only adapters on a published one."""
    return (folder / "transformer").is_dir()


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
        load_lora_state(backbone, read_tensors(folder / LORA_FILE))
        merge_lora(backbone)
    return backbone


def write_backbone(folder: Path, backbone: WanTransformer3DModel) -> None:
    """The backbone without adapters, as `WanTransformer3DModel.from_pretrained` reads it."""
    folder.mkdir()
    backbone.save_config(folder)
    write_tensors(folder / "diffusion_pytorch_model.safetensors", without_lora(backbone))
