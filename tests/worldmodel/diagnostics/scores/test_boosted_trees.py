"""The classifier of DCI beside scikit-learn's, which published scores use."""

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier

from worldmodel.diagnostics.scores.boosted_trees import Split, fit_boosted_trees


def mixed_codes(
    num_values: int, *, num_pictures: int = 2500, num_points: int = 3000
) -> tuple[np.ndarray, ...]:
    """Codes that mix three factors and much noise, at points drawn with repetition as DCI draws them."""
    rng = np.random.default_rng(0)
    factors = rng.integers(0, num_values, (num_pictures, 3))
    codes = factors @ rng.normal(size=(3, 5)) + rng.normal(size=(num_pictures, 5))
    drawn = rng.integers(0, num_pictures, num_points)
    return codes[drawn].astype(np.float32), factors[drawn, 0]


@pytest.mark.parametrize("num_values", [2, 4])
def test_is_the_classifier_of_scikit_learn(num_values: int) -> None:
    codes, labels = mixed_codes(num_values)
    ours = fit_boosted_trees(codes[:2000], labels[:2000], num_rounds=20)
    theirs = GradientBoostingClassifier(random_state=0, n_estimators=20).fit(codes[:2000], labels[:2000])
    np.testing.assert_allclose(ours.importance, theirs.feature_importances_, atol=2e-3)
    agree = ours.predict(codes[2000:]) == theirs.predict(codes[2000:])
    assert agree.mean() >= 0.99


def test_first_trees_are_those_of_scikit_learn_to_rounding() -> None:
    codes, labels = mixed_codes(4)
    ours = fit_boosted_trees(codes, labels, num_rounds=1)
    theirs = GradientBoostingClassifier(random_state=0, n_estimators=1).fit(codes, labels)
    np.testing.assert_allclose(ours.importance, theirs.feature_importances_, rtol=1e-12)
    for tree, expected in zip(ours.rounds[0], theirs.estimators_[0], strict=True):
        assert isinstance(tree, Split)
        assert (tree.feature, tree.threshold) == (expected.tree_.feature[0], expected.tree_.threshold[0])


def test_equal_values_are_not_split_and_labels_may_contradict() -> None:
    codes = np.repeat([[0.0, 7.0], [1.0, 7.0]], 4, axis=0)  # the second code is dead
    labels = np.array([4, 4, 4, 9, 9, 9, 9, 4])
    fitted = fit_boosted_trees(codes, labels)
    assert fitted.importance.tolist() == [1.0, 0.0]
    assert fitted.predict(codes).tolist() == [4] * 4 + [9] * 4
    assert fit_boosted_trees(codes[:, 1:], labels).importance.tolist() == [0.0]


def test_the_lot_decides_between_twins_and_the_seed_decides_the_lot() -> None:
    codes, labels = mixed_codes(4)
    twins = np.hstack([codes[:, :1], codes[:, :1]])
    first, again, other = (fit_boosted_trees(twins, labels, num_rounds=20, seed=seed) for seed in (0, 0, 1))
    assert first.importance == pytest.approx([0.5, 0.5], abs=0.15)
    np.testing.assert_array_equal(first.importance, again.importance)
    assert (first.importance != other.importance).any()


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="two classes or more, got 1 in 3 labels"):
        fit_boosted_trees(np.zeros((3, 1)), np.zeros(3, dtype=np.int64))
