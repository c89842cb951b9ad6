import math

import pytest
import torch

from worldmodel.evaluation.metrics.actions import Carried, action_error, carried_object, point_error


def test_action_error_counts_the_robots_own_dimensions_only():
    commanded = torch.zeros(2, 3)
    recovered = torch.tensor([[0.3, 0.4, 9.0], [0.0, 0.0, -9.0]])
    error = action_error(recovered, commanded, torch.tensor([True, True, False]))
    assert error.tolist() == pytest.approx([(0.25 / 2) ** 0.5, 0.0])


def test_point_error_is_a_distance_where_the_truth_shows_the_point():
    truth = torch.zeros(1, 2, 2)
    found = torch.tensor([[[3.0, 4.0], [1.0, 1.0]]])
    error = point_error(found, truth, torch.tensor([[True, False]]))
    assert error[0, 0].item() == 5
    assert math.isnan(error[0, 1])


@pytest.mark.parametrize(
    ("end", "found_end", "is_found", "width", "expected"),
    [
        (10.0, 12.0, True, 64, Carried(True, True, 2.0)),
        (10.0, 14.0, True, 64, Carried(True, False, 4.0)),
        (10.0, 14.0, True, 128, Carried(True, True, 2.0)),  # 4 pixels of 128 are 2 of 64
        (10.0, 10.0, False, 64, Carried(True, False, None)),
        (2.0, 2.0, True, 64, Carried(False, True, 0.0)),
    ],
)
def test_carried_object(end, found_end, is_found, width, expected):
    truth = torch.tensor([[0.0, 0.0], [end, 0.0]])
    found = torch.tensor([[0.0, 0.0], [found_end, 0.0]])
    visible = torch.tensor([True, True])
    assert carried_object(found, truth, torch.tensor([True, is_found]), visible, width) == expected


def test_an_object_out_of_sight_is_not_judged():
    points, seen = torch.zeros(2, 2), torch.tensor([True, False])
    assert carried_object(points, points, torch.tensor([True, True]), seen, 64) is None
