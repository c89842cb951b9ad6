"""Model folders from anybody: what is wrong in them is refused by name, before memory is taken for it."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file, save_file

from tests.support.tiny_wan import tiny_wan
from worldmodel.checkpoint.folder import describe_sources, read_description
from worldmodel.models.backbone import LoraConfig, build_wan, load_wan
from worldmodel.models.model import WorldModel
from worldmodel.models.vae import load_vae

BACKBONE = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved lacg model, made once."""
    from worldmodel.data.clips import ClipConfig
    from worldmodel.data.dataset import build_clip_dataset
    from worldmodel.data.synthetic import synthetic_source
    from worldmodel.desk.autoencoder import CausalAutoencoder
    from worldmodel.models.config import InputSpec, WorldModelConfig
    from worldmodel.models.idm import IdmConfig

    source = synthetic_source(num_episodes=2, num_frames=14, size=(32, 32), embodiments=("a",), action_dim=6)
    clips = build_clip_dataset([source], config=ClipConfig(num_frames=5, height=32, width=32))
    idm = IdmConfig(image_height=32, image_width=32, encoder_width=12, encoder_layers=1, hidden=8)
    config = WorldModelConfig(regime="lacg", backbone=tiny_wan(), idm=idm)
    contract = InputSpec(5, 32, 32, 10.0, latent_scale=4)
    vae = CausalAutoencoder(height=32, width=32, hidden=8, num_blocks=1)
    folder = tmp_path_factory.mktemp("saved") / "model"
    WorldModel.build(config, contract, clips.normalizer, vae=vae).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def set_json(path: Path, place: tuple[Any, ...], value: Any) -> None:
    content = json.loads(path.read_text())
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))


EMBODIMENT = ("actions", "embodiments", 0)


def test_a_backbone_that_does_not_fit_is_refused_by_name(folder: Path) -> None:
    set_json(folder / "contract.json", ("frames", "latent_channels"), 1)
    with pytest.raises(ValueError, match=f"{folder}: expected a backbone of 1 latent channels, got 16"):
        WorldModel.from_pretrained(folder)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("frames", "fps"), 0, "frames: fps must lie in"),
        (("frames", "fps"), "10", "frames: fps is '10', expected a finite number"),
        (("frames", "fps"), [10], "frames: fps is"),
        (("frames", "height"), 10**9, "frames: height must lie in"),
        (("frames", "num_frames"), 1 + 4 * 10**8, "frames: num_frames must lie in"),
        (("frames", "width"), 32.0, "frames: width is 32.0, expected a whole number"),
        (("frames", "latent_scale"), 0, "frames: latent_scale must lie in"),
        (("frames", "camera"), {}, "frames: camera is"),
        (("frames",), None, "frames: expected an object"),
        (("actions",), [], "actions: expected an object"),
        (("actions", "width"), 10**9, "width must lie in"),
        (("actions", "width"), True, "width is True, expected a whole number"),
        (("actions", "embodiments"), {}, "embodiments is {}, expected a list"),
        ((*EMBODIMENT, "q01"), 3, "q01 is 3, expected a list, each entry a finite number"),
        ((*EMBODIMENT, "q01"), [[0.0]] * 6, "q01 is"),
        ((*EMBODIMENT, "q99"), [-9.0] * 6, "lower end above the upper end"),
        ((*EMBODIMENT, "maximum"), [1e300] * 6, "above 1e12"),
        ((*EMBODIMENT, "names"), ["a"], "unequal widths"),
        ((*EMBODIMENT, "names"), None, "names is None"),
        ((*EMBODIMENT, "num_samples"), -1, "num_samples >= 0"),
        ((*EMBODIMENT, "embodiment"), 7, "embodiment is 7, expected a text"),
        ((*EMBODIMENT, "action_space"), "wishes", "wishes"),
        ((*EMBODIMENT, "surprise"), 1, "unknown 'surprise'"),
        (("format",), [1], "expected format 2"),
    ],
)
def test_contract_fields_are_checked(folder: Path, place: tuple[Any, ...], value: Any, message: str) -> None:
    set_json(folder / "contract.json", place, value)
    with pytest.raises(ValueError, match=message) as caught:
        read_description(folder)
    assert "contract.json" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_layers: 2", "num_layers: 1000000000", "num_layers must lie in"),
        ("hidden: 256", "hidden: 100000000000", "hidden must lie in"),
        ("latent_action_dim: 32", "latent_action_dim: 0", "latent_action_dim must lie in"),
        ("beta: 0.0001", "beta: .inf", "beta is inf"),
        ("encoder_layers: 1", "encoder_layers: -1", "encoder_layers must lie in"),
        ("rank: 0", "rank: 99999999", "rank must lie in"),
        ("regime: lacg", "regime: magic", "regime"),
    ],
)
def test_config_fields_are_checked(folder: Path, old: str, new: str, message: str) -> None:
    path = folder / "config.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message) as caught:
        read_description(folder)
    assert "config.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_layers", 10**9, "num_layers must lie in"),
        ("num_layers", 0, "num_layers must lie in"),
        ("num_layers", 3, "blocks.2.*is missing"),
        ("num_layers", 1, "blocks.1.*is not expected"),
        ("num_attention_heads", "2", "num_attention_heads is '2', expected a whole number"),
        ("attention_head_dim", 25, "config.json: describes no model|has shape"),
        ("ffn_dim", 1 << 17, "has shape"),
        ("patch_size", [1, 2], "patch_embedding.weight has shape"),
        ("quantization_config", {"load_in_8bit": True}, "unknown setting 'quantization_config'"),
        ("_class_name", "FluxTransformer2DModel", "expected class WanTransformer3DModel"),
        ("eps", "small", "eps is 'small', expected a finite number"),
    ],
)
def test_backbone_config_is_checked_before_memory_is_taken(
    folder: Path, key: str, value: Any, message: str
) -> None:
    set_json(folder / "transformer/config.json", (key,), value)
    with pytest.raises(ValueError, match=message):
        load_wan(str(folder))


