"""Minutes become steps: the parts add up to the minutes, and a head is left out where it would be useless."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from worldmodel.quickstart import run
from worldmodel.quickstart.budget import (
    LEAST_HEAD,
    LEAST_STEPS,
    Budget,
    Speeds,
    Stopwatch,
    at_rest,
    share_out,
)
from worldmodel.quickstart.choices import Plan
from worldmodel.quickstart.commands import Quickstart
from worldmodel.quickstart.trial import fastest_step

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


@pytest.mark.parametrize(
    ("wall", "cpu", "seconds"),
    [
        (0.3, 0.55, 0.3),  # two threads, each on a core of its own
        (0.5, 0.5, 0.5),
        (2.2, 0.5, 0.5),  # three quarters of it spent waiting for a core
    ],
)
def test_a_step_is_timed_without_waiting(wall: float, cpu: float, seconds: float) -> None:
    assert at_rest(wall, cpu) == seconds


def test_a_stopwatch_stands_still_while_nothing_is_computed() -> None:
    watch = Stopwatch()
    time.sleep(0.2)
    assert watch() < 0.1


def test_the_fastest_step_decides_and_what_it_waited_is_known(tmp_path: Path) -> None:
    steps = [{"kind": "train", "seconds": 2.0, "cpu_seconds": 0.5}, {"kind": "validation"}]
    steps += [{"kind": "train", "seconds": 1.0, "cpu_seconds": 0.4}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    assert fastest_step(tmp_path) == (1.0, 0.4)


def test_a_busy_machine_is_planned_for_as_at_rest_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    budgets = {}
    for waiting in (0.0, 0.75):
        monkeypatch.setattr(run, "encoding_time", lambda *_: 60.0)
        monkeypatch.setattr(run, "try_speeds", lambda *_, waiting=waiting: replace(SPEEDS, waiting=waiting))
        asked = Quickstart("data", tmp_path, 12.0, "desk/own_robot")
        looked = run.Looked(Plan((), (), 8), [], 100, 0)
        budgets[waiting] = run.decide(asked, looked, time.monotonic() - 90, said.append)
    rested = share_out(12, 0.25 * 90, SPEEDS, 16)
    assert budgets[0.75].steps == pytest.approx(rested.steps, abs=1)
    assert budgets[0.75].steps > budgets[0.0].steps  # three quarters of the 90 s were spent waiting
    busy = [line for line in said if line.startswith("busy")]
    assert len(busy) == 1
    assert "a step took 2.00 s, 0.50 s without waiting" in busy[0]
    assert "4.0 times as long" in busy[0]
