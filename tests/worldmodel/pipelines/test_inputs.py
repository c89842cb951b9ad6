"""What the pipeline is given: frames and actions that cannot be meant are refused with a sentence."""

import inspect

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor

from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.tensors import read_frames

ACTIONS = torch.zeros(1, 4, 16)


@pytest.fixture(scope="module")
def pipeline() -> RolloutPipeline:
    return RolloutPipeline(WorldModel.from_pretrained("desk"))


WRONG = {
    "floats of 0..255": (torch.full((1, 1, 3, 64, 64), 200.0), "expected numbers in -0.01 .. 1.01, got 200"),
    "NaN": (torch.full((1, 1, 3, 64, 64), torch.nan), "got nan"),
    "colors last": (torch.rand(1, 1, 64, 64, 3), r"colors first, got \[1, 1, 64, 64, 3\]"),
    "no batch": (torch.rand(1, 3, 64, 64), r"got \[1, 3, 64, 64\]"),
    "whole numbers": (torch.zeros(1, 1, 3, 64, 64, dtype=torch.int64), "got torch.int64"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_frames_are_refused(kind: str, pipeline: RolloutPipeline) -> None:
    frames, message = WRONG[kind]
    calls = {
        "read": lambda: inspect.unwrap(read_frames)(frames, pipeline.model.contract.check),
        "whole": lambda: pipeline(frames, ACTIONS, embodiment="heron"),
        "stream": lambda: pipeline.open(frames, embodiment="heron"),
    }
    for name, call in calls.items():
        # In tests a wrong shape or kind does not even reach the body of an annotated function.
        is_read = name == "read"
        with pytest.raises(
            ValueError if is_read else (ValueError, TypeCheckError), match=message if is_read else None
        ):
            call()


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e308])
def test_impossible_actions_are_refused(number: float, pipeline: RolloutPipeline) -> None:
    actions = ACTIONS.double().clone()
    actions[0, 2, 0] = number
    with pytest.raises(ValueError, match="actions: expected numbers in"):
        pipeline(torch.rand(1, 1, 3, 64, 64), actions, embodiment="heron")
    with pytest.raises(ValueError, match="actions: expected numbers in"):
        pipeline.open(torch.rand(1, 1, 3, 64, 64), embodiment="heron").step(actions)


def hard_edges() -> Tensor:
    board = torch.arange(64).view(64, 1) // 2 + torch.arange(64) // 2
    return (board % 2).float().expand(1, 1, 3, 64, 64)


def test_results_lie_in_0_to_1(pipeline: RolloutPipeline) -> None:
    """Sharpened edges of what moved went beyond."""
    made = pipeline(hard_edges(), torch.full((1, 8, 16), 0.2), embodiment="heron").frames
    assert made.min() >= 0
    assert made.max() <= 1
    session = pipeline.open(hard_edges(), embodiment="heron")
    assert session.step(torch.full((1, 4, 16), 0.2)).max() <= 1
