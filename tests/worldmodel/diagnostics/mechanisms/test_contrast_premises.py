import pytest
import torch
import torch.nn.functional as F

from worldmodel.diagnostics import capacity_gap, contrast_premises, latent_diversity


def directions(count: int, width: int, seed: int = 0) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, width, generator=source, dtype=torch.float64), dim=-1)


def test_an_optimum_of_the_theorem_meets_all_its_premises() -> None:
    keys = directions(200, 16)
    found = contrast_premises(keys, keys, latent_dim=7)
    assert found.alignment == pytest.approx(1)
    assert abs(found.mismatch) < 0.02
    assert found.uniformity == pytest.approx(found.even_uniformity, abs=0.05)
    assert found.rank == 16
    assert "wide enough for 7 latents" in found.verdict()
    narrow = contrast_premises(keys, keys, latent_dim=8)
    assert not narrow.is_applicable
    assert narrow.verdict() == (
        "nothing can be said: the embedding of 16 is too narrow for 8 latents, set mcl.embedding_dim to "
        "2 d_z + 1 = 17 or more"
    )


def test_a_collapsed_contrast_is_aligned_but_not_spread() -> None:
    same = directions(1, 8).expand(20, 8)
    found = contrast_premises(same, same, latent_dim=2)
    assert found.alignment == pytest.approx(1)
    assert found.uniformity == pytest.approx(0)
    assert found.rank == 0
    line = torch.cat([directions(1, 8) * t + directions(1, 8, 1) for t in torch.linspace(-1, 1, 20)])
    assert contrast_premises(line, line, latent_dim=2).rank <= 2
    with pytest.raises(ValueError, match="at least 3 rows"):
        contrast_premises(same[:2], same[:2], latent_dim=2)


def test_assumption_1_counts_how_the_prior_moves() -> None:
    source = torch.Generator().manual_seed(0)
    z = torch.randn(5, 3, generator=source)
    conditions = torch.randn(8, 6, generator=source)

    def gaussian(point: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return -(((point - u[:3]) / u[3:].exp()) ** 2) / 2

    def shifted(point: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return -((point - u[:3]) ** 2) / 2

    both = latent_diversity(gaussian, z, conditions)
    assert both.full_rank.all()
    assert both.verdict().startswith("Assumption 1 holds at 100% of 5 points")
    assert set(latent_diversity(shifted, z, conditions).rank.tolist()) == {
        3
    }  # means alone: half of what is asked
    fixed = latent_diversity(lambda point, u: -(point**2) / 2 + 0 * u[:3], z, conditions)
    assert set(fixed.rank.tolist()) == {0}


def test_a_generator_that_the_condition_scales_leaves_the_shifted_priors() -> None:
    # Laws by mean and variance at two conditions. LRD: x = w (a_u + e). GMD: x = s_u z + b_u.
    def lrd(p: torch.Tensor) -> torch.Tensor:
        weight, shifts = p[0], p[1:]
        return torch.cat([weight * shifts, (weight**2).expand(2)])

    def gmd(p: torch.Tensor) -> torch.Tensor:
        return torch.cat([p[:2], p[2:] ** 2])

    source = torch.Generator().manual_seed(0)
    draws = torch.randn(6, 4, generator=source)
    found = capacity_gap(lrd, gmd, draws[:, :3], draws)
    assert (found.lrd_rank, found.gmd_rank, found.gmd_generic) == (3, 4, 1.0)
    assert found.leaves
    assert "leaves the LRD family" in found.verdict()
    assert not capacity_gap(gmd, lrd, draws, draws[:, :3]).leaves
