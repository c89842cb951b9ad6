import numpy as np
import pytest

from worldmodel.diagnostics import IcaAligner, NearIdentifiability

QUICK = IcaAligner(restarts=1)


def laplace(n: int = 4000, d: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).laplace(size=(n, d))


def rotation(d: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]


def test_a_rigid_motion_is_identified_exactly() -> None:
    z = laplace()
    result = NearIdentifiability(ica=QUICK).fit([z, z @ rotation(4) + 3.0])
    (pair,) = result.statistical_
    assert pair.epsilon_rigid.value == pytest.approx(0, abs=1e-9)
    assert pair.affine_r2.value == pytest.approx(1)
    assert pair.mcc.value < 0.95
    assert pair.mcc_ica.value > 0.999
    assert pair.epsilon_permutation.value < 0.01
    assert pair.num_test == 2000


def test_a_badly_conditioned_map_is_affine_but_not_rigid() -> None:
    z = laplace()
    stretched = z @ rotation(4) * [1.0, 1.0, 0.2, 0.2] @ rotation(4, 1)
    (pair,) = NearIdentifiability(ica=QUICK).fit([z, stretched]).statistical_
    assert pair.affine_r2.value == pytest.approx(1)
    assert pair.epsilon_rigid.value > 0.3
    assert pair.epsilon_scaled.value < pair.epsilon_rigid.value
    assert pair.mcc_ica.value > 0.99  # whitening undoes the stretch


def test_gaussian_latents_stay_rotated_and_laplace_latents_do_not() -> None:
    rng = np.random.default_rng(0)
    normal, other = rng.normal(size=(4000, 4)), laplace()
    with pytest.warns(UserWarning, match="Gaussian"):
        control = NearIdentifiability(ica=IcaAligner(restarts=1, max_iter=200)).fit(
            [normal @ rotation(4)], normal
        )
    good = NearIdentifiability(ica=QUICK).fit([other @ rotation(4)], other)
    assert control.structural_[0].affine_r2.value == pytest.approx(1)
    assert control.structural_[0].mcc_ica.value < 0.9
    assert good.structural_[0].mcc_ica.value > 0.99
    assert good.structural_[0].epsilon_scaled.value < 0.05


def test_all_pairs_are_compared_and_transform_aligns_them() -> None:
    z = laplace()
    runs = [z @ rotation(4, seed) for seed in range(3)]
    result = NearIdentifiability(ica=QUICK).fit(runs, z)
    assert [(pair.target, pair.source) for pair in result.statistical_] == [
        ("run 0", "run 1"),
        ("run 0", "run 2"),
        ("run 1", "run 2"),
    ]
    assert [agreement.source for agreement in result.structural_] == ["run 0", "run 1", "run 2"]
    first, *others = result.transform(runs)
    for other in others:
        np.testing.assert_allclose(other, first, atol=0.1)


def test_unrelated_runs_score_nothing_and_the_interval_holds_the_value() -> None:
    (pair,) = NearIdentifiability(ica=QUICK).fit([laplace(seed=0), laplace(seed=1)]).statistical_
    assert pair.affine_r2.value < 0.01
    assert pair.epsilon_rigid.value > 1.2
    assert pair.mcc_ica.value < 0.1
    for name in ("affine_r2", "epsilon_rigid", "epsilon_permutation"):
        estimate = getattr(pair, name)
        assert estimate.interval[0] < estimate.value < estimate.interval[1]


# Computed with scikit-learn alone on these codes: even rows fit, odd rows test, matching on the test rows.
STRUCTURAL = {
    "VAE": (0.4196, 0.4136),
    "betaH": (0.4626, 0.4740),
    "factor": (0.5364, 0.4948),
    "betaB": (0.6613, 0.4207),
}
PAIRS = {
    (0, 1): (0.6167, 0.6360, 0.6259, 0.5840, 0.5879),
    (0, 2): (0.4275, 0.8282, 0.8028, 0.4256, 0.4577),
    (1, 2): (0.3680, 0.8982, 0.8314, 0.3582, 0.3740),
}


def test_golden_values_of_published_vaes(vae_codes, grid_factors) -> None:
    model = NearIdentifiability(ica=IcaAligner(dead_below=0.0, restarts=1), match_on="test", num_bootstrap=2)
    is_even = np.arange(len(grid_factors)) % 2 == 0
    model.fit([vae_codes[name] for name in STRUCTURAL], grid_factors, fit_rows=is_even)
    for agreement, expected in zip(model.structural_, STRUCTURAL.values(), strict=True):
        assert (agreement.mcc.value, agreement.mcc_ica.value) == pytest.approx(expected, abs=6e-5)
    pairs = {(pair.target[-1], pair.source[-1]): pair for pair in model.statistical_}
    for (i, j), expected in PAIRS.items():
        pair = pairs[str(i), str(j)]
        parts = (pair.affine_r2, pair.epsilon_rigid, pair.epsilon_scaled, pair.mcc, pair.mcc_ica)
        assert [part.value for part in parts] == pytest.approx(expected, abs=6e-5)


def test_runs_of_different_length_and_constant_factors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"same number of rows, got \[4000, 3999\]"):
        NearIdentifiability(ica=QUICK).fit([laplace(), laplace()[1:]])
    with pytest.raises(ValueError, match=r"factors \[1\] take one value only"):
        NearIdentifiability(ica=QUICK).fit([laplace()], np.stack([np.arange(4000), np.ones(4000)], axis=1))
