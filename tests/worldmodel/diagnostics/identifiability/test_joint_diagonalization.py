import pytest
import torch
from scipy.linalg import eigh

from worldmodel.diagnostics.identifiability.correlation import matched_correlation
from worldmodel.diagnostics.identifiability.joint_diagonalization import (
    ConditionAlignment,
    joint_diagonalizer,
)


def mixture(num_problems: int, num_matrices: int, dim: int, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    mixing = torch.randn(num_problems, dim, dim, generator=rng, dtype=torch.float64)
    variances = torch.randn(num_problems, num_matrices, dim, generator=rng, dtype=torch.float64).exp()
    return mixing, mixing.unsqueeze(1) @ torch.diag_embed(variances) @ mixing.unsqueeze(1).transpose(-1, -2)


def is_scaled_permutation(matrix: torch.Tensor, tolerance: float) -> bool:
    size = matrix.abs() / matrix.abs().amax(-1, keepdim=True)
    return bool(((size > tolerance).sum(-1) == 1).all() and ((size > tolerance).sum(-2) == 1).all())


@pytest.mark.parametrize(("num_matrices", "dim"), [(2, 3), (8, 5), (8, 20)])
def test_exact_mixtures_are_undone(num_matrices: int, dim: int) -> None:
    mixing, covariances = mixture(4, num_matrices, dim)
    found = joint_diagonalizer(covariances, torch.full((4, num_matrices), 1 / num_matrices))
    for problem in found @ mixing:
        assert is_scaled_permutation(problem, 1e-3)


def test_two_matrices_give_their_generalized_eigenvectors() -> None:
    _, covariances = mixture(1, 2, 4, seed=3)
    _, vectors = eigh(covariances[0, 0].numpy(), covariances[0, 1].numpy())
    found = joint_diagonalizer(covariances, torch.full((1, 2), 0.5))[0]
    assert is_scaled_permutation(found @ torch.linalg.inv(torch.from_numpy(vectors).T), 1e-3)


def test_equal_matrices_leave_the_axes_open_without_harm() -> None:
    same = mixture(1, 1, 4)[1].expand(1, 5, 4, 4)
    found = joint_diagonalizer(same, torch.full((1, 5), 0.2))
    turned = found @ same[:, 0] @ found.transpose(-1, -2)
    torch.testing.assert_close(turned, torch.diag_embed(turned.diagonal(0, -2, -1)), atol=1e-6, rtol=0)


def sources(num_conditions: int, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    z = torch.randn(2, 8000, 5, generator=rng)
    condition = torch.randint(0, num_conditions, (2, 8000), generator=rng)
    scale = torch.exp(0.5 * torch.randn(2, num_conditions, 5, generator=rng))
    shift = torch.randn(2, num_conditions, 5, generator=rng)
    w = z * torch.take_along_dim(scale, condition.unsqueeze(-1), 1)
    w = w + torch.take_along_dim(shift, condition.unsqueeze(-1), 1)
    return z, w @ torch.randn(2, 5, 5, generator=rng), condition


def test_mixed_sources_come_back_on_samples_that_were_not_fitted() -> None:
    z, mixed, condition = sources(8)
    fitted = ConditionAlignment().fit(mixed[:, :6000], condition[:, :6000])
    found = fitted.transform(mixed[:, 6000:], condition[:, 6000:])
    before = matched_correlation(z[:, 6000:], mixed[:, 6000:]).mean
    after = matched_correlation(z[:, 6000:], found).mean
    assert (before < 0.8).all()
    assert (after > 0.98).all()


def test_sources_without_changing_scales_do_not_come_back() -> None:
    z, _, condition = sources(8)
    turn = torch.linalg.qr(torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(4)))[0]
    mixed = z @ turn
    found = ConditionAlignment().fit(mixed, condition).transform(mixed, condition)
    assert (matched_correlation(z, found).mean < 0.9).all()


def test_a_collapsed_latent_does_not_stop_the_others() -> None:
    z, mixed, condition = sources(8)
    dead = torch.cat([mixed, torch.zeros(2, 8000, 1)], dim=-1)
    found = ConditionAlignment().fit(dead, condition).transform(dead, condition)
    assert (matched_correlation(z, found).mean > 0.98).all()


def test_conditions_with_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 5 are needed"):
        ConditionAlignment().fit(torch.randn(1, 20, 5), torch.arange(20).unsqueeze(0) % 8)
