import copy
from functools import partial

import pytest
import torch

from tests.support.debug_run import CONFIG
from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.diffusion.euler import sigma_schedule
from worldmodel.models.config import ObjectiveConfig, WorldModelConfig
from worldmodel.objectives.distillation import consistency_levels, student_step
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.training.world_model import load_train_config
from worldmodel.types import Actions


def objective(steps=2, substeps=4, **options):
    return ObjectiveConfig(
        student_steps=steps, student_substeps=substeps, idm_weight=0.0, forcing="prefix", **options
    )


@pytest.fixture
def pair(make_world_model, randomize):
    """A teacher with weights that do something, and a student that starts as it."""

    def make(**options):
        teacher = make_world_model(causal=True, **options).eval()
        for part in (teacher.interface, *filter(None, [teacher.small])):
            randomize(part)
        return teacher, copy.deepcopy(teacher)

    return make


def test_levels_are_the_samplers_and_end_with_a_step_of_the_student():
    config = objective(shift=3.0)
    normal = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    base = torch.sigmoid(normal)
    drawn = 3.0 * base / (1 + 2.0 * base)
    level, following, end = consistency_levels(drawn, config)
    teacher, student = sigma_schedule(8, 3.0), sigma_schedule(2, 3.0)
    number = torch.searchsorted(-teacher, -level)
    assert torch.equal(teacher[number], level)
    assert torch.equal(teacher[number + 1], following)
    assert torch.allclose(student[number // 4 + 1], end)
    assert (level > following).all()
    assert (following >= end).all()
    shares = torch.bincount(number.flatten(), minlength=8) / number.numel()
    assert (shares - 1 / 8).abs().max() < 0.02


@pytest.mark.parametrize("prediction", ["clean", "velocity"])
def test_a_student_of_one_substep_is_its_teacher(pair, batch, prediction):
    teacher, student = pair(small=SmallNetConfig(prediction), objective=objective(substeps=1))
    loss = student_step(teacher, student, batch, torch.Generator().manual_seed(0))
    assert float(loss.parts["consistency"]) < 1e-9
    for parameter in student.interface.parameters():
        parameter.data += 0.1
    loss = student_step(teacher, student, batch, torch.Generator().manual_seed(0))
    assert float(loss.parts["consistency"]) > 1e-5


def test_a_student_comes_nearer_to_what_its_teacher_makes_in_many_steps(pair, batch):
    teacher, student = pair(objective=objective(steps=1, substeps=4))
    step = partial(student_step, teacher, student, batch)

    def video(model, num_steps):
        return (
            RolloutPipeline(model)
            .rollout(
                batch.frames[:, :1],
                Actions(batch.robot_actions),
                num_inference_steps=num_steps,
                generator=[torch.Generator().manual_seed(i) for i in range(4)],
            )
            .frames[:, 1:]
        )

    wanted = video(teacher, 4)
    before = (video(student, 1) - wanted).square().mean()
    optimizer = torch.optim.Adam([p for p in student.parameters() if p.requires_grad], lr=2e-3)
    for number in range(60):
        optimizer.zero_grad()
        step(torch.Generator().manual_seed(number)).total.backward()
        optimizer.step()
    after = (video(student, 1) - wanted).square().mean()
    print(f"squared distance to the teacher's video: {after / before:.2f} of what it was")
    assert after < 0.7 * before
    assert all(p.grad is None for p in teacher.parameters())


def test_what_cannot_be_distilled_is_refused():
    with pytest.raises(ValueError, match="distills the video alone"):
        WorldModelConfig(regime="lacg", objective=objective())
    with pytest.raises(ValueError, match=r"distills the video alone.*idm_weight=0"):
        WorldModelConfig(objective=ObjectiveConfig(student_steps=1))
    with pytest.raises(ValueError, match="student_substeps 1 or more"):
        objective(substeps=0)
    words = ["model.objective.student_steps=1", "model.objective.idm_weight=0"]
    with pytest.raises(ValueError, match="name it in start_from"):
        load_train_config(CONFIG, words)
