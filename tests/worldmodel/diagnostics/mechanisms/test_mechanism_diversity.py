import math
import warnings

import pytest
import torch
from torch import Tensor

from worldmodel.diagnostics.mechanisms.mechanism_diversity import (
    FirstOrderDiversity,
    first_order_diversity,
    mechanism_diversity,
    mechanism_vectors,
)
from worldmodel.md_vae.simulation import IdentifiabilityDataConfig, draw_identifiability_data

DIM = 3


def smooth_mixing(seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    first = torch.randn(DIM, 8, generator=rng, dtype=torch.float64)
    second = torch.randn(8, 8, generator=rng, dtype=torch.float64)
    return lambda w: torch.tanh(w @ first) @ second + 0.3 * (w @ first)


MIXING = smooth_mixing()


def modulated(z: Tensor, u: Tensor) -> Tensor:
    return MIXING(z * torch.exp(u[..., :DIM]) + u[..., DIM:])


def conditions(count: int) -> Tensor:
    return 0.5 * torch.randn(count, 2 * DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def points(count: int = 6) -> Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_vectors_of_a_componentwise_generator_have_a_closed_form() -> None:
    # g_i = exp(a_i z_i) / a_i has log|J| = sum a_i z_i and V = (a, 0); sinh has V = (tanh z, 1 - tanh^2 z).
    a = torch.tensor([[0.5, 1.0, 2.0], [1.5, -1.0, 0.7]], dtype=torch.float64)
    found = mechanism_vectors(lambda z, u: torch.exp(u * z) / u, points(), a)
    expected = torch.cat([a, torch.zeros_like(a)], dim=1).expand(6, 2, 6)
    torch.testing.assert_close(found, expected)
    z = points()
    found = mechanism_vectors(lambda z, u: torch.sinh(z) + 0 * u.sum(), z, a)[:, 0]
    torch.testing.assert_close(found, torch.cat([z.tanh(), 1 - z.tanh() ** 2], dim=1))


def test_enough_conditions_on_a_curved_generator_satisfy_assumption_two() -> None:
    found = mechanism_diversity(modulated, points(), conditions(2 * DIM + 1))
    assert found.full_rank.all()
    assert found.limits == ()
    assert found.condition_number.isfinite().all()
    assert (found.effective_rank > 1).all()
    assert (found.effective_rank <= 2 * DIM).all()
    assert "holds at 100%" in found.verdict()


@pytest.mark.parametrize("count", [2, 4, 6])
def test_fewer_conditions_cap_the_rank(count: int) -> None:
    found = mechanism_diversity(modulated, points(), conditions(count))
    assert (found.rank == count - 1).all()
    assert found.limits == ("too few conditions",)
    assert found.condition_number.isinf().all()


def test_an_affine_generator_has_no_contrasts_at_all() -> None:
    mixing = torch.randn(DIM, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with pytest.warns(UserWarning, match="affine generator"):
        found = mechanism_diversity(
            lambda z, u: (z * torch.exp(u[..., :DIM])) @ mixing, points(), conditions(2 * DIM + 1)
        )
    assert found.largest_contrast < 1e-12
    assert (found.rank == 0).all()
    assert (found.effective_rank == 0).all()
    assert found.limits == ("affine generator",)


def test_conditions_that_do_not_reshape_the_generator_are_dependent_contrasts() -> None:
    found = mechanism_diversity(lambda z, u: MIXING(z) + u.sum(-1, keepdim=True), points(), conditions(7))
    assert (found.rank == 0).all()
    assert found.limits == ("dependent contrasts",)


@pytest.mark.parametrize("num_conditions", [8, 16, 32])
def test_the_leaky_relu_simulator_has_no_mechanism_vectors_for_any_alphabet(num_conditions: int) -> None:
    config = IdentifiabilityDataConfig(latent_dim=DIM, num_conditions=num_conditions, num_samples=100)
    drawn = draw_identifiability_data(config, [0])
    truth = drawn.truth.of_seed(0)
    with pytest.warns(UserWarning, match="piecewise linear"):
        found = mechanism_diversity(
            lambda z, u: truth(z.unsqueeze(0), u.unsqueeze(0)).squeeze(0), points(), drawn.alphabet[0]
        )
    assert found.largest_contrast == 0
    assert (found.rank == 0).all()
    assert found.limits[0] == "piecewise linear generator"


def test_a_smooth_simulator_has_full_rank() -> None:
    config = IdentifiabilityDataConfig(
        latent_dim=DIM, num_conditions=2 * DIM + 1, num_samples=100, activation="smooth"
    )
    drawn = draw_identifiability_data(config, [0])
    truth = drawn.truth.of_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = mechanism_diversity(
            lambda z, u: truth(z.unsqueeze(0), u.unsqueeze(0)).squeeze(0), points(), drawn.alphabet[0]
        )
    assert found.full_rank.all()


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 64 latents"):
        mechanism_vectors(lambda z, u: z, torch.zeros(1, 65), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="loses rank"):
        mechanism_vectors(lambda z, u: z.sum(-1, keepdim=True).expand(-1, 3), points(), conditions(2))
    with pytest.raises(ValueError, match="at least 2 conditions"):
        mechanism_diversity(modulated, points(), conditions(1))
    assert math.isfinite(mechanism_vectors(modulated, points(), conditions(2)).sum().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_order_estimate_counts_how_conditions_change_the_jacobian(dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(0)
    bases = torch.randn(3, 6, 4, generator=rng)
    conditions, directions = torch.randn(9, 3, generator=rng), torch.randn(5, 4, generator=rng)
    z = torch.randn(4, generator=rng)

    def estimate(kind: str) -> FirstOrderDiversity:
        def generator(z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
            used = {"gmd": u, "two": u * torch.tensor([1.0, 1.0, 0.0])}.get(kind, torch.zeros_like(u))
            matrix = bases[0] + torch.einsum("nk,kxd->nxd", used, bases)[0]
            shift = 5 * u.sum() if kind == "shift" else 0
            return z.to(dtype) @ matrix.T.to(dtype) + torch.as_tensor(shift).to(dtype)

        return first_order_diversity(generator, 0.1 * z, conditions, directions, step=0.1)

    gmd, two = estimate("gmd"), estimate("two")
    for kind in ("blind", "shift"):
        assert estimate(kind).rank == 0
    assert "no change above the error" in estimate("blind").verdict()
    assert (gmd.rank, two.rank) == (3, 2)
    assert gmd.singular_values[0] > 3 * gmd.floor
    with pytest.raises(ValueError, match="at least 2 conditions"):
        first_order_diversity(lambda z, u: z, z, conditions[:1], directions, step=0.1)
