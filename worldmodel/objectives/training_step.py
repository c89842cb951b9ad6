"""One training step: L = L_rec + beta L_KL + lambda_adv L_GRL + lambda_MCL L_MCL, and the judge's losses."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from worldmodel.diffusion.flow import add_noise, clean_loss, is_future, velocity_loss
from worldmodel.mcl.config import DIRECTIONAL
from worldmodel.mcl.features import math_attention
from worldmodel.mcl.gradient_flow import flow_report, gradient_flow
from worldmodel.mcl.rows import MclOutput
from worldmodel.models.actions.protocol import ActionEmbedding
from worldmodel.models.attention_mask import AttentionView
from worldmodel.models.dynamics import FdmOutput
from worldmodel.models.idm import embodiment_loss
from worldmodel.models.model import WorldModel
from worldmodel.objectives.contrast import DrivenClips, contrast_actions, read_mechanism
from worldmodel.objectives.forcing import draw_forcing
from worldmodel.objectives.world_model_pictures import ClipEstimate, pixel_error
from worldmodel.types import ClipBatch, Extras, Losses, map_tensors, num_video_frames


@dataclass(frozen=True)
class NoisyClip:
    """A clip as the forward model sees it in training."""

    data: Float[Tensor, "b c f h w"]
    noise: Float[Tensor, "b c f h w"]
    sigma: Float[Tensor, "b f"]
    noisy: Float[Tensor, "b c f h w"]
    missing: Bool[Tensor, "b f"]  # latent frames whose actions are hidden
    num_given: int | Int[Tensor, " b"]  # leading latent frames that are not learned
    view: AttentionView | None  # what latent frames see of each other; none: as the model is

    def __getitem__(self, which: slice | list[int]) -> "NoisyClip":
        """Some of the clips, or some of them more than once."""
        given = self.num_given if isinstance(self.num_given, int) else self.num_given[which]
        view = None if self.view is None else self.view[which]
        data, noise, sigma = self.data[which], self.noise[which], self.sigma[which]
        return NoisyClip(data, noise, sigma, self.noisy[which], self.missing[which], given, view)


@dataclass(frozen=True)
class Terms:
    """Losses with their weights, and what is only watched."""

    weighted: dict[str, tuple[float, Float[Tensor, ""]]]
    metrics: dict[str, Float[Tensor, ""]] = field(default_factory=dict)


def world_model_step(model: WorldModel, batch: ClipBatch, generator: torch.Generator) -> Losses:
    """Losses of one batch in the model's regime; all randomness comes from `generator`."""
    terms = _terms(model, batch, generator)
    total = torch.stack([weight * value for weight, value in terms.weighted.values()]).sum()
    parts = {name: value for name, (_, value) in terms.weighted.items()} | terms.metrics
    return Losses(total, {name: value.detach() for name, value in parts.items()})


def mcl_gradient_flow(model: WorldModel, batch: ClipBatch, generator: torch.Generator) -> str:
    """Which parts of the model the MCL term trains, in words; worth saying once per run."""
    if model.mcl is None:
        raise ValueError("this model has no mcl term")
    groups = {
        "backbone": list(model.fdm.parameters()),
        "action interface": list(model.interface.parameters()),
        "inverse dynamics": [] if model.idm is None else list(model.idm.parameters()),
        "critic, heads": list(model.mcl.parameters()),
    }
    return flow_report(model.mcl.config, gradient_flow(mcl_term(model, batch, generator), groups))


def mcl_term(model: WorldModel, batch: ClipBatch, generator: torch.Generator) -> Float[Tensor, ""]:
    """The MCL loss alone, without its weight."""
    _, loss = _terms(model, batch, generator).weighted["mcl"]
    return loss


def _terms(model: WorldModel, batch: ClipBatch, generator: torch.Generator) -> Terms:
    clip = _noisy_clip(model, batch, generator)
    actions, terms = _action_condition(model, batch, generator)
    if model.mcl is None:
        with torch.no_grad() if model.config.trained in ("compositor", "head") else nullcontext():
            output = _driven(model, batch, actions, clip).output()
        return _with_reconstruction(model, output, clip, terms, batch, generator)
    output, contrast = _contrasted_output(model, batch, actions, clip, generator)
    terms = _with_reconstruction(model, output, clip, terms, batch, generator)
    mcl = {"mcl": (model.config.objective.mcl_weight, contrast.loss)}
    watched = {
        "mcl_accuracy": contrast.accuracy,
        "mcl_chance": contrast.chance,
        "mcl_chance_high": contrast.chance_high,
        "mcl_direct": contrast.accuracy_direct,
        "mcl_generator_share": contrast.generator_share,
        "mcl_gradient_norm": contrast.gradient_norm,
    }
    if model.mcl.config.mode in DIRECTIONAL or not model.mcl.training:
        watched["mcl_generator"] = contrast.accuracy_generator
    return Terms(terms.weighted | mcl, terms.metrics | watched)


