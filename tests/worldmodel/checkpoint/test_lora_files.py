"""Adapters through the real pipeline of diffusers, through peft, and from published files."""

import json
from pathlib import Path

import peft
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline
from peft import inject_adapter_in_model, set_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.support.tiny_wan import tiny_wan
from tests.worldmodel.models.test_lora import call, train_a_little
from worldmodel.checkpoint.lora_files import fold_lora, without_prefix, write_lora
from worldmodel.models.backbone import LoraConfig, add_lora, build_wan

CONFIGS = {
    "another scale": LoraConfig(rank=4, alpha=32),
    "some layers": LoraConfig(rank=2, alpha=3, targets=("attn2.to_q", "to_out.0"), layers=(1,)),
}


@pytest.fixture(params=CONFIGS)
def written(request, tmp_path: Path):
    """A file of trained adapters, and what the backbone with them answers."""
    backbone = build_wan(tiny_wan())
    add_lora(backbone, CONFIGS[request.param])
    train_a_little(backbone)
    write_lora(tmp_path / "transformer_lora.safetensors", backbone)
    return tmp_path / "transformer_lora.safetensors", call(backbone)


def pipeline() -> WanPipeline:
    return WanPipeline(None, None, None, FlowMatchEulerDiscreteScheduler(), transformer=build_wan(tiny_wan()))


def test_the_pipeline_of_diffusers_loads_them_with_their_scale(written) -> None:
    path, expected = written
    pipe = pipeline()
    assert (call(pipe.transformer) - expected).abs().max() > 0.001
    pipe.load_lora_weights(str(path.parent), weight_name=path.name)
    assert torch.allclose(call(pipe.transformer), expected, atol=1e-4 * expected.abs().max().item())


def test_without_metadata_the_scale_would_be_lost(written, tmp_path: Path) -> None:
    path, expected = written
    save_file(load_file(path), tmp_path / "plain.safetensors")
    pipe = pipeline()
    pipe.load_lora_weights(str(tmp_path), weight_name="plain.safetensors")
    assert not torch.allclose(call(pipe.transformer), expected, atol=1e-4 * expected.abs().max().item())


def test_peft_loads_them_with_their_scale(written) -> None:
    path, expected = written
    with safe_open(path, framework="pt") as file:
        values = json.loads(file.metadata()["lora_adapter_metadata"])
    config = peft.LoraConfig(**without_prefix(values))
    backbone = inject_adapter_in_model(config, build_wan(tiny_wan()))
    result = set_peft_model_state_dict(backbone, without_prefix(load_file(path)))
    assert not result.unexpected_keys
    assert torch.allclose(call(backbone), expected, atol=1e-4 * expected.abs().max().item())


def original_names(state: dict[str, torch.Tensor], alpha: float) -> dict[str, torch.Tensor]:
    """As ComfyUI and others publish: names of the original Wan, and one alpha a layer."""
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in without_prefix(state).items():
        for ours, theirs in (
            *(("attn1", "self_attn"), ("attn2", "cross_attn"), ("ffn.net.0.proj", "ffn.0")),
            *(("ffn.net.2", "ffn.2"), ("to_out.0", "o"), ("to_q", "q"), ("to_k", "k"), ("to_v", "v")),
            *(("lora_A", "lora_down"), ("lora_B", "lora_up")),
        ):
            name = name.replace(ours, theirs)
        renamed[f"diffusion_model.{name}"] = tensor
        renamed[f"diffusion_model.{name.rpartition('.lora_')[0]}.alpha"] = torch.tensor(alpha)
    return renamed


@pytest.mark.parametrize("layout", ["diffusers", "original"])
def test_published_adapters_are_folded_into_the_backbone(layout: str, tmp_path: Path) -> None:
    adapted = build_wan(tiny_wan())
    add_lora(adapted, LoraConfig(rank=4, alpha=8))
    train_a_little(adapted)
    path = tmp_path / "public.safetensors"
    write_lora(path, adapted)
    if layout == "original":
        save_file(original_names(load_file(path), 8.0), path)
    backbone = build_wan(tiny_wan())
    names = backbone.state_dict().keys()
    fold_lora(backbone, path)
    assert torch.allclose(call(backbone), call(adapted), atol=1e-5)
    assert backbone.state_dict().keys() == names


def test_adapters_of_another_model_are_refused(tmp_path: Path) -> None:
    adapted = build_wan(tiny_wan())
    add_lora(adapted, LoraConfig(rank=4))
    write_lora(tmp_path / "a.safetensors", adapted)
    state = load_file(tmp_path / "a.safetensors")
    extra = {"transformer.blocks.9.attn1.to_q.lora_A.weight": torch.zeros(4, 48)}
    save_file({**state, **extra}, tmp_path / "deeper.safetensors")
    wider = {name: torch.cat([x, x], -1) if "lora_A" in name else x for name, x in state.items()}
    save_file(wider, tmp_path / "wider.safetensors")
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    for name in ("deeper", "wider", "other"):
        with pytest.raises(ValueError, match=rf"{name}\.safetensors: not a LoRA of this Wan"):
            fold_lora(build_wan(tiny_wan()), tmp_path / f"{name}.safetensors")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LoraConfig(rank=2, targets=("to_x",)), r"lora.targets: the backbone has no linear layer 'to_x'"),
        (LoraConfig(rank=2, layers=(0, 7)), r"lora.layers: the backbone has no linear layer 'blocks.7.'"),
    ],
)
def test_places_that_do_not_exist_are_named(config: LoraConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add_lora(build_wan(tiny_wan()), config)
