"""Published robot world models -> model folders of ours.

bwm           one safetensors file with the names of Wan's own code; actions under `pipe.action_encoder.`
open-world    one pickled state dict, read by `weights_only`; the backbone with the names of diffusers

All sizes come from the tensors. Nothing that is published beside them is executed: of a config.json only the
number of attention heads is read, of a README.md only the license.
"""

import math
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from huggingface_hub import snapshot_download
from torch import Tensor

from worldmodel.checked import is_regular, read_json, shorten
from worldmodel.checkpoint.folder import CONTRACT_FILE, Description, write_description
from worldmodel.checkpoint.model_card import model_card
from worldmodel.data.normalize import ActionNormalizer, ActionStats
from worldmodel.files import read_tensors, replaced_folder, write_tensors
from worldmodel.hub import WEIGHTS
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.published.bwm import BwmConfig
from worldmodel.models.actions.published.open_world import OpenWorldConfig
from worldmodel.models.backbone import WAN_1_3B, WAN_5B, WanConfig, build_wan
from worldmodel.models.config import InputSpec, ObjectiveConfig, WorldModelConfig
from worldmodel.models.parts import build_interface, check_fit
from worldmodel.models.vae import load_vae
from worldmodel.shipped import is_hub_id
from worldmodel.tensors import check_finite, skeleton

Tensors = dict[str, Tensor]
HEAD_DIM = 128  # channels per head of every published Wan; a config.json may give another number of heads
TEXT = "condition_embedder.text_embedder."
POSE = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")


@dataclass(frozen=True)
class Published:
    """A kind of published model: how its file is taken apart, and what the file does not say."""

    split: Callable[[Tensors], tuple[Tensors, Tensors, ActionConfig]]  # backbone, action path, its sizes
    pattern: str  # of weight files
    vae: str  # hub id of its autoencoder
    contract: InputSpec
    stats: tuple[tuple[str, ...], str, str]  # objects of the JSON with the scales, keys of 1 % and 99 %
    names: tuple[str, ...]  # of action dimensions
    embodiment: str
    history: int
    objective: ObjectiveConfig
    causal: bool = False


def _split_bwm(tensors: Tensors) -> tuple[Tensors, Tensors, ActionConfig]:
    prefix = "pipe.action_encoder."
    found = _beneath(tensors, prefix)
    renamed = {"action_mlp1": "tokens", "action_mlp2": "modulation"}
    # `action_embedding` is built by their code and used nowhere; some files lack it.
    path = {
        _renamed(name, renamed): x for name, x in found.items() if not name.startswith("action_embedding")
    }
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
    backbone: Tensors = convert_wan_transformer_to_diffusers(rest)
    if not _beneath(backbone, TEXT):  # tokens of actions stand in the place of a prompt: not used either
        width, freq = _shape(backbone, "condition_embedder.time_embedder.linear_1.weight")
        for layer, inputs in (("linear_1.", freq), ("linear_2.", width)):
            backbone[f"{TEXT}{layer}weight"] = torch.zeros(width, inputs)
            backbone[f"{TEXT}{layer}bias"] = torch.zeros(width)
    return backbone, path, ActionConfig(adaln=None, bwm=BwmConfig(_shape(path, "tokens.0.weight")[1]))


def _split_open_world(tensors: Tensors) -> tuple[Tensors, Tensors, ActionConfig]:
    backbone, added = (
        _beneath(tensors, "backbone.transformer."),
        _beneath(tensors, "backbone.action_to_temb."),
    )
    # adaln has a layer of its own; aligned conditions go through the layers of the prompt.
    text = {
        _renamed(name, {"linear_1": "0", "linear_2": "2"}): x for name, x in _beneath(backbone, TEXT).items()
    }
    parts = {
        "encode": _beneath(tensors, "conditioner.encoder.action_encode."),
        "project": _beneath(tensors, "conditioner.proj."),
        "embed": {f"0.{name}": x for name, x in added.items()} or text,
    }
    path = {f"{part}.{name}": x for part, found in parts.items() for name, x in found.items()}
    hidden, action_dim = _shape(path, "encode.0.weight")
    size, mode = _shape(path, "project.weight")[0], "adaln" if added else "aligned"
    config = OpenWorldConfig(action_dim, hidden=hidden, condition_dim=size, mode=mode)  # type: ignore[arg-type]
    return backbone, path, ActionConfig(adaln=None, open_world=config)