def _contrasted_output(
    model: WorldModel,
    batch: ClipBatch,
    actions: Float[Tensor, "b n u"],
    clip: NoisyClip,
    generator: torch.Generator,
) -> tuple[FdmOutput, MclOutput]:
    """The network's answer to all clips, and the contrast of the share that is contrasted."""
    assert model.config.mcl is not None
    count = model.config.mcl.num_clips(batch.batch_size)
    some = slice(count)
    clips = _driven(model, batch[some], actions[some], clip[some])
    with math_attention() if model.config.mcl.needs_math_attention else nullcontext():
        reading = read_mechanism(model, clips)
    if count == batch.batch_size:
        return reading.output, contrast_actions(model, clips, reading, generator)
    # Checkpointed blocks keep memory low by the size of a pass: these are not joined.
    is_joined = torch.is_grad_enabled() and not model.fdm.backbone.is_gradient_checkpointing
    if model.config.mcl.mode != "first_order" or not is_joined:
        rest = slice(count, None)
        others = _driven(model, batch[rest], actions[rest], clip[rest]).output()
        output = FdmOutput(
            torch.cat([reading.output.velocity, others.velocity]),
            torch.cat([reading.output.clean, others.clean]),
        )
        return output, contrast_actions(model, clips, reading, generator)
    # A pass of few clips costs more than its share: all clips and the moved ones go together.
    outputs: list[FdmOutput] = []

    def joint_pass(points: Sequence[Tensor]) -> list[Tensor]:
        first = list(range(batch.batch_size))
        many = _driven(model, batch, actions, clip, first + first[:count] * len(points))
        noisy, driving = zip(*(reading.inputs(point) for point in points), strict=True)
        answer = many.run(torch.cat([clip.noisy, *noisy]), many.embed(torch.cat([actions, *driving])))
        outputs.append(FdmOutput(answer.velocity[: len(first)], answer.clean[: len(first)]))
        return [answer.clean[some], *answer.clean[len(first) :].split(count)]

    contrast = contrast_actions(model, clips, reading, generator, joint_pass)
    return outputs[0], contrast


def _driven(
    model: WorldModel,
    batch: ClipBatch,
    actions: Float[Tensor, "b n u"],
    clip: NoisyClip,
    which: list[int] | None = None,
) -> DrivenClips:
    """Clips and the network between their actions and them; `which` of them, some more than once."""
    text, extras = model.text_context(), extras_of(model, batch)
    if which is not None:
        clip, actions = clip[which], actions[which]
        extras = map_tensors(extras, lambda part: part[which])

    def embed(actions: Tensor) -> ActionEmbedding:
        return model.embed(actions, extras, clip.missing)

    def run(noisy: Tensor, embedding: ActionEmbedding) -> FdmOutput:
        output: FdmOutput = model.fdm(noisy, clip.sigma, embedding, text, view=clip.view)
        return output

    return DrivenClips(batch, clip.noisy, actions, _contrasted(clip), embed, run)


def _with_reconstruction(
    model: WorldModel,
    output: FdmOutput,
    clip: NoisyClip,
    terms: Terms,
    batch: ClipBatch,
    generator: torch.Generator,
) -> Terms:
    weighted = {"reconstruction": (1.0, _reconstruction(model, output, clip).mean())}
    if weight := model.config.objective.pixel_weight:
        is_made = is_future(clip.num_given, clip.sigma)
        estimate = ClipEstimate(output.clean, clip.data, is_made, extras_of(model, batch))
        weighted["pixels"] = (weight, pixel_error(model, estimate, batch, generator))
    return Terms(weighted | terms.weighted, terms.metrics)


