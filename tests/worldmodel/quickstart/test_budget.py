"""Minutes become steps: the parts add up to the minutes, and a head is left out where it would be useless."""

import pytest

from worldmodel.quickstart.budget import LEAST_HEAD, LEAST_STEPS, Budget, Speeds, share_out

SPEEDS = Speeds(step=0.5, head_step=0.3, rollout=0.05)


def seconds(budget: Budget) -> float:
    speeds = budget.speeds
    training = budget.steps * speeds.step + budget.head_steps * speeds.head_step
    return training + budget.predictions + budget.evaluation


@pytest.mark.parametrize(("minutes", "spent"), [(60, 0), (60, 600), (12, 90)])
def test_all_parts_together_take_the_minutes(minutes: float, spent: float) -> None:
    budget = share_out(minutes, spent, SPEEDS, held_out_clips=48)
    assert seconds(budget) + spent == pytest.approx(60 * minutes, abs=2)


def test_a_head_gets_its_share_of_the_training() -> None:
    # 720 s without 20 + 48 * 30 * 0.05 = 92 s of evaluation; 30 % of the rest at 0.3 + 2 * 0.05 s a step
    budget = share_out(12, 0, SPEEDS, held_out_clips=48)
    assert (budget.evaluation, budget.head_steps, budget.head_clips) == (92, 471, 942)
    assert [name for name, *_ in budget.parts()] == ["base", "predictions", "head", "evaluation"]


def test_too_little_time_for_a_head_is_said() -> None:
    budget = share_out(2, 0, SPEEDS, held_out_clips=48)
    assert budget.head_steps == 0 < LEAST_HEAD
    assert budget.parts()[1][2].startswith("fewer than 100 steps would fit")
    assert seconds(budget) == pytest.approx(120, abs=1)


def test_a_model_that_takes_no_head_gets_all_of_the_training() -> None:
    budget = share_out(60, 0, Speeds(step=0.5), held_out_clips=8)
    assert budget.head_steps == budget.predictions == 0
    assert len(budget.parts()) == 2


def test_no_time_at_all_still_gives_a_few_steps() -> None:
    assert share_out(1, 600, SPEEDS, held_out_clips=48).steps == LEAST_STEPS


def test_evaluation_takes_a_part_of_the_minutes_at_most() -> None:
    assert share_out(10, 0, SPEEDS, held_out_clips=10_000).evaluation == 90
