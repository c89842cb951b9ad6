import pytest
import torch
from torch import Tensor

from worldmodel.mddiff.ddim import NoiseConfig, build_scheduler, ddim_sample, draw_steps


def test_the_square_root_of_beta_grows_linearly_unless_asked_otherwise() -> None:
    betas = build_scheduler(NoiseConfig()).betas
    assert betas[[0, -1]].tolist() == pytest.approx([0.0015, 0.0155])
    middle = ((0.0015**0.5 + 0.0155**0.5) / 2) ** 2
    assert float(betas[499] + betas[500]) / 2 == pytest.approx(middle, rel=1e-4)
    straight = build_scheduler(NoiseConfig(schedule="linear")).betas
    assert float(straight[499] + straight[500]) / 2 == pytest.approx(0.0085)


@pytest.mark.parametrize(
    ("num_steps", "spacing"), [(1, "trailing"), (10, "trailing"), (300, "trailing"), (200, "leading")]
)
def test_a_perfect_denoiser_gives_the_data_back(num_steps: int, spacing: str) -> None:
    config = NoiseConfig(spacing=spacing)  # type: ignore[arg-type]
    scheduler = build_scheduler(config)
    rng = torch.Generator().manual_seed(0)
    data, start = torch.randn(2, 3, 4, 4, generator=rng), torch.randn(2, 3, 4, 4, generator=rng)

    def predict(noisy: Tensor, steps: Tensor) -> Tensor:
        kept = scheduler.alphas_cumprod[steps].view(-1, 1, 1, 1)
        return (noisy - kept.sqrt() * data) / (1 - kept).sqrt()

    made = ddim_sample(predict, start, config, num_steps=num_steps)
    # The published spacing ends at time step 0, where this much noise is left.
    left = float(1 - scheduler.alphas_cumprod[0]) ** 0.5 if spacing == "leading" else 1e-4
    assert (made - data).abs().max() < 5 * left
    drawn = [ddim_sample(predict, start, config, num_steps=10, eta=1.0, generator=rng) for _ in range(2)]
    assert not torch.equal(*drawn)


def test_steps_cover_the_process() -> None:
    steps = draw_steps(4000, NoiseConfig(num_steps=10), torch.Generator().manual_seed(0))
    assert sorted(set(steps.tolist())) == list(range(10))
    with pytest.raises(ValueError, match="1 to 999 steps here, got 1000"):
        ddim_sample(lambda x, t: x, torch.zeros(1, 1, 1, 1), NoiseConfig(), num_steps=1000)
