import numpy as np
import pytest
import torch

from worldmodel.md_vae.simulation import (
    IdentifiabilityDataConfig,
    draw_identifiability_data,
    random_stream,
)


def config(**options) -> IdentifiabilityDataConfig:
    return IdentifiabilityDataConfig(**({"latent_dim": 4, "num_samples": 20_000} | options))


def test_latents_are_standard_normal_and_independent_of_the_condition() -> None:
    data = draw_identifiability_data(config(), [0])
    torch.testing.assert_close(data.z[0].T.cov(), torch.eye(4), rtol=0, atol=0.04)
    for value in range(8):
        chosen = data.z[0][data.condition[0] == value]
        assert abs(len(chosen) - 2500) < 250
        assert chosen.mean(0).abs().max() < 0.1


def test_observations_are_the_generator_plus_noise_of_the_stated_size() -> None:
    data = draw_identifiability_data(config(), [0, 1])
    residual = data.x - data.truth(data.z, data.u)
    assert residual.std().item() == pytest.approx(0.1, rel=0.01)
    assert data.x.shape == (2, 20_000, 64)
    assert data.num_train == 16_000


@pytest.mark.parametrize("mixing", ["orthogonal", "generic"])
@pytest.mark.parametrize("activation", ["leaky_relu", "smooth"])
@pytest.mark.parametrize("gain", [0.5, 1.0])
def test_the_mixing_has_the_stated_gain(mixing: str, activation: str, gain: float) -> None:
    options = {"mixing": mixing, "activation": activation, "gain": gain}
    data = draw_identifiability_data(config(num_conditions=128, **options), [3])
    w = data.truth.modulate(data.z, data.u)
    ratio = (data.truth.mix(w).square().sum() / w.square().sum()).sqrt().item()
    assert ratio == pytest.approx(gain, rel=0.1)


def test_modulation_and_shift_vary_as_stated_over_conditions() -> None:
    data = draw_identifiability_data(config(num_conditions=128), range(4))
    zero, one = torch.zeros(4, 128, 4), torch.ones(4, 128, 4)
    shift = data.truth.modulate(zero, data.alphabet)
    scale = data.truth.modulate(one, data.alphabet) - shift
    assert (scale > 0).all()
    assert scale.log().std(1).mean().item() == pytest.approx(0.5, rel=0.15)
    assert shift.std(1).mean().item() == pytest.approx(0.5, rel=0.15)


def test_a_seed_is_the_same_alone_and_in_a_stack() -> None:
    together, alone = draw_identifiability_data(config(), [5, 6]), draw_identifiability_data(config(), [6])
    torch.testing.assert_close(together.x[1], alone.x[0])
    assert together.condition[1].equal(alone.condition[0])
    assert not together.x[0].equal(together.x[1])


def test_datasets_are_paired_across_the_number_of_conditions() -> None:
    small, large = (
        draw_identifiability_data(config(num_conditions=4), [2]),
        draw_identifiability_data(config(num_conditions=32), [2]),
    )
    assert small.z.equal(large.z)
    assert small.alphabet[0].equal(large.alphabet[0, :4])
    for kind in ("mixing", "modulation", "shift"):
        for first, second in zip(getattr(small.truth, kind), getattr(large.truth, kind), strict=True):
            assert first.equal(second)
    noise = [data.x - data.truth(data.z, data.u) for data in (small, large)]
    torch.testing.assert_close(*noise, rtol=0, atol=1e-5)


def test_orthogonal_mixing_is_well_conditioned_and_generic_is_not() -> None:
    spread = {}
    for mixing in ("orthogonal", "generic"):
        truth = draw_identifiability_data(config(mixing=mixing, num_samples=100), [1]).truth.of_seed(0)
        jacobian = torch.func.jacfwd(lambda w, truth=truth: truth.mix(w.view(1, 1, -1)).flatten())
        points = torch.randn(20, 4, dtype=torch.float64, generator=random_stream(9))
        spread[mixing] = np.median([torch.linalg.cond(jacobian(point)).item() for point in points])
    assert spread["orthogonal"] < 2
    assert spread["generic"] > 1.2 * spread["orthogonal"]


def test_streams_depend_on_the_whole_key() -> None:
    draws = {
        float(torch.rand((), generator=random_stream(*key))) for key in ((3,), (3, 0), (0, 3), (3, 0, 0))
    }
    assert len(draws) == 4
    assert torch.rand(3, generator=random_stream(7, 1)).equal(torch.rand(3, generator=random_stream(7, 1)))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be invertible"):
        config(output_dim=3)
    with pytest.raises(ValueError, match="num_conditions"):
        config(num_conditions=1)
