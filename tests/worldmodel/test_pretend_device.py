"""Where tensors are while a model trains and rolls out: see tests/support/pretend_device.py."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.support.debug_run import ROOT

# Every place where a tensor crosses devices, or where Python waits for a number of the device.
BORDER = {
    "types.py ClipBatch.to",  # a batch of training
    "objectives/training_step.py _noisy_clip",  # noise and hidden actions, drawn on the CPU
    "objectives/forcing.py Forcing.to",  # noise levels, drawn on the CPU
    "models/attention_mask.py AttentionView.to",  # the mask of a jump, which was drawn with them
    "objectives/pictures.py head_loss",  # draws
    "objectives/world_model_pictures.py _draw_made",  # draws
    "objectives/world_model_pictures.py _with_later",  # draws
    "models/idm.py LatentActions.sample",  # noise
    "mcl/features.py shared_direction",  # a direction, drawn on the CPU
    "pipelines/rollout.py RolloutPipeline._read",  # given frames
    "pipelines/rollout.py RolloutPipeline._begin",  # past actions
    "pipelines/rollout.py RolloutPipeline.rollout",  # into the video, on the CPU
    "pipelines/session.py Session.advance",  # actions
    "pipelines/session.py Session.step",  # shown frames, to the CPU
    "pipelines/causal.py _sample",  # noise of a latent frame
    "pipelines/whole_clip.py advance",  # noise of a clip
    "diffusion/euler.py euler_sample",  # noise levels, and new noise of `resample`
    "pipelines/whole_clip.py sample",  # noise levels
    "models/compositor.py renewed",  # waits to know whether a hand has closed
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.support.pretend_device"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def test_training_and_sessions_of_every_model_stay_on_the_device(found: dict[str, Any]) -> None:
    assert len(found["errors"]) == 12
    assert {name: error for name, error in found["errors"].items() if error} == {}


def test_a_constant_planted_on_the_cpu_is_found(found: dict[str, Any]) -> None:
    assert len(found["planted"]) == 19
    missed = {name: error for name, error in found["planted"].items() if "two devices" not in error}
    assert missed == {}


def test_tensors_cross_devices_in_these_places_alone(found: dict[str, Any]) -> None:
    places = {re.sub(r":\d+ ", " ", place).split(".<locals>")[0] for place in found["crossings"]}
    assert places == BORDER
