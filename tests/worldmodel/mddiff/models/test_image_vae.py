from pathlib import Path

import pytest
import torch

from worldmodel.mddiff.models.image_vae import ImageVae, ImageVaeConfig
from worldmodel.mddiff.models.protocol import ConceptModel

SMALL = ImageVaeConfig(image_size=16, num_codes=3, hidden=8)


def pictures(size: int, count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_reference_sizes() -> None:
    """Counted by hand from the layers of the reference study, 3 channels and 10 codes."""
    model = ImageVae(ImageVaeConfig(num_codes=10))
    convolutions = (3 * 16 + 1) * 32 + (32 * 16 + 1) * 32 + (32 * 4 + 1) * 64 + (64 * 4 + 1) * 64
    assert count(model.encoder) == convolutions + (1024 + 1) * 256 + (256 + 1) * 20
    transposed = 64 * 64 * 16 + 64 + 64 * 32 * 16 + 32 + 32 * 32 * 16 + 32 + 32 * 3 * 16 + 3
    assert count(model.decoder) == (10 + 1) * 256 + (256 + 1) * 1024 + transposed


def test_overlapping_kernels_change_the_last_two_convolutions() -> None:
    model = ImageVae(ImageVaeConfig(image_size=32, inner_kernel=4))
    convolutions = (3 * 16 + 1) * 32 + (32 * 16 + 1) * 64 + (64 * 16 + 1) * 64
    assert count(model.encoder) == convolutions + (1024 + 1) * 256 + (256 + 1) * 40
    assert model.encode(pictures(32)).shape == (2, 20)


def test_discriminator_has_six_layers_of_1000() -> None:
    model = ImageVae(ImageVaeConfig(family="factor_vae"))
    assert model.discriminator is not None
    assert count(model.discriminator) == (20 + 1) * 1000 + 5 * (1000 + 1) * 1000 + (1000 + 1) * 2


@pytest.mark.parametrize("size", [16, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("family", ["beta_vae", "autoencoder"])
def test_shapes_and_range(size: int, channels: int, family: str) -> None:
    model = ImageVae(ImageVaeConfig(family=family, image_size=size, channels=channels, num_codes=5))
    assert isinstance(model, ConceptModel)
    codes = model.encode(pictures(size))
    assert codes.shape == (2, 5)
    made = model.decode(codes)
    assert made.shape == (2, 3, size, size)
    assert 0 <= made.min() <= made.max() <= 1
    if channels == 1:
        assert (made[:, 0] == made[:, 2]).all()


def test_codes_are_posterior_means_without_noise() -> None:
    model, images = ImageVae(SMALL), pictures(16)
    assert (model.encode(images) == model.encode(images)).all()
    assert torch.allclose(model.encode(images), model.posterior(model.pixels(images)).mean)


def test_many_pictures_are_encoded_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = ImageVae(SMALL), pictures(16, 5)
    whole = model.encode(images)
    monkeypatch.setattr("worldmodel.mddiff.models.image_vae.CHUNK", 2)
    assert torch.allclose(model.encode(images), whole, atol=1e-6)
    assert torch.allclose(model.decode(whole[:3]), model.decode(whole)[:3], atol=1e-6)


def test_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="pictures of 16x16, got"):
        ImageVae(SMALL).encode(pictures(32))
    with pytest.raises(ValueError, match="image_size is 16, 32 or 64, got 48"):
        ImageVaeConfig(image_size=48)


@pytest.mark.parametrize("family", ["factor_vae", "autoencoder"])
def test_a_saved_model_gives_the_same_codes(tmp_path: Path, family: str) -> None:
    model = ImageVae(ImageVaeConfig(family, image_size=16, num_codes=3, hidden=8, discriminator_width=4))
    model.save_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "model")  # replaces the first
    loaded = ImageVae.from_pretrained(tmp_path / "model")
    assert loaded.config == model.config
    assert not loaded.training
    assert (loaded.encode(pictures(16)) == model.encode(pictures(16))).all()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no model at .*: expected contract\.json"):
        ImageVae.from_pretrained(tmp_path)
    (tmp_path / "contract.json").write_text('{"format": 1, "model": "MDDiff"}')
    with pytest.raises(ValueError, match=r"got .*MDDiff"):
        ImageVae.from_pretrained(tmp_path)