def drop_half(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(list(tensors.items())[::2])


def add_one(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**tensors, "surprise": torch.zeros(1)}


def spoil(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tensors["proj_out.bias"][0] = float("nan")
    return tensors


def quantize(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**tensors, "proj_out.bias": tensors["proj_out.bias"].to(torch.int8)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_half, "does not fit its config: .* is missing"),
        (add_one, "surprise is not expected"),
        (spoil, "proj_out.bias holds NaN or infinity"),
        (quantize, "proj_out.bias holds I8, expected F64 or F32"),
    ],
)
def test_backbone_tensors_are_refused_by_name(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], message: str
) -> None:
    save_file(change(load_file(folder / BACKBONE)), folder / BACKBONE)
    with pytest.raises(ValueError, match=message):
        load_wan(str(folder))


@pytest.mark.parametrize("name", ["interface", "controller", "idm"])
def test_parts_with_nan_or_whole_numbers_are_refused_by_name(folder: Path, name: str) -> None:
    path = folder / f"{name}.safetensors"
    tensors = load_file(path)
    first = next(iter(tensors))
    save_file({**tensors, first: torch.full_like(tensors[first], float("nan"))}, path)
    with pytest.raises(ValueError, match=rf"{name}.safetensors: {first} holds NaN or infinity"):
        WorldModel.from_pretrained(folder)
    save_file({**tensors, first: tensors[first].to(torch.int8)}, path)
    with pytest.raises(ValueError, match=rf"{name}.safetensors: {first} holds I8"):
        WorldModel.from_pretrained(folder)


def test_an_absurd_part_is_refused_before_it_is_built(folder: Path) -> None:
    set_json(folder / "image_encoder.json", ("hidden_size",), 8190)
    set_json(folder / "image_encoder.json", ("num_hidden_layers",), 120)
    before = peak_bytes()
    with pytest.raises(ValueError, match=r"idm\.safetensors"):
        WorldModel.from_pretrained(folder)
    assert peak_bytes() - before < 200e6  # such an encoder takes 400 GB


def peak_bytes() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def test_an_image_encoder_cannot_name_code(folder: Path) -> None:
    path = folder / "image_encoder.json"
    for key, value in (
        ("attn_implementation", "someone/kernels"),
        ("_attn_implementation", "someone/kernels"),
        ("auto_map", {"AutoModel": "someone/code--model.Model"}),
    ):
        set_json(path, (key,), value)
    model = WorldModel.from_pretrained(folder)
    assert model.idm is not None
    assert "someone" not in str(model.idm.encoder.config.to_dict())


def test_other_places_need_a_word_from_the_user(folder: Path, tmp_path: Path) -> None:
    build_wan(tiny_wan(seed=3)).save_pretrained(tmp_path / "base" / "transformer")
    config = (folder / "config.yaml").read_text()
    shutil.move(folder / "vae", tmp_path / "elsewhere")
    named = config.replace("vae: ''", f"vae: {tmp_path / 'elsewhere'}")
    (folder / "config.yaml").write_text(named)
    assert "from elsewhere: vae=" in describe_sources(folder, read_description(folder).config)
    with pytest.raises(ValueError, match=r"load from elsewhere \(vae=.*elsewhere\).*--allow-external"):
        WorldModel.from_pretrained(folder)
    assert WorldModel.from_pretrained(folder, allow_external=True).vae is not None
    assert WorldModel.from_pretrained(folder, vae=str(tmp_path / "elsewhere")).vae is not None
    (folder / "config.yaml").write_text(config.replace("pretrained: ''", "pretrained: someone/wan", 1))
    shutil.move(folder / "transformer", tmp_path / "gone")
    with pytest.raises(ValueError, match=r"pretrained=someone/wan"):
        WorldModel.from_pretrained(folder)


