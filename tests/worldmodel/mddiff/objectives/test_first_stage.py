from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.tiny_mddiff import TINY, some_images
from worldmodel.mddiff.models.first_stage import build_vq
from worldmodel.mddiff.models.patch_discriminator import PatchDiscriminator
from worldmodel.mddiff.models.perceptual import PerceptualDistance
from worldmodel.mddiff.objectives.first_stage import VqGan, VqObjective, vq_step


def players(objective: VqObjective, seed: int = 0) -> VqGan:
    torch.manual_seed(seed)
    return VqGan(build_vq(TINY.vq), objective)


@pytest.mark.parametrize(("pixel_loss", "power"), [("l1", 1), ("l2", 2)])
def test_without_judges_the_loss_is_pixels_and_codebook(pixel_loss: str, power: int) -> None:
    objective = VqObjective(pixel_loss=pixel_loss, adversarial_weight=0.0, codebook_weight=0.5)  # type: ignore[arg-type]
    model, images = players(objective), some_images(size=32)
    losses = vq_step(model, images, torch.Generator())
    parts = losses.parts
    pixels = images.float() / 127.5 - 1
    with torch.no_grad():
        expected = (model.vq(pixels).sample - pixels).abs().pow(power).mean()
    torch.testing.assert_close(parts["reconstruction"], expected)
    torch.testing.assert_close(losses.total.detach(), parts["reconstruction"] + 0.5 * parts["codebook"])
    assert 1 <= parts["codes_used"] <= 16
    losses.total.backward()
    assert all(p.grad is not None for p in model.vq.parameters())


def test_one_backward_pass_gives_each_player_its_own_gradient() -> None:
    model = players(VqObjective())
    assert model.discriminator is not None
    images = some_images(size=32)
    vq_step(model, images, torch.Generator()).total.backward()
    found = [p.grad.clone() for p in model.discriminator.parameters() if p.grad is not None]
    pixels = images.float() / 127.5 - 1
    with torch.no_grad():
        rebuilt = model.vq(pixels).sample
    real, made = model.discriminator(pixels), model.discriminator(rebuilt)
    hinge = ((1 - real).relu().mean() + (1 + made).relu().mean()) / 2
    alone = torch.autograd.grad(hinge, list(model.discriminator.parameters()))
    for mine, expected in zip(found, alone, strict=True):
        torch.testing.assert_close(mine, expected)
    weighed = model.vq.decoder.conv_out.weight.grad
    plain = players(VqObjective(adversarial_weight=0.0))
    vq_step(plain, images, torch.Generator()).total.backward()
    assert weighed is not None
    # Balanced: at the last layer the adversary adds 0.75 times the gradient of the faithful loss.
    added = weighed - plain.vq.decoder.conv_out.weight.grad
    assert float(added.norm() / plain.vq.decoder.conv_out.weight.grad.norm()) == pytest.approx(0.75, rel=0.02)


def test_patches_of_the_published_discriminator() -> None:
    scores = PatchDiscriminator().eval()(torch.zeros(1, 3, 64, 64))
    assert scores.shape == (1, 1, 6, 6)
    # ndf 64, three halving layers, batch norm: the count of the published patch discriminator.
    assert sum(p.numel() for p in PatchDiscriminator().parameters()) == 2_765_633


def test_perceptual_distance_is_zero_for_equal_pictures_and_comes_from_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    distance = PerceptualDistance(((4, 4), (8,)))
    for layer in distance.linear:
        torch.nn.init.constant_(layer.weight, 0.5)
    a, b = torch.rand(2, 3, 8, 8) * 2 - 1, torch.rand(2, 3, 8, 8) * 2 - 1
    assert not distance(a, a).any()
    assert (distance(a, b) > 0).all()
    torch.testing.assert_close(distance(a, b), distance(b, a))
    a.requires_grad_()
    distance(a, b).sum().backward()
    assert torch.isfinite(a.grad).all()
    full = PerceptualDistance()
    convolutions = [number for number, layer in enumerate(full.features) if hasattr(layer, "weight")]
    assert convolutions == [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]  # torchvision's names
    save_file({"features.0.weight": torch.zeros(1)}, tmp_path / "vgg.safetensors")
    with pytest.raises(ValueError, match="does not fit"):
        PerceptualDistance.load(str(tmp_path / "vgg.safetensors"))


def test_perceptual_distance_known_answer() -> None:
    """One 1x1-like stage by hand: unit features (1, 0) and (0, 1) differ by 1 in each channel."""
    distance = PerceptualDistance(((2,),))
    with torch.no_grad():
        distance.features[0].weight.zero_()
        distance.features[0].bias.zero_()
        distance.features[0].weight[0, 0, 1, 1], distance.features[0].weight[1, 1, 1, 1] = 1.0, 1.0
        distance.linear[0].weight.copy_(torch.tensor([2.0, 3.0]).view(1, 2, 1, 1))
    red = torch.tensor([1.0, -1.0, -1.0]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    green = torch.tensor([-1.0, 1.0, -1.0]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    torch.testing.assert_close(distance(red, green), torch.tensor([5.0]))