def _beneath(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def _renamed(name: str, parts: Mapping[str, str]) -> str:
    first, dot, rest = name.partition(".")
    return parts.get(first, first) + dot + rest


def _shape(tensors: Tensors, name: str) -> tuple[int, ...]:
    if name not in tensors:
        raise ValueError(f"{name} is missing")
    return tuple(tensors[name].shape)


KINDS = {
    "bwm": Published(
        split=_split_bwm,
        pattern="*.safetensors",
        vae=WAN_5B,
        contract=InputSpec(
            *(57, 672, 896, 24.0),
            aspect="crop",
            latent_channels=48,
            latent_scale=16,
            num_inference_steps=50,
        ),
        stats=(("state_pose", "eef_abs"), "p01", "p99"),
        names=tuple(f"{side}_{part}" for side in ("left", "right") for part in POSE),
        embodiment="robotwin",
        history=3,
        objective=ObjectiveConfig(shift=5.0, action_dropout=0.0, idm_weight=0.0),
    ),
    "open-world": Published(
        split=_split_open_world,
        pattern="*.pt",
        vae=WAN_1_3B,
        contract=InputSpec(
            *(61, 384, 320, 5.0), camera="exterior_1+wrist", layout="stacked", num_inference_steps=32
        ),
        stats=((), "state_01", "state_99"),
        names=POSE,
        embodiment="franka",
        history=4,
        objective=ObjectiveConfig(
            forcing="prefix", shift=1.0, sampler="resample", action_dropout=0.05, idm_weight=0.0
        ),
        causal=True,
    ),
}


def import_model(
    kind: str,
    source: str,
    target: Path,
    *,
    contract: InputSpec | None = None,
    file: str = "",
    stats: str = "",
    vae: str = "",
    embodiment: str = "",
) -> WorldModelConfig:
    """Write the model folder of a published model; returns its config.

    Args:
        kind: one of KINDS.
        source: folder or hub id with the published files.
        target: folder to write.
        contract: its frames, if not those of the kind.
        file: part of the path of the weight file, where there are several.
        stats: JSON file with the quantiles of its actions; empty: the one beside the weights.
        vae: folder or hub id of its autoencoder, if not that of the kind.
        embodiment: name of its robot, if not that of the kind.
    """
    known, folder = KINDS[kind], _located(source, KINDS[kind].pattern)
    path = _chosen(folder, known.pattern, file)
    tensors = _read(path)
    try:
        backbone, actions, config = known.split(tensors)
        shape = _wan_config(backbone, _num_heads(path.parent))
    except ValueError as error:
        raise ValueError(f"{path} is not a published {kind} model: {error}") from error
    origin = {
        "origin": f"{source if is_hub_id(source) else folder.name}, {path.name}",
        "license": _license(folder),
    }
    paths = {name: replace(one, **origin) for name, one in config.paths().items()}  # type: ignore[arg-type]
    is_half = next(iter(backbone.values())).dtype == torch.bfloat16
    model = WorldModelConfig(
        actions=replace(config, **paths),  # type: ignore[arg-type]
        backbone=shape,
        dtype="bfloat16" if is_half else "float32",
        causal=known.causal,
        history=known.history,
        objective=known.objective,
    )
    contract = contract or known.contract
    normalizer = _normalizer(known, Path(stats) if stats else _only(path.parent, "*stat*.json"), embodiment)
    empty = skeleton(lambda: build_wan(shape), str(path))
    interface = skeleton(lambda: build_interface(model, contract, normalizer, empty), str(path))
    (name,) = paths
    actions = {f"{name}.{part}": tensor.float() for part, tensor in actions.items()}
    for part, expected in ((backbone, empty), (actions, interface)):
        _check(part, expected.state_dict(), path)
    autoencoder = load_vae(vae or known.vae)
    check_fit(contract, empty, autoencoder)
    with replaced_folder(target, CONTRACT_FILE) as new:
        write_description(new, Description(model, contract, normalizer))
        (new / "README.md").write_text(model_card(model, contract, normalizer))
        (new / "transformer").mkdir()
        empty.save_config(new / "transformer")
        write_tensors(new / "transformer" / WEIGHTS, backbone)
        write_tensors(new / "interface.safetensors", actions)
        autoencoder.save_pretrained(new / "vae")
    return model


def _located(source: str, pattern: str) -> Path:
    if Path(source).is_dir():
        return Path(source)
    if not is_hub_id(source):
        raise ValueError(f"{source}: no such folder, and not a hub id (owner/name)")
    return Path(snapshot_download(source, allow_patterns=[pattern, "*.json", "README.md"]))


def _chosen(folder: Path, pattern: str, wanted: str) -> Path:
    """The one weight file of a folder."""
    found = sorted(path for path in folder.rglob(pattern) if wanted in str(path.relative_to(folder)))
    if len(found) != 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found) or "none"
        raise ValueError(
            f"{folder}: expected one file {pattern}, found {names}; --file names the one to read"
        )
    return found[0]


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise ValueError(
            f"{folder}: expected one file {pattern} with the quantiles of the actions, found {len(found)}; "
            "--stats names it (of BWM it is in the repository of its code, demo/stat.json)"
        )
    return found[0]