def _noisy_clip(model: WorldModel, batch: ClipBatch, generator: torch.Generator) -> NoisyClip:
    config, data = model.config, model.latents_of(batch)
    num_samples, num_frames = data.shape[0], data.shape[2]
    if num_frames <= config.history:
        raise ValueError(
            f"clips need more than the {config.history} latent frames of history, got {num_frames}: "
            f"{batch.sources[0]}, ..."
        )
    forcing = draw_forcing(config, num_samples, num_frames, generator).to(data.device)
    noise = torch.randn(data.shape, generator=generator).to(data)
    hidden = torch.rand(num_samples, generator=generator)
    missing = (hidden < config.objective.action_dropout).to(data.device)[:, None].expand(-1, num_frames)
    noisy = add_noise(data, noise, forcing.sigma)
    return NoisyClip(data, noise, forcing.sigma, noisy, missing, forcing.num_given, forcing.view)


def _reconstruction(model: WorldModel, output: FdmOutput, clip: NoisyClip) -> Float[Tensor, " b"]:
    given = clip.num_given
    if model.config.prediction == "clean":
        return clean_loss(output.clean, clip.data, clip.sigma, num_history=given)
    return velocity_loss(output.velocity, clip.data, clip.noise, num_history=given)


def _contrasted(clip: NoisyClip) -> Bool[Tensor, "b f"]:
    """Generated latent frames with known actions: the rows of the contrast."""
    return is_future(clip.num_given, clip.sigma) & ~clip.missing


def _action_condition(
    model: WorldModel, batch: ClipBatch, generator: torch.Generator
) -> tuple[Float[Tensor, "b n u"], Terms]:
    """What drives the clip, and the losses of what inferred or judged it."""
    if model.config.regime == "no_action":
        return batch.robot_actions[:, :, :0], Terms({})
    if model.config.regime == "lacg":
        return _latent_drive(model, batch, generator)
    robot_actions = batch.robot_actions * batch.action_mask[:, None]
    if model.idm is None:
        return robot_actions, Terms({})
    judged = model.idm.robot_actions(model.idm(_frames_of(batch, "acg with objective.idm_weight > 0")))
    error = _action_error(judged, batch)
    return robot_actions, Terms({"idm_action": (model.config.objective.idm_weight, error)})


def _latent_drive(
    model: WorldModel, batch: ClipBatch, generator: torch.Generator
) -> tuple[Float[Tensor, "b n u"], Terms]:
    assert model.idm is not None
    assert model.controller is not None
    weights, idm = model.config.objective, model.idm
    features = idm(_frames_of(batch, "lacg"))
    posterior = idm.latent_actions(features)
    latent_actions = posterior.sample(generator)
    terms = {"kl": (weights.beta, posterior.kl())}
    metrics = {"kl_bits": 1.442695 * terms["kl"][1]}  # nats -> bits: what z tells of the true future
    if model.embodiment_classifier is not None:
        loss, accuracy = embodiment_loss(model.embodiment_classifier, latent_actions, batch.embodiment)
        terms["embodiment"], metrics["embodiment_accuracy"] = (weights.adversarial_weight, loss), accuracy
    # The judge and the controller read the latent space; they must not shape it.
    judged = idm.robot_actions(features.detach())
    terms["idm_action"] = (weights.idm_weight, _action_error(judged, batch))
    current = num_video_frames(model.config.history) - 1
    robot_actions = (batch.robot_actions * batch.action_mask[:, None])[:, current:]
    controlled = model.controller(robot_actions, features.scene[:, current].detach())
    error = F.mse_loss(controlled, posterior.mean[:, current:].detach())
    terms["controller"] = (weights.controller_weight, error)
    return latent_actions, Terms(terms, metrics)


def extras_of(model: WorldModel, batch: ClipBatch) -> Extras:
    """What the model's action paths read of the clips beside their actions."""
    reader = model.config.reader
    if reader is None:
        return {}
    if missing := set(reader.row_shapes) - set(batch.extras):
        raise ValueError(
            f"the model's action paths need clips with {', '.join(sorted(missing))}, got none: "
            f"{batch.sources[0]}, ..."
        )
    return batch.extras


def _frames_of(batch: ClipBatch, need: str) -> UInt8[Tensor, "b t 3 H W"]:
    if batch.frames is None:
        raise ValueError(f"{need} needs frames beside the latents, got none: {batch.sources[0]}, ...")
    return batch.frames


def _action_error(judged: Float[Tensor, "b n a"], batch: ClipBatch) -> Float[Tensor, ""]:
    """Mean squared error over the action dimensions that each embodiment has."""
    mask = batch.action_mask[:, None].expand_as(judged)  # judged[mask] would make the host wait for a GPU
    return torch.where(mask, judged - batch.robot_actions, 0.0).square().sum() / mask.sum()
