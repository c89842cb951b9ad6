import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.tiny_mddiff import TINY, some_images, tiny_mddiff
from worldmodel.mddiff.models.config import ContrastConfig, MDDiffConfig
from worldmodel.mddiff.models.first_stage import DecoderConditionConfig
from worldmodel.mddiff.models.mddiff import MDDiff


def test_pictures_become_codes_and_codes_become_pictures() -> None:
    model = tiny_mddiff().eval()
    codes = model.encode(some_images())
    assert codes.shape == (6, 5)
    torch.testing.assert_close(model.encode(some_images()[2:3]), codes[2:3])
    pictures = model.decode(codes, num_steps=3)
    assert pictures.shape == (6, 3, 16, 16)
    assert pictures.min() >= 0
    assert pictures.max() <= 1
    torch.testing.assert_close(model.decode(codes[2:3], num_steps=3), pictures[2:3])
    assert not torch.equal(model.decode(codes[:1], num_steps=3, seed=1), pictures[:1])
    moved = codes[:1] + torch.tensor([[2.0, 0, 0, 0, 0]])
    assert not torch.allclose(model.decode(moved, num_steps=3), pictures[:1], atol=1e-4)
    assert model.first_stage_images(some_images()).shape == pictures.shape


def test_latents_have_unit_variance_after_measuring_their_scale() -> None:
    model = tiny_mddiff().eval()
    model.set_latent_scale(some_images())
    latents = model.latents_of(model.pixels(some_images()))
    assert float(latents.std()) == pytest.approx(1.0, abs=1e-5)
    raw = model.first_stage.quantize(latents / model.latent_scale)
    torch.testing.assert_close(model.codes_of(latents), raw * model.latent_scale)


@pytest.mark.parametrize("what", ["scalars", "tokens"])
def test_the_decoder_sees_concepts_or_their_tokens(what: str) -> None:
    model = tiny_mddiff(DecoderConditionConfig(what=what)).eval()  # type: ignore[arg-type]
    concepts = torch.randn(2, 5)
    tokens = model.tokens(concepts)
    condition = model.condition(concepts, tokens)
    assert condition.shape == (2, 20 if what == "tokens" else 5)
    torch.testing.assert_close(model.tokens_of_condition(condition), tokens)


def test_a_saved_model_is_the_same_model(tmp_path: Path) -> None:
    model = tiny_mddiff(DecoderConditionConfig(where="once"), ContrastConfig()).eval()
    model.set_latent_scale(some_images())
    model.save_pretrained(tmp_path / "model")
    loaded = MDDiff.from_pretrained(tmp_path / "model")
    assert loaded.config == model.config
    assert not loaded.training
    codes = model.encode(some_images())
    assert torch.equal(loaded.encode(some_images()), codes)
    assert torch.equal(loaded.decode(codes, num_steps=2), model.decode(codes, num_steps=2))
    assert loaded.parameter_counts() == model.parameter_counts()
    model.save_pretrained(tmp_path / "model")  # replaces its own kind
    (tmp_path / "model" / "unet.safetensors").unlink()
    with pytest.raises(ValueError, match=r"unet\.safetensors is missing"):
        MDDiff.from_pretrained(tmp_path / "model")


def test_wrong_folders_pictures_and_shapes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no model at"):
        MDDiff.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pictures of 16x16, got"):
        tiny_mddiff().eval().encode(some_images(size=32))
    with pytest.raises(ValueError, match="multiple of 8"):
        replace(TINY, image_size=20)
    with pytest.raises(AssertionError, match="eval"):
        tiny_mddiff().encode(some_images())


@pytest.mark.parametrize("scale", [1e300, 0, -1.0])
def test_a_scale_that_no_latents_have_is_refused(scale: float, tmp_path: Path) -> None:
    tiny_mddiff().save_pretrained(tmp_path / "model")
    contract = tmp_path / "model/contract.json"
    contract.write_text(json.dumps({**json.loads(contract.read_text()), "latent_scale": scale}))
    with pytest.raises(ValueError, match=r"contract\.json: latent_scale must lie in"):
        MDDiff.from_pretrained(tmp_path / "model")


def test_the_paper_model_has_the_shapes_of_the_paper() -> None:
    config = MDDiffConfig()
    assert config.latent_shape == (3, 16, 16)
    assert config.condition_dim == 20
    assert config.decoder.where == "each_stage"
    counts = MDDiff(config).parameter_counts()
    assert counts == {
        "vq": 3_478_078,
        "encoder": 1_164_052,
        "tokens": 210_240,
        "unet": 37_469_635,
        "decoder_condition": 6_400,
    }
