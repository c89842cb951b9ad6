import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Dinov2Config, Dinov2ForImageClassification, Dinov2Model, UMT5Config, UMT5EncoderModel

from tests.support.tiny_wan import tiny_wan
from worldmodel.hub import load_encoder, load_part
from worldmodel.models.backbone import WanTransformer3DModel as Wan
from worldmodel.models.backbone import build_wan

ENCODER = Dinov2Config(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28)


def write_encoder(folder: Path) -> Path:
    torch.manual_seed(0)
    Dinov2Model(ENCODER).save_pretrained(folder)
    return folder


@pytest.fixture
def second_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As FSDP launch files of older versions start the second process of a machine."""
    for name in ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("LOCAL_RANK", "1")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("second_process")
def test_a_process_that_was_given_zeros_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model.safetensors: .* is not in memory as it is in the file"):
        load_encoder(Dinov2Model, str(write_encoder(tmp_path)))


@pytest.mark.usefixtures("second_process")
def test_the_backbone_is_read_by_every_process(tmp_path: Path) -> None:
    build_wan(tiny_wan()).save_pretrained(tmp_path)
    loaded = load_part(Wan, tmp_path).state_dict()
    stored = load_file(tmp_path / "diffusion_pytorch_model.safetensors")
    assert stored.keys() == loaded.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in loaded.items())


def test_tensors_that_no_file_has_are_an_error(tmp_path: Path) -> None:
    file = write_encoder(tmp_path) / "model.safetensors"
    tensors = load_file(file)
    tensors.pop("encoder.layer.0.attention.attention.query.weight")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"query.weight is in none of the files"):
        load_encoder(Dinov2Model, str(tmp_path))


def write_classifier(folder: Path) -> None:
    Dinov2ForImageClassification(ENCODER).save_pretrained(folder)


def write_shards(folder: Path) -> None:
    Dinov2Model(ENCODER).save_pretrained(folder, max_shard_size="8KB")
    assert len(list(folder.glob("*.safetensors"))) > 1


def write_gated(folder: Path) -> None:
    config = Dinov2Config(**{**ENCODER.to_dict(), "use_swiglu_ffn": True})
    Dinov2Model(config).save_pretrained(folder)


@pytest.mark.parametrize("write", [write_encoder, write_classifier, write_shards, write_gated])
def test_encoders_are_read_as_transformers_writes_them(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    loaded = load_encoder(Dinov2Model, str(tmp_path))
    assert loaded.layernorm.weight.shape == (24,)


def test_a_weight_that_is_used_twice_is_stored_once(tmp_path: Path) -> None:
    config = UMT5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    UMT5EncoderModel(config).save_pretrained(tmp_path / "text_encoder")
    loaded = load_encoder(UMT5EncoderModel, str(tmp_path), "text_encoder")
    assert torch.equal(loaded.shared.weight, loaded.encoder.embed_tokens.weight)


def test_an_encoder_is_found_in_the_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hub_cache(tmp_path, "someone/dino")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load_encoder(Dinov2Model, "someone/dino").config.hidden_size == 24


def test_settings_that_the_library_ignores_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build_wan(tiny_wan()).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"clip_output": False}))
    for _ in range(2):
        assert load_part(Wan, tmp_path).config.num_layers == 2
    assert caplog.text.count("'clip_output' is no setting of WanTransformer3DModel, and is ignored") == 1


def write_hub_cache(cache: Path, name: str) -> None:
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("0" * 40)
    write_encoder(folder / "snapshots" / ("0" * 40))
