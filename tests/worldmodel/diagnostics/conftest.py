import json
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parents[3] / "../shared/data/disentanglement"
GRID_SIZES = (3, 6, 10, 16, 16)


@pytest.fixture(scope="session")
def grid_factors() -> np.ndarray:
    """Factors of the dSprites grid: shape, scale, orientation, x, y; the last one fastest."""
    return np.stack(np.unravel_index(np.arange(np.prod(GRID_SIZES)), GRID_SIZES), axis=1)


@pytest.fixture(scope="session")
def vae_codes() -> dict[str, np.ndarray]:
    """Codes of five published VAEs on that grid, and the rotation of the blind-spot example."""
    path = DATA / "metric_test_vectors/codes_dsprites_grid.npz"
    if not path.exists():
        pytest.skip("the metric test vectors are not here")
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.fixture(scope="session")
def golden() -> dict[str, dict]:
    """Scores that the reference library gives for these codes."""
    path = DATA / "metric_test_vectors/golden_fv_mig.json"
    if not path.exists():
        pytest.skip("the metric test vectors are not here")
    return json.loads(path.read_text())


@pytest.fixture(scope="session")
def small_grid() -> np.ndarray:
    """A full grid of 4 x 3 x 5 x 4 factor values."""
    return np.stack(np.unravel_index(np.arange(240), (4, 3, 5, 4)), axis=1)
