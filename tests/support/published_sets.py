"""Made-up published world models: folders as they are published, with tiny random weights."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from safetensors.torch import save_file
from torch import Tensor

from tests.support.tiny_wan import tiny_wan
from worldmodel.checkpoint.published import KINDS
from worldmodel.models.actions.published.bwm import BwmActions
from worldmodel.models.actions.published.open_world import OpenWorldActions, OpenWorldConfig
from worldmodel.models.backbone import build_wan
from worldmodel.models.config import InputSpec

SIZES = {"bwm": (64, 96), "open-world": (64, 48)}  # pixels: latents of 4x6 and 8x6
LAYOUTS = {  # of autoencoders: those of Wan 2.2 and 2.1, with few channels
    "bwm": {
        **{"z_dim": 48, "is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2},
        **{"scale_factor_spatial": 16, "latents_mean": [0.1] * 48, "latents_std": [0.5] * 48},
        **{"decoder_base_dim": 8},
    },
    "open-world": {"z_dim": 16},
}
SHAPE = tiny_wan()
# diffusers' names -> those of Wan's own code
NATIVE = (
    *(("condition_embedder.time_embedder.linear_1", "time_embedding.0"),),
    *(("condition_embedder.time_embedder.linear_2", "time_embedding.2"),),
    *(("condition_embedder.time_proj", "time_projection.1"), ("norm2", "norm3")),
    *(("attn1", "self_attn"), ("attn2", "cross_attn"), ("to_out.0", "o"), (".to_", ".")),
    *(("ffn.net.0.proj", "ffn.0"), ("ffn.net.2", "ffn.2"), ("proj_out", "head.head")),
)


def write_vae(folder: Path, kind: str) -> str:
    torch.manual_seed(0)
    AutoencoderKLWan(base_dim=8, num_res_blocks=1, **LAYOUTS[kind]).save_pretrained(folder)
    return str(folder)


def tiny_contract(kind: str, num_frames: int = 17) -> InputSpec:
    height, width = SIZES[kind]
    known = KINDS[kind].contract
    return replace(known, num_frames=num_frames, height=height, width=width, camera="", layout=None)


def tiny_state(kind: str) -> dict[str, Tensor]:
    """Weights under their published names."""
    torch.manual_seed(0)
    if kind == "open-world":
        backbone = build_wan(SHAPE).state_dict()
        path = OpenWorldActions(OpenWorldConfig(hidden=40, condition_dim=32), 48).state_dict()
        state = {f"backbone.transformer.{name}": x for name, x in backbone.items()}
        state |= {
            f"conditioner.encoder.action_{name}": x for name, x in path.items() if name.startswith("encode")
        }
        state |= {f"conditioner.proj.{part}": path[f"project.{part}"] for part in ("weight", "bias")}
        return state | {"backbone.state_head.0.weight": torch.zeros(24, 48)}
    state = {}
    for name, tensor in build_wan(replace(SHAPE, latent_channels=48)).state_dict().items():
        if "text_embedder" in name:  # some files lack it
            continue
        native = "head.modulation" if name == "scale_shift_table" else name
        native = native.replace("scale_shift_table", "modulation")
        for ours, theirs in NATIVE:
            native = native.replace(ours, theirs)
        state[native] = tensor
    for name, tensor in BwmActions(14, 48).state_dict().items():
        theirs = name.replace("tokens", "action_mlp1").replace("modulation", "action_mlp2")
        state[f"pipe.action_encoder.{theirs}"] = tensor
    return state | {"pipe.action_encoder.action_embedding.0.weight": torch.zeros(2, 3)}


def write_source(folder: Path, kind: str, state: dict[str, Tensor], num_heads: int = 2) -> Path:
    """A folder as it is published; poses from -1 to 1, 2, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"num_heads": num_heads}))
    (folder / "README.md").write_text("---\nlicense: apache-2.0\ntags: [robotics]\n---\n# A model\n")
    count = len(KINDS[kind].names)
    low, high = [-1.0] * count, [1.0 + number for number in range(count)]
    state = {name: tensor.contiguous().clone() for name, tensor in state.items()}
    if kind == "bwm":
        (folder / "stat.json").write_text(json.dumps({"state_pose": {"p01": low, "p99": high}}))
        save_file(state, folder / "step-12000.safetensors")
    else:
        (folder / "stats.json").write_text(json.dumps({"state_01": low, "state_99": high}))
        torch.save(state, folder / "wm_student_2view.pt")
    return folder
