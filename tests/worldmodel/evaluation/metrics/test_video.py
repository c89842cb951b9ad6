import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from worldmodel.evaluation.metrics.video import (
    METRICS,
    edges_moving,
    laplacian,
    masked_mse,
    moving_pixels,
    mse,
    plain_ssim,
    psnr,
    score_video,
    ssim,
)


def videos(seed, size=(64, 48), noise=0.1):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(5, 3, 8, 8, generator=generator)
    real = torch.nn.functional.interpolate(coarse, size, mode="bicubic").clamp(0, 1)
    made = (real + noise * torch.randn(real.shape, generator=generator)).clamp(0, 1)
    return made, real


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("size", [(64, 64), (11, 40), (120, 160)])
def test_ssim_and_psnr_are_those_of_scikit_image(size, noise):
    made, real = videos(0, size, noise)
    expected = [
        structural_similarity(
            a.numpy(),
            b.numpy(),
            channel_axis=0,
            data_range=1.0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
        for a, b in zip(made.double(), real.double(), strict=True)
    ]
    assert ssim(made, real).numpy() == pytest.approx(expected, abs=1e-9)
    if noise:
        pairs = zip(made.numpy(), real.numpy(), strict=True)
        ratios = [peak_signal_noise_ratio(b, a, data_range=1.0) for a, b in pairs]
        assert psnr(made, real).numpy() == pytest.approx(ratios, abs=1e-5)


def test_plain_ssim_is_scikit_images_default():
    made, real = videos(1, (48, 7))
    expected = [
        structural_similarity(a.numpy(), b.numpy(), channel_axis=0, data_range=1.0)
        for a, b in zip(made.double(), real.double(), strict=True)
    ]
    assert plain_ssim(made, real).numpy() == pytest.approx(expected, abs=1e-9)
    with pytest.raises(ValueError, match="7 pixels"):
        plain_ssim(made[..., :6], real[..., :6])


def waves(seed: int, count: int, height: int, width: int, noise: float) -> list[torch.Tensor]:
    """A made and a true video in whole gray levels, the same on every machine."""
    rng = np.random.default_rng(seed)
    down, across = np.linspace(0, 3, height)[:, None], np.linspace(0, 5, width)
    curves = [np.sin(down * k + across + 0.3 * t) for t in range(count) for k in (1, 2, 3)]
    real = 128 + 90 * np.stack(curves).reshape(count, 3, height, width)
    made = real + noise * rng.standard_normal(real.shape) + noise / 4
    return [torch.from_numpy(np.clip(np.round(video), 0, 255)) / 255 for video in (made, real)]


# The numbers were made by `compute_basic_metrics` of WorldArena (1674b79, scikit-image 0.26) on PNG files of
# these videos, outside this project.
@pytest.mark.parametrize(
    ("video", "expected_psnr", "expected_ssim"),
    [
        ((0, 5, 64, 64, 4.0), 35.785057, 0.948221),
        ((1, 3, 48, 80, 20.0), 21.992610, 0.562020),
        ((2, 2, 33, 17, 60.0), 13.372011, 0.493420),
    ],
)
def test_psnr_and_plain_ssim_agree_with_worldarena(video, expected_psnr, expected_ssim):
    made, real = waves(*video)
    assert float(psnr(made, real).mean()) == pytest.approx(expected_psnr, abs=1e-5)
    assert float(plain_ssim(made, real).mean()) == pytest.approx(expected_ssim, abs=1e-5)


def test_flat_float32_pictures_agree_too():
    # Where variances vanish, single precision would be off by 1e-4.
    real = torch.full((1, 3, 32, 32), 0.9)
    made = real + 0.002
    expected = structural_similarity(
        made[0].double().numpy(),
        real[0].double().numpy(),
        channel_axis=0,
        data_range=1.0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    assert ssim(made, real).item() == pytest.approx(expected, abs=1e-8)


def test_small_frames_have_no_window():
    with pytest.raises(ValueError, match=r"more than 10 pixels.*\(10, 64\)"):
        ssim(torch.zeros(1, 3, 10, 64), torch.zeros(1, 3, 10, 64))


def test_known_errors():
    real = torch.zeros(2, 3, 16, 16)
    made = torch.stack([real[0] + 0.1, real[0]])
    assert mse(made, real).tolist() == pytest.approx([0.01, 0.0])
    assert psnr(made, real).tolist() == pytest.approx([20.0, 100.0], abs=1e-4)


def test_foreground_is_what_moves_in_the_truth_in_any_channel():
    first = torch.zeros(3, 16, 16)
    real = first.repeat(2, 1, 1, 1)
    real[0, 1, 2, 3] = 0.08
    real[0, 1, 2, 4] = 0.07
    mask = moving_pixels(real, first)
    assert mask.nonzero().tolist() == [[0, 2, 3]]
    made = real + 0.5
    made[0, :, 2, 3] = real[0, :, 2, 3] + 0.1
    errors = masked_mse(made, real, mask)
    assert errors[0].item() == pytest.approx(0.01)
    assert math.isnan(errors[1])


def test_scores_of_a_video_are_plain_values_and_none_where_nothing_moves():
    first = torch.full((3, 16, 16), 0.5)
    real = first.repeat(3, 1, 1, 1)
    real[2, :, :8] = 1.0
    scores = score_video(first.repeat(3, 1, 1, 1), real, first)
    assert set(scores) == set(METRICS)
    assert scores["moving_mse"] == [None, None, 0.25]
    assert scores["moving_psnr"][2] == pytest.approx(10 * math.log10(4))
    assert scores["mse"] == [0.0, 0.0, 0.125]
    assert np.all(np.array(scores["ssim"])[:2] == 1)


def test_laplacian_is_that_of_scipy():
    _, real = videos(3)
    expected = ndimage.laplace(real.double().numpy()[0, 0], mode="nearest")
    assert laplacian(real.double())[0, 0].numpy() == pytest.approx(expected, abs=1e-12)


def test_edges_of_a_blurred_wave_have_the_known_energy():
    """A low-pass filter scales a wave by its response: the energy by the square of it."""
    x = torch.arange(64, dtype=torch.float64)
    real = (0.5 + 0.4 * torch.sin(2 * math.pi * x / 8)).expand(2, 3, 64, 64)
    made = (real.roll(1, -1) + real + real.roll(-1, -1)) / 3
    response = (1 + 2 * math.cos(2 * math.pi / 8)) / 3
    mask = torch.zeros(2, 64, 64, dtype=torch.bool)
    mask[:, :, 8:-8] = True  # whole periods, away from the border
    assert edges_moving(made, real, mask).tolist() == pytest.approx([response**2] * 2, rel=1e-9)
    mask[1] = False
    mask[1, 0, :15] = True
    assert math.isnan(edges_moving(made, real, mask)[1])