def test_a_link_out_of_the_folder_is_another_place(folder: Path, tmp_path: Path) -> None:
    (folder / "vae").rename(tmp_path / "private")
    (folder / "vae").symlink_to(tmp_path / "private")
    assert "from elsewhere: vae=" in describe_sources(folder, read_description(folder).config)
    with pytest.raises(ValueError, match=r"load from elsewhere \(vae=.*private\).*--allow-external"):
        WorldModel.from_pretrained(folder)
    assert WorldModel.from_pretrained(folder, allow_external=True).vae is not None
    (folder / "vae").unlink()
    (tmp_path / "private").rename(folder / "vae")
    snapshot = tmp_path / "cache/snapshots/0"  # as in the hub's cache
    (tmp_path / "cache/blobs").mkdir(parents=True)
    shutil.move(folder, snapshot)
    (snapshot / "interface.safetensors").rename(tmp_path / "cache/blobs/1")
    (snapshot / "interface.safetensors").symlink_to("../../blobs/1")
    assert WorldModel.from_pretrained(snapshot).vae is not None


def test_a_backbone_under_adapters_is_another_place(tmp_path: Path, folder: Path) -> None:
    from worldmodel.models.config import WorldModelConfig

    known = read_description(folder)
    build_wan(tiny_wan()).save_pretrained(tmp_path / "base" / "transformer")
    adapted = WorldModelConfig(regime="no_action", pretrained=str(tmp_path / "base"), lora=LoraConfig(rank=2))
    WorldModel.build(adapted, known.contract, known.normalizer).save_pretrained(tmp_path / "adapted")
    on_top = WorldModelConfig(regime="no_action", pretrained=str(tmp_path / "adapted"))
    with pytest.raises(ValueError, match=r"pretrained=.*base"):
        WorldModel.build(on_top, known.contract, known.normalizer)
    assert WorldModel.build(on_top, known.contract, known.normalizer, allow_external=True).interface


def test_pickled_weights_are_never_read(folder: Path) -> None:
    tensors = load_file(folder / BACKBONE)
    (folder / BACKBONE).unlink()
    torch.save(tensors, folder / "transformer/diffusion_pytorch_model.bin")
    with pytest.raises(ValueError, match="safetensors only"):
        load_wan(str(folder))


def test_an_index_cannot_leave_its_folder(folder: Path) -> None:
    index = folder / f"{BACKBONE}.index.json"
    for name in ("../model.safetensors", "/etc/passwd", "model.bin"):
        index.write_text(json.dumps({"metadata": {}, "weight_map": {"proj_out.bias": name}}))
        with pytest.raises(ValueError, match="is not a safetensors file of this folder"):
            load_wan(str(folder))


def test_weights_in_several_files_are_checked_and_read(tmp_path: Path) -> None:
    build_wan(tiny_wan()).save_pretrained(tmp_path / "transformer", max_shard_size="100KB")
    parts = sorted((tmp_path / "transformer").glob("*.safetensors"))
    assert len(parts) > 1
    loaded, built = load_wan(str(tmp_path)).state_dict(), build_wan(tiny_wan()).state_dict()
    assert all(torch.equal(loaded[name], built[name]) for name in built)
    parts[-1].unlink()
    with pytest.raises(ValueError, match="is missing"):
        load_wan(str(tmp_path))


def test_autoencoders_are_checked_too(folder: Path, tmp_path: Path) -> None:
    set_json(folder / "vae/config.json", ("latents_std",), [0.0] * 16)
    with pytest.raises(ValueError, match="latents_std"):
        load_vae(str(folder))
    AutoencoderKLWan(base_dim=8, z_dim=16, num_res_blocks=1).save_pretrained(tmp_path / "wan")
    set_json(tmp_path / "wan/config.json", ("latents_mean",), [0.0] * 3)
    with pytest.raises(ValueError, match="z_dim values each"):
        load_vae(str(tmp_path / "wan"))
    set_json(tmp_path / "wan/config.json", ("base_dim",), 10**8)
    with pytest.raises(ValueError, match="base_dim must lie in"):
        load_vae(str(tmp_path / "wan"))
