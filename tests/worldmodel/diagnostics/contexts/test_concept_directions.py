import numpy as np
import pytest

from worldmodel.diagnostics import concept_directions


def test_orthogonal_concepts_are_as_far_apart_as_can_be() -> None:
    found = concept_directions(np.eye(6).reshape(3, 2, 6))
    assert found.smallest == pytest.approx(1)
    np.testing.assert_allclose(found.angles, 90)
    assert (found.rank, found.num_rows, found.is_independent) == (6, 6, True)


def test_the_angle_between_two_concepts_is_found() -> None:
    angle = np.radians(30)
    rows = np.array([[[1.0, 0, 0]], [[np.cos(angle), np.sin(angle), 0]], [[0, 0, 2.0]]])
    found = concept_directions(rows)
    np.testing.assert_allclose(found.angles, [30, 30, 90])
    assert found.is_independent


def test_a_concept_that_others_can_do_is_dependent() -> None:
    rows = np.array([[[1.0, 0, 0]], [[0, 1.0, 0]], [[1.0, 1.0, 0]]])
    found = concept_directions(rows)
    assert found.smallest == pytest.approx(0, abs=1e-12)
    assert found.angles == pytest.approx([0, 0, 0], abs=1e-5)
    assert (found.rank, found.is_independent) == (2, False)


def test_more_concepts_than_dimensions_are_dependent() -> None:
    assert not concept_directions(np.random.default_rng(0).standard_normal((4, 1, 3))).is_independent


def test_the_covariance_of_a_code_says_which_direction_is_its_main_one() -> None:
    rows = np.eye(4).reshape(2, 2, 4)
    covariance = np.stack([np.diag([1.0, 9.0]), np.diag([4.0, 1.0])])
    found = concept_directions(rows, covariance)
    np.testing.assert_allclose(np.abs(found.main), [[0, 1, 0, 0], [0, 0, 1, 0]])
    still = concept_directions(rows, np.zeros((2, 2, 2)))  # codes that never move
    assert not still.is_independent
    assert still.angles.tolist() == [0, 0]


def test_one_concept_has_the_whole_space() -> None:
    assert concept_directions(np.ones((1, 1, 3))).angles.tolist() == [90]