def _read(path: Path) -> Tensors:
    """The tensors of a safetensors file, or of a pickled state dict, by `weights_only`."""
    if path.suffix == ".safetensors":
        return read_tensors(path)
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} is damaged, or holds more than tensors: {reason}") from error
    if not isinstance(state, dict) or not all(isinstance(part, Tensor) for part in state.values()):
        raise ValueError(f"{path}: expected a dict of tensors, got {shorten(state)}")
    check_finite(state, str(path))
    return state


def _num_heads(folder: Path) -> int:
    """Attention heads named in the config.json next to the weights; 0 if it names none."""
    values = read_json(folder / "config.json") if is_regular(folder / "config.json") else {}
    found = [values.get(name) for name in ("num_heads", "num_attention_heads")]
    return next((count for count in found if isinstance(count, int) and count > 0), 0)


def _wan_config(backbone: Tensors, num_heads: int) -> WanConfig:
    """The shape of a backbone, from its tensors."""
    width, channels, *patch = _shape(backbone, "patch_embedding.weight")
    num_heads = num_heads or max(1, width // HEAD_DIM)
    text, freq = (
        _shape(backbone, f"condition_embedder.{part}.linear_1.weight")[1]
        for part in ("text_embedder", "time_embedder")
    )
    outputs = _shape(backbone, "proj_out.bias")[0] // math.prod(patch)
    if channels != outputs:
        raise ValueError(
            f"{channels} input channels for {outputs} channels of latents: it takes drawings beside the "
            "latents, which is not supported (of open-world, import the model of two views)"
        )
    blocks = [int(name.split(".")[1]) for name in backbone if re.match(r"blocks\.\d+\.", name)]
    return WanConfig(
        num_layers=1 + max(blocks, default=0),
        num_heads=num_heads,
        head_dim=width // num_heads,
        ffn_dim=_shape(backbone, "blocks.0.ffn.net.0.proj.weight")[0],
        patch_size=tuple(patch),  # type: ignore[arg-type]
        latent_channels=channels,
        text_dim=text,
        freq_dim=freq,
    )


def _check(found: Tensors, expected: Mapping[str, Tensor], path: Path) -> None:
    """Refuse a file whose tensors are not exactly those of its model."""
    differing = sorted(expected.keys() ^ found.keys())
    if differing:
        name = differing[0]
        state = "missing" if name in expected else "not expected"
        raise ValueError(f"{path}: {name} is {state} (names as in diffusers), {len(differing)} differ in all")
    for name, tensor in found.items():
        if tensor.shape != expected[name].shape or not tensor.is_floating_point():
            raise ValueError(
                f"{path}: {name} is {tensor.dtype} {tuple(tensor.shape)}, expected a floating type and "
                f"{tuple(expected[name].shape)}"
            )


def _normalizer(known: Published, path: Path, embodiment: str) -> ActionNormalizer:
    """The scales of the published actions, in the terms of ours."""
    values, (objects, *keys) = read_json(path), known.stats
    values = next((values[name] for name in objects if name in values), values)
    found = [values.get(key) if isinstance(values, dict) else None for key in keys]
    if not all(isinstance(row, list) and len(row) == len(known.names) for row in found):
        raise ValueError(f"{path}: expected {' and '.join(keys)} of {len(known.names)} numbers each")
    low, high = (tuple(map(float, row)) for row in found if row is not None)
    stats = ActionStats(known.names, low, high, low, high, 0, "measured_poses")
    return ActionNormalizer({embodiment or known.embodiment: stats})


def _license(folder: Path) -> str:
    """As the front matter of a README.md states it; empty: it does not."""
    for path in sorted(folder.rglob("README.md")):
        head = path.read_text(errors="replace")[:4096].split("---")
        if len(head) > 2 and (found := re.search(r"^license:\s*([\w.+-]{1,40})\s*$", head[1], re.MULTILINE)):
            return found[1]
    return ""
