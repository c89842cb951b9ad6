"""A world model as one folder, laid out like a diffusers pipeline; safetensors, YAML and JSON only.

README.md                        model card
config.yaml                      WorldModelConfig
contract.json                    format version, frame contract, action scales by embodiment
transformer/                     backbone, in the hub's layout; with adapters on a named backbone instead:
transformer_lora.safetensors     the adapters alone
vae/                             autoencoder, unless the config names a published one
action_interface.safetensors     and idm, controller, scene, refiner, mcl, ... where they exist
"""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from worldmodel.config import load_config, save_config
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.models.world_model.config import FrameContract, WorldModelConfig
from worldmodel.models.world_model.lora import without_lora

FORMAT = 1
CONTRACT_FILE, CONFIG_FILE, LORA_FILE = "contract.json", "config.yaml", "transformer_lora.safetensors"


@dataclass(frozen=True)
class Description:
    """Everything about a saved model but its weights."""

    config: WorldModelConfig
    contract: FrameContract
    normalizer: ActionNormalizer


def locate(source: str) -> Path:
    """The local folder of a saved model; a hub id is downloaded."""
    folder = Path(source)
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


def fingerprint(folder: Path, suffixes: tuple[str, ...] = (".safetensors", ".json", ".yaml")) -> str:
    """Of all weights and descriptions of a saved model, wherever it lies."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes:
            digest.update(path.relative_to(folder).as_posix().encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def write_description(folder: Path, description: Description) -> None:
    """Config, contract and scales."""
    save_config(description.config, folder / CONFIG_FILE)
    values = {
        "format": FORMAT,
        "frames": dataclasses.asdict(description.contract),
        "actions": description.normalizer.to_dict(),
    }
    (folder / CONTRACT_FILE).write_text(json.dumps(values, indent=2) + "\n")


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
        contract = FrameContract(**values["frames"])
        normalizer = ActionNormalizer.from_dict(values["actions"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return Description(load_config(WorldModelConfig, str(folder / CONFIG_FILE)), contract, normalizer)


def write_backbone(folder: Path, backbone: WanTransformer3DModel) -> None:
    """The backbone without adapters, as `WanTransformer3DModel.from_pretrained` reads it."""
    folder.mkdir()
    backbone.save_config(folder)
    write_tensors(folder / "diffusion_pytorch_model.safetensors", without_lora(backbone))


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """One safetensors file, synced to the disk."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path, metadata={"format": "pt"})
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file; a missing or damaged one is named."""
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def read_into(module: nn.Module, path: Path) -> None:
    """Load a part's weights, all of them and nothing else."""
    tensors, expected = read_tensors(path), module.state_dict()
    differing = sorted(expected.keys() ^ tensors.keys())
    if differing:
        raise ValueError(f"{path} does not fit its config: {differing[:3]} are on one side only")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}"
            )
    module.load_state_dict(tensors)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into that takes the place of `folder` in the end; on an error the old one stays."""
    if folder.exists() and any(folder.iterdir()) and not (folder / CONTRACT_FILE).is_file():
        raise ValueError(f"{folder} holds something that is not a world model; it is not overwritten")
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, old = (folder.with_name(f".{folder.name}.{state}") for state in ("writing", "replaced"))
    _put_back(old, folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
        if folder.exists():
            os.replace(folder, old)
        os.replace(new, folder)
    finally:
        _put_back(old, folder)
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _put_back(old: Path, folder: Path) -> None:
    """Undo a replacement that was cut off between its two renames."""
    if old.exists() and not folder.exists():
        os.replace(old, folder)
