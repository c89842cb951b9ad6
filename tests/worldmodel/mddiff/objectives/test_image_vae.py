import math

import pytest
import torch

from worldmodel.md_vae.gaussian import standard_kl
from worldmodel.mddiff.models.image_vae import ImageVae, ImageVaeConfig
from worldmodel.mddiff.objectives.image_vae import image_vae_loss
from worldmodel.types import Losses

IMAGES = torch.randint(0, 256, (6, 3, 16, 16), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def build(family: str, **settings: float) -> ImageVae:
    torch.manual_seed(0)
    return ImageVae(
        ImageVaeConfig(family, num_codes=3, image_size=16, hidden=8, discriminator_width=4, **settings)
    )


def loss_of(model: ImageVae, seed: int = 0) -> Losses:
    return image_vae_loss(model, IMAGES, torch.Generator().manual_seed(seed), num_pictures=100)


@pytest.mark.parametrize(
    ("family", "total"),
    [
        ("autoencoder", lambda p: p["reconstruction"]),
        ("beta_vae", lambda p: p["reconstruction"] + 4 * p["kl"]),
        ("beta_tcvae", lambda p: p["reconstruction"] + p["kl"] + 3 * p["total_correlation"]),
        (
            "factor_vae",
            lambda p: p["reconstruction"] + p["kl"] + 35 * p["total_correlation"] + p["discriminator"],
        ),
    ],
)
def test_the_total_is_the_stated_sum(family: str, total) -> None:
    losses = loss_of(build(family))
    assert math.isclose(losses.total.item(), total(losses.parts).item(), rel_tol=1e-5)
    assert not any(part.requires_grad for part in losses.parts.values())


def test_reconstruction_is_a_sum_over_pixels_and_channels() -> None:
    model = build("autoencoder")
    for parameter in model.decoder[-1].parameters():
        torch.nn.init.zeros_(parameter)  # log odds 0: every pixel costs log 2
    assert math.isclose(
        loss_of(model).parts["reconstruction"].item(), 3 * 16 * 16 * math.log(2), rel_tol=1e-5
    )


@pytest.mark.parametrize("family", ["autoencoder", "beta_vae", "beta_tcvae", "factor_vae"])
def test_four_times_the_weight_makes_up_for_half_the_size(family: str) -> None:
    small, large = build(family, pixel_weight=4.0), build(family)
    repeated = IMAGES.repeat_interleave(2, 2).repeat_interleave(2, 3)
    # The same autoencoder, looking at and painting every pixel four times.
    large.pixels = lambda images: images.float() / 255
    large.posterior = lambda pixels: small.posterior(pixels[..., ::2, ::2])
    large.logits = lambda codes: small.logits(codes).repeat_interleave(2, 2).repeat_interleave(2, 3)
    of_small, of_large = (
        image_vae_loss(model, images, torch.Generator().manual_seed(0), num_pictures=100)
        for model, images in ((small, IMAGES), (large, repeated))
    )
    assert math.isclose(of_small.total.item(), of_large.total.item(), rel_tol=1e-5)
    assert math.isclose(4 * of_small.parts["reconstruction"], of_large.parts["reconstruction"], rel_tol=1e-5)


def test_kl_is_that_of_the_posterior() -> None:
    model = build("beta_vae")
    expected = standard_kl(model.posterior(model.pixels(IMAGES))).mean()
    assert torch.allclose(loss_of(model).parts["kl"], expected)


def test_a_plain_autoencoder_has_no_noise() -> None:
    model = build("autoencoder")
    assert loss_of(model, 0).total == loss_of(model, 1).total
    assert loss_of(build("beta_vae"), 0).total != loss_of(build("beta_vae"), 1).total


def test_the_discriminator_is_trained_by_its_own_loss_only() -> None:
    gradients = []
    for gamma in (0.0, 1000.0):
        model = build("factor_vae", gamma=gamma)
        loss_of(model).total.backward()
        gradients.append([parameter.grad for parameter in model.discriminator.parameters()])
        encoder = [parameter.grad for parameter in model.encoder.parameters()]
        gradients.append(encoder)
    for first, second in zip(gradients[0], gradients[2], strict=True):
        assert torch.allclose(first, second)
    assert any(
        not torch.allclose(first, second) for first, second in zip(gradients[1], gradients[3], strict=True)
    )
