import numpy as np
import pytest

from worldmodel.diagnostics import check_alignment


def cars_like_grid() -> np.ndarray:
    """4 x 24 x 183 factor values, as many as Cars3D has images."""
    return np.stack(np.unravel_index(np.arange(17_568), (4, 24, 183)), axis=1)


def test_aligned_codes_pass_and_ceilings_are_known() -> None:
    factors = cars_like_grid()
    ceiling = check_alignment(factors, factors)
    assert ceiling["factor_vae_score"] == 1.0
    assert ceiling["irs"] == 1.0
    # 183 object types do not fit into 20 bins: even perfect codes stay below 1.
    assert ceiling["mig"] == pytest.approx(0.82, abs=0.02)


def test_repeating_each_image_ten_times_is_caught() -> None:
    factors = cars_like_grid()
    received = np.repeat(factors, 10, axis=0)[: len(factors)]
    with pytest.raises(ValueError, match=r"misaligned.*factor_vae_score 0\.5.*mig"):
        check_alignment(received, factors)


@pytest.mark.parametrize("defect", ["shuffled", "shifted", "wrong sizes", "swapped axes"])
def test_other_ways_to_lose_the_order_are_caught(defect: str, small_grid: np.ndarray) -> None:
    order = np.random.default_rng(0).permutation(240)
    received = {
        "shuffled": small_grid[order],
        "shifted": np.roll(small_grid, 1, axis=0),
        "wrong sizes": np.stack(np.unravel_index(np.arange(240), (4, 5, 3, 4)), axis=1),
        "swapped axes": np.stack(np.unravel_index(np.arange(240), (4, 3, 5, 4), order="F"), axis=1),
    }[defect]
    with pytest.raises(ValueError, match="misaligned"):
        check_alignment(received, small_grid)


def test_thorough_adds_the_slow_metrics_and_length_is_checked(small_grid: np.ndarray) -> None:
    factors = np.random.default_rng(0).integers(0, 2, (1500, 3))
    ceiling = check_alignment(factors, factors, thorough=True)
    assert ceiling["dci"] > 0.99
    assert ceiling["infomec"] > 0.98
    with pytest.raises(ValueError, match=r"\(240, 4\) factors, but \(2400, 4\) arrive"):
        check_alignment(np.repeat(small_grid, 10, axis=0), small_grid)
