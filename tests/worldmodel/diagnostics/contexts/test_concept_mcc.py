import numpy as np
import pytest

from worldmodel.diagnostics import concept_mcc


def blocks(seed: int = 0, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Codes [n 3 2] whose block j holds factor j, rotated and mixed with a nuisance."""
    rng = np.random.default_rng(seed)
    factors = rng.standard_normal((4000, 3))
    hidden = np.stack([factors, rng.standard_normal((4000, 3))], 2)
    codes = np.einsum("nmi,mio->nmo", hidden, rng.standard_normal((3, 2, 2)))
    return codes + noise * rng.standard_normal(codes.shape), factors


def test_blocks_that_hold_their_factors_score_one() -> None:
    found = concept_mcc(*blocks())
    assert found.aligned == pytest.approx(1, abs=1e-6)
    assert found.matched == pytest.approx(1, abs=1e-6)
    assert found.num_samples == 2000
    assert found.table[0, 1] < 0.1


def test_exchanged_blocks_match_but_are_not_aligned() -> None:
    codes, factors = blocks()
    found = concept_mcc(codes[:, [1, 2, 0]], factors)
    assert found.matched == pytest.approx(1, abs=1e-6)
    assert found.aligned < 0.1
    assert found.assignment.tolist() == [2, 0, 1]


def test_noise_gives_the_correlation_it_should() -> None:
    rng = np.random.default_rng(1)
    factors = rng.standard_normal((20_000, 2))
    codes = (factors + rng.standard_normal(factors.shape))[:, :, None]
    found = concept_mcc(codes, factors)
    assert found.aligned == pytest.approx(0.5**0.5, abs=0.02)
    assert found.interval[0] < found.aligned < found.interval[1]


def test_unrelated_and_constant_blocks_score_nothing() -> None:
    codes, factors = blocks()
    assert concept_mcc(codes, np.random.default_rng(5).standard_normal(factors.shape)).aligned < 0.06
    assert concept_mcc(np.ones_like(codes), factors).aligned == 0


def test_shapes_that_do_not_fit_are_refused() -> None:
    codes, factors = blocks()
    with pytest.raises(ValueError, match="as many blocks as factors"):
        concept_mcc(codes, factors[:, :2])
