"""Distilling a trained model into one that samples in few steps: consistency within each of its steps.

    sigma     1 = s_0 ......... s ... r ......... s_1 ......... 0       two steps of the student: to s_1, to 0

The teacher takes a small step from s to r. The student at s must then end where the student at r ends, at the
next level e of its own schedule. By induction from r = e, a step of the student goes where the teacher goes
in `student_substeps` steps:

    x_r = x_s + (r - s) teacher(x_s)
    end = x_r + (e - r) student(x_r), held fixed
    the student's velocity at x_s is to be (end - x_s) / (e - s)

Levels are those of the sampler, which needs no change. Frames have levels of their own where the objective's
`forcing` says so; given frames stay as they are.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from worldmodel.diffusion.euler import sigma_schedule
from worldmodel.diffusion.flow import add_noise, clean_from_velocity, clean_loss, is_future, velocity_loss
from worldmodel.models.attention_mask import AttentionView
from worldmodel.models.config import ObjectiveConfig
from worldmodel.models.dynamics import FdmOutput
from worldmodel.models.model import WorldModel
from worldmodel.objectives.forcing import draw_forcing
from worldmodel.objectives.training_step import extras_of
from worldmodel.types import ClipBatch, Losses


def student_step(
    teacher: WorldModel, model: WorldModel, batch: ClipBatch, generator: torch.Generator
) -> Losses:
    """Loss of one batch of a student; the teacher is frozen and of the same kind."""
    config, data = model.config, model.latents_of(batch)
    forcing = draw_forcing(config, data.shape[0], data.shape[2], generator).to(data.device)
    level, following, end = consistency_levels(forcing.sigma, config.objective)
    future = is_future(forcing.num_given, forcing.sigma)
    level, following, end = (torch.where(future, x, forcing.sigma) for x in (level, following, end))
    noise = torch.randn(data.shape, generator=generator).to(data)
    noisy = add_noise(data, noise, level)
    with torch.no_grad():
        moved = _ahead(noisy, _ask(teacher, batch, noisy, level, forcing.view).velocity, following - level)
        velocity = _ask(model, batch, moved, following, forcing.view).velocity
        final = _ahead(moved, velocity, end - following)
        target = (final - noisy) / _per_frame(torch.where(future, end - level, -1.0))
    output = _ask(model, batch, noisy, level, forcing.view)
    if config.prediction == "clean":
        wanted = clean_from_velocity(noisy, target, level)
        loss = clean_loss(output.clean, wanted, level, num_history=forcing.num_given).mean()
    else:
        loss = velocity_loss(
            output.velocity, torch.zeros_like(target), target, num_history=forcing.num_given
        ).mean()
    return Losses(loss, {"consistency": loss.detach()})


def consistency_levels(
    sigma: Float[Tensor, "b f"], objective: ObjectiveConfig
) -> tuple[Float[Tensor, "b f"], Float[Tensor, "b f"], Float[Tensor, "b f"]]:
    """Each drawn noise level moved to the teacher's schedule, with the next one and the student's next one.

    Drawn levels are a shifted logit-normal; by its distribution function they become uniform over the
    schedule, and frames that shared a level still do.
    """
    substeps = objective.student_substeps
    schedule = sigma_schedule(objective.student_steps * substeps, objective.shift).to(sigma)
    base = sigma / (objective.shift - (objective.shift - 1) * sigma)
    share = torch.special.ndtr(torch.special.logit(base, eps=1e-6))
    index: Int[Tensor, "b f"] = (share * (len(schedule) - 1)).long().clamp(max=len(schedule) - 2)
    end = (index // substeps + 1) * substeps
    return schedule[index], schedule[index + 1], schedule[end]


def _ask(
    model: WorldModel,
    batch: ClipBatch,
    noisy: Float[Tensor, "b c f h w"],
    sigma: Float[Tensor, "b f"],
    view: AttentionView | None,
) -> FdmOutput:
    actions = batch.robot_actions * batch.action_mask[:, None]
    if model.config.regime == "no_action":
        actions = actions[:, :, :0]
    embedding = model.embed(actions, extras_of(model, batch))
    output: FdmOutput = model.fdm(noisy, sigma, embedding, model.text_context(), view=view)
    return output


def _ahead(
    noisy: Float[Tensor, "b c f h w"], velocity: Float[Tensor, "b c f h w"], change: Float[Tensor, "b f"]
) -> Float[Tensor, "b c f h w"]:
    return noisy + _per_frame(change) * velocity


def _per_frame(x: Float[Tensor, "b f"]) -> Float[Tensor, "b 1 f 1 1"]:
    return x[:, None, :, None, None]
