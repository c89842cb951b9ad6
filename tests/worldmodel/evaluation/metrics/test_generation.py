from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.support.concept_stand_ins import StripeReader, striped
from worldmodel.evaluation.metrics.generation import AlexNetDistance, frechet_distance, inception_features
from worldmodel.mddiff.data.array_factors import ArrayFactors
from worldmodel.mddiff.evaluation.scores import EvaluationConfig, picture_scores


def shown_larger() -> ArrayFactors:
    """The stripes, four times as large: AlexNet has no use for 18 pixels."""
    return replace(small := striped(), pixels=small.pixels.repeat(4, axis=1).repeat(4, axis=2))


class Enlarged(StripeReader):
    def encode(self, images: Tensor) -> Tensor:
        return super().encode(images[..., ::4, ::4])

    def decode(self, codes: Tensor) -> Tensor:
        return super().decode(codes).repeat_interleave(4, 2).repeat_interleave(4, 3)


class ScriptedFeatures(nn.Module):
    """A stand-in for Inception: mean and spread of each channel."""

    def forward(self, images: Tensor, return_features: bool = False) -> Tensor:
        assert return_features
        values = images.to(torch.float32).flatten(2)
        return torch.cat([values.mean(2), values.std(2)], 1)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random weights under the published names."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("weights")
    model = AlexNetDistance()
    alexnet = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("features.")}
    torch.save({**alexnet, "classifier.1.weight": torch.zeros(2)}, folder / "alexnet.pth")
    linear = {f"lin{i}.model.1.weight": layer.weight.abs() for i, layer in enumerate(model.linear)}
    save_file({name: tensor.detach().clone() for name, tensor in linear.items()}, folder / "alex.safetensors")
    torch.jit.script(ScriptedFeatures()).save(str(folder / "inception.pt"))
    return {
        "alexnet": folder / "alexnet.pth",
        "linear": folder / "alex.safetensors",
        "fid": folder / "inception.pt",
    }


def test_weights_saved_on_a_gpu_are_read_without_one(
    weights: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = torch.load(weights["alexnet"], weights_only=True)
    monkeypatch.setattr(torch.serialization, "location_tag", lambda _: "cuda:0")
    torch.save(tensors, tmp_path / "alexnet.pth")
    distance = AlexNetDistance.load(tmp_path / "alexnet.pth", weights["linear"])
    assert torch.equal(distance.features[0].weight, tensors["features.0.weight"])


def test_alexnet_has_the_published_layout() -> None:
    names = {name: tuple(tensor.shape) for name, tensor in AlexNetDistance().state_dict().items()}
    # Indices and shapes of the convolutions of torchvision's AlexNet.
    expected = {
        0: (64, 3, 11, 11),
        3: (192, 64, 5, 5),
        6: (384, 192, 3, 3),
        8: (256, 384, 3, 3),
        10: (256, 256, 3, 3),
    }
    assert {
        name: shape for name, shape in names.items() if name.endswith("weight") and "features" in name
    } == {f"features.{index}.weight": shape for index, shape in expected.items()}


def test_lpips_is_zero_for_equal_pictures_and_grows_with_the_change(weights: dict[str, Path]) -> None:
    distance = AlexNetDistance.load(weights["alexnet"], weights["linear"])
    real = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(real.shape, generator=torch.Generator().manual_seed(1))
    none, little, much = (distance((real + size * noise).clamp(0, 1), real) for size in (0.0, 0.05, 0.4))
    assert (none == 0).all()
    assert (little > 0).all()
    assert (little < much).all()


def test_lpips_by_hand_with_one_telling_layer() -> None:
    """With all other weights zero, the first layer's term is the definition written out."""
    torch.manual_seed(0)
    distance = AlexNetDistance()
    for layer in distance.linear[1:]:
        nn.init.zeros_(layer.weight)
    made, real = torch.rand(2, 1, 3, 64, 64)
    features = []
    for image in (made, real):
        scaled = (2 * image - 1 - torch.tensor([-0.030, -0.088, -0.188]).view(3, 1, 1)) / torch.tensor(
            [0.458, 0.448, 0.450]
        ).view(3, 1, 1)
        found = torch.relu(
            nn.functional.conv2d(scaled, *distance.features[0].parameters(), stride=4, padding=2)
        )
        features.append(found / found.norm(dim=1, keepdim=True).clamp_min(1e-10))
    expected = (
        ((features[0] - features[1]) ** 2 * distance.linear[0].weight[0, :, 0, 0].view(-1, 1, 1))
        .sum(1)
        .mean()
    )
    assert torch.allclose(distance(made, real)[0], expected, rtol=1e-4)


def test_frechet_distance_of_known_gaussians() -> None:
    rng = np.random.RandomState(0)
    first = rng.randn(200_000, 3)
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-8)
    # |shift|^2, and (s - 1)^2 per dimension for independent dimensions of deviation s and 1.
    assert frechet_distance(first + np.array([1.0, 2.0, 0.0]), first) == pytest.approx(5, abs=1e-6)
    assert frechet_distance(first * [2.0, 1.0, 3.0], first) == pytest.approx(1 + 4, rel=0.02)
    turn = np.linalg.qr(rng.randn(3, 3))[0]
    assert frechet_distance(first * [2.0, 1.0, 3.0] @ turn, first) == pytest.approx(5, rel=0.02)
    with pytest.raises(ValueError, match="at least 2 pictures"):
        frechet_distance(first[:1], first)


def test_features_come_from_the_given_network(weights: dict[str, Path]) -> None:
    images = torch.zeros(150, 3, 4, 4, dtype=torch.uint8)
    images[7] = 9
    features = inception_features(images, weights["fid"])
    assert features.shape == (150, 6)
    assert features[7].tolist() == [9, 9, 9, 0, 0, 0]


def test_the_evaluation_computes_both_when_weights_are_given(weights: dict[str, Path]) -> None:
    given = {"lpips_alexnet": str(weights["alexnet"]), "lpips_linear": str(weights["linear"])}
    config = EvaluationConfig(num_reconstructed=10, num_fid=50, fid_network=str(weights["fid"]), **given)
    scores = picture_scores(Enlarged(), shown_larger(), config)
    assert scores["fid"] == {"mean": pytest.approx(0, abs=1e-3), "count": 50}
    assert scores["lpips"]["mean"] == pytest.approx(0, abs=1e-6)
    assert scores["lpips"]["count"] == 10


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no weights at .*alexnet\.pth"):
        AlexNetDistance.load(tmp_path / "alexnet.pth", tmp_path / "alex.pth")
