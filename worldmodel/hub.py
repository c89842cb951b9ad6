"""Models in the Hugging Face layout (config.json and safetensors), checked before they are loaded.

A source is a local folder or a hub id. From the hub only JSON and safetensors are downloaded, and no code in
them is ever run. The config must name a supported class and have valid, plausible settings. The files must
hold exactly the tensors of that config, in a floating type, all finite.
"""

import inspect
import logging
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import torch
from huggingface_hub import snapshot_download
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from worldmodel.checked import check_range, check_type, is_finite, is_regular, read_json, shorten
from worldmodel.shipped import find_weights, is_hub_id
from worldmodel.tensors import check_finite, check_headers, check_loaded, read_headers, skeleton

log = logging.getLogger(__name__)

M = TypeVar("M", bound=nn.Module)
P = TypeVar("P", bound=PreTrainedModel)
CONFIG, WEIGHTS = "config.json", "diffusion_pytorch_model.safetensors"
TRANSFORMERS_WEIGHTS = "model.safetensors"
PATTERNS = ("*.json", "*.safetensors")
# Largest plausible number of each setting; those not listed are at most COMMON_LIMIT.
LIMITS = {
    "num_layers": 256,
    "layers_per_block": 64,
    "num_blocks": 64,
    "num_res_blocks": 64,
    "num_attention_heads": 512,
    "attention_head_dim": 1024,
    "in_channels": 4096,
    "out_channels": 4096,
    "latent_channels": 4096,
    "z_dim": 4096,
    "hidden": 8192,
    "base_dim": 4096,
    "decoder_base_dim": 4096,
    "dim_mult": 64,
    "patch_size": 64,
    "scale_factor_spatial": 64,
    "scale_factor_temporal": 64,
    "height": 16384,
    "width": 16384,
    "rope_max_seq_len": 1 << 17,
    "ffn_dim": 1 << 18,
}
COMMON_LIMIT = 1 << 20
MAX_LENGTH = 4096  # entries of a list
MAY_BE_ZERO = ("eps", "dropout", "attn_scales", "latents_mean", "scaling_factor")


def find_part(source: str, name: str) -> Path:
    """The folder of one pipeline component, in `source` or `source` itself; a hub id is downloaded."""
    folder = find_weights(source)
    for place in (folder / name, folder):
        if is_regular(place / CONFIG):
            return place
    if folder.is_dir():
        raise ValueError(
            f"{source}: expected {name}/config.json or config.json in this folder, found neither"
        )
    if not is_hub_id(source):
        raise ValueError(f"{source}: no such folder, and not a hub id (owner/name)")
    patterns = [str(PurePosixPath(name, end)) for end in PATTERNS]
    return Path(snapshot_download(source, allow_patterns=patterns)) / name


def load_part(kind: type[M], folder: Path, dtype: torch.dtype = torch.float32) -> M:
    """Load the model in a folder; any other class is refused."""
    settings = read_settings(kind, folder / CONFIG)
    expected = skeleton(lambda: kind(**settings), str(folder / CONFIG)).state_dict()
    ignored = getattr(kind, "_keys_to_ignore_on_load_unexpected", None) or ()
    check_headers(weight_files(folder), expected, ignored)
    # diffusers does not contact the hub if the folder exists.
    read: Any = kind  # a diffusers model, whose classes are untyped
    loaded: M = read.from_pretrained(str(folder), torch_dtype=dtype, use_safetensors=True)
    tensors = loaded.state_dict()
    check_finite(tensors, str(folder))
    check_loaded(weight_files(folder), tensors)
    return loaded


def load_encoder(kind: type[P], source: str, name: str = "") -> P:
    """Load a transformers model from a folder or hub id, and check that all weights match the files."""
    folder = find_part(source, name)
    loaded: P = kind.from_pretrained(str(folder), use_safetensors=True)
    # The library's weight names change between versions; files keep the published ones.
    tensors = revert_weight_conversion(loaded, loaded.state_dict())
    files, prefix = weight_files(folder, TRANSFORMERS_WEIGHTS), f"{kind.base_model_prefix}."
    if any(name.startswith(prefix) for name in read_headers(files)):  # a model with a head
        tensors = {prefix + name: tensor for name, tensor in tensors.items()}
    check_finite(tensors, str(folder))
    check_loaded(files, tensors)
    return loaded


def read_settings(kind: type[nn.Module], path: Path) -> dict[str, Any]:
    """The settings of a config.json, each checked for name, type and plausible range."""
    values = read_json(path)
    if values.get("_class_name", kind.__name__) != kind.__name__:
        raise ValueError(f"{path}: expected class {kind.__name__}, got {shorten(values['_class_name'])}")
    known = dict(list(inspect.signature(kind.__init__).parameters.items())[1:])
    settings = {name: value for name, value in values.items() if not name.startswith("_")}
    for name in [*settings]:
        if name in known:
            _check_setting(f"{path}: {name}", name, settings[name], known[name])
        elif isinstance(settings[name], dict | list):  # these could trigger more than loading
            raise ValueError(f"{path}: unknown setting {shorten(name)} of {kind.__name__}")
        else:
            _say_ignored(f"{path}: {shorten(name)} is no setting of {kind.__name__}, and is ignored")
            del settings[name]
    return settings


@lru_cache(maxsize=64)
def _say_ignored(message: str) -> None:
    """Log once: published configs contain settings of older versions, which diffusers ignores too."""
    log.warning("%s", message)


def _check_setting(where: str, name: str, value: Any, parameter: inspect.Parameter) -> None:
    if parameter.annotation is not inspect.Parameter.empty:
        check_type(value, parameter.annotation, where)
    numbers = [entry for entry in (value if isinstance(value, list) else [value]) if is_finite(entry)]
    if isinstance(value, list) and len(value) > MAX_LENGTH:
        raise ValueError(f"{where} has {len(value)} entries, expected at most {MAX_LENGTH}")
    limit = LIMITS.get(name, COMMON_LIMIT)
    smallest = 1 if all(isinstance(entry, int) for entry in numbers) else 1e-12
    check_range(numbers, -limit if name in MAY_BE_ZERO else smallest, limit, where)


def weight_files(folder: Path, name: str = WEIGHTS) -> list[Path]:
    """The safetensors files of a component: one file, or those listed in its index."""
    index = folder / f"{name}.index.json"
    if not index.exists():
        if not is_regular(folder / name):
            raise ValueError(f"{folder / name} is missing; weights are read from safetensors only")
        return [folder / name]
    listed: Any = read_json(index).get("weight_map")
    if not isinstance(listed, Mapping) or not listed:
        raise ValueError(f"{index}: expected an object weight_map, got {shorten(listed)}")
    for name in set(map(str, listed.values())):
        if PurePosixPath(name).name != name or not name.endswith(".safetensors"):
            raise ValueError(f"{index}: {shorten(name)} is not a safetensors file of this folder")
    return [folder / name for name in sorted(set(listed.values()))]
