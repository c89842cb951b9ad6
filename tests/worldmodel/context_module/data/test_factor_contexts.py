import numpy as np
import pytest
import torch

from worldmodel.context_module.data.factor_contexts import FactorContexts
from worldmodel.context_module.data.types import training_contexts
from worldmodel.mddiff.data.array_factors import ArrayFactors

SIZES = (4, 1, 3, 5)
INDICES = np.arange(400)


def grid() -> ArrayFactors:
    """Pictures whose first row shows the four factor values."""
    values = np.stack(np.unravel_index(np.arange(np.prod(SIZES)), SIZES), 1)
    pixels = np.zeros((len(values), 4, 4), np.uint8)
    pixels[:, 0] = values
    return ArrayFactors("grid", ("a", "b", "c", "d"), SIZES, pixels)


@pytest.mark.parametrize(("change", "borders"), [("fix", (3, 2, 4)), ("shift", (2, 2, 3))])
def test_interventions_move_their_factor_and_no_other(change: str, borders: tuple[int, ...]) -> None:
    contexts = FactorContexts(grid(), 400, change)  # type: ignore[arg-type]
    assert contexts.concept_names == ("a", "c", "d")  # one value is no concept
    assert contexts.held_out == ((0, 1), (0, 2), (1, 2))
    for do in (*training_contexts(3), *contexts.held_out):
        values = contexts.factors(do, INDICES)
        for concept, border in enumerate(borders):
            assert ((values[:, concept] >= border) == (concept in do)).all()
        seen = contexts.images(do, INDICES)[:, 0, 0].numpy()
        np.testing.assert_array_equal(seen[:, [0, 2, 3]], values)  # picture and factors belong together
    fixed = contexts.factors((2,), INDICES)[:, 2]
    assert len(set(fixed)) == (1 if change == "fix" else 2)


def test_draws_repeat_for_a_split_and_differ_between_splits() -> None:
    first, again, test = (FactorContexts(grid(), 400, "shift", split) for split in ("train", "train", "test"))  # type: ignore[arg-type]
    assert torch.equal(first.images((1,), INDICES), again.images((1,), INDICES))
    assert not torch.equal(first.images((1,), INDICES), test.images((1,), INDICES))


def test_pictures_that_are_no_grid_are_refused() -> None:
    pixels = np.zeros((3, 2, 2), np.uint8)
    loose = ArrayFactors("loose", ("a",), (4,), pixels, np.array([[0], [1], [3]]))
    with pytest.raises(ValueError, match="loose is no full grid"):
        FactorContexts(loose, 10)
    with pytest.raises(ValueError, match="no factor with two values"):
        FactorContexts(ArrayFactors("one", ("a",), (1,), pixels[:1]), 10)
