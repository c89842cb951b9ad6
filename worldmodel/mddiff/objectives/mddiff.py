"""One training step of EncDiff and MDDiff: L = L_diffusion + lambda_recon L_recon + lambda_MCL L_MCL.

L_diffusion distance of predicted from added noise, given the image's concept tokens L_recon distance of the
decoder's image G(z, u) from the input, z the quantized clean latent L_MCL mechanistic contrast on G: the
decoder at the clean latent, or the denoiser at the noisy one

The quantizer has a straight-through gradient, so dG/dz is evaluated at the quantized latent.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from worldmodel.mcl.config import DIRECTIONAL
from worldmodel.mcl.features import Generator, math_attention
from worldmodel.mcl.gradient_flow import flow_report, gradient_flow
from worldmodel.mcl.rows import MclOutput
from worldmodel.mddiff.ddim import draw_steps
from worldmodel.mddiff.models.mddiff import MDDiff
from worldmodel.types import Losses


@dataclass(frozen=True)
class MDDiffObjective:
    """Losses, their weights, and which parts of the first stage they train."""

    noise_loss: Literal["l1", "l2"] = "l1"  # distance between predicted and true noise
    reconstruction_weight: float = 0.0  # lambda_recon; 0.1 in stage 2 of the paper, 0 in its code
    mcl_weight: float | None = None  # lambda_MCL, needed with a contrast; published: 1e-3, MPI3D 1e-4
    trained_decoder: Literal["frozen", "condition", "all"] = (
        "frozen"  # trained part of the first stage; frozen in the code
    )
    trained_keys: bool = True  # whether gradients of the contrast reach u, as in the code

    def __post_init__(self) -> None:
        if self.reconstruction_weight < 0 or (self.mcl_weight or 0) < 0:
            raise ValueError(
                f"weights must be >= 0, got reconstruction_weight {self.reconstruction_weight} "
                f"and mcl_weight {self.mcl_weight}"
            )


@dataclass(frozen=True)
class NoisyBatch:
    """The tensors of one batch that the losses need."""

    pixels: Float[Tensor, "b 3 H W"]
    codes: Float[Tensor, "b c h w"]  # quantized clean latents, z of the decoder
    condition: Float[Tensor, "b a"]  # u
    tokens: Float[Tensor, "b k m"]
    noisy: Float[Tensor, "b c h w"]  # z of the denoiser
    noise: Float[Tensor, "b c h w"]
    steps: Int[Tensor, " b"]


def mddiff_step(
    model: MDDiff, images: UInt8[Tensor, "b 3 H W"], generator: torch.Generator, objective: MDDiffObjective
) -> Losses:
    """Losses of one batch; all randomness comes from `generator`."""
    weighted, watched = _terms(model, images, generator, objective)
    total = torch.stack([weight * value for weight, value in weighted.values()]).sum()
    parts = {name: value for name, (_, value) in weighted.items()} | watched
    return Losses(total, {name: value.detach() for name, value in parts.items()})


def mcl_gradient_flow(
    model: MDDiff, images: UInt8[Tensor, "b 3 H W"], generator: torch.Generator, objective: MDDiffObjective
) -> str:
    """Which parts of the model the MCL term trains, as text for the log."""
    if model.contrast is None:
        raise ValueError("this model has no mcl term")
    contrast = model.contrast
    groups = {
        "encoder": list(model.encoder.parameters()),
        "concept tokens": list(model.tokens.parameters()),
        "denoiser": list(model.unet.parameters()),
        "decoder": list(model.first_stage.vq.decoder.parameters()),
        "decoder's condition": list(model.first_stage.condition.parameters()),
        "critic": [p for name, p in contrast.named_parameters() if name.startswith("critic.")],
        "heads": [p for name, p in contrast.named_parameters() if not name.startswith("critic.")],
    }
    _, loss = _terms(model, images, generator, objective)[0]["mcl"]
    return flow_report(contrast.config, gradient_flow(loss, groups))


def _terms(
    model: MDDiff, images: Tensor, generator: torch.Generator, objective: MDDiffObjective
) -> tuple[dict[str, tuple[float, Tensor]], dict[str, Tensor]]:
    """Losses with their weights, and values that are only logged."""
    batch = _noisy_batch(model, images, generator)
    mcl = None if model.contrast is None else model.contrast.config
    with math_attention() if mcl is not None and mcl.needs_math_attention else nullcontext():
        predicted = model.unet(batch.noisy, batch.steps, batch.tokens)
        decoded = (
            model.decode_latents(batch.codes, batch.condition) if objective.reconstruction_weight else None
        )
    distance = F.l1_loss if objective.noise_loss == "l1" else F.mse_loss
    weighted = {"diffusion": (1.0, distance(predicted, batch.noise))}
    if decoded is not None:
        weighted["reconstruction"] = (objective.reconstruction_weight, F.l1_loss(decoded, batch.pixels))
    if model.contrast is None:
        return weighted, {}
    output = _contrast(model, batch, predicted, decoded, generator, objective)
    if objective.mcl_weight is None:
        raise ValueError("the model has a contrast: set mcl_weight, its lambda_MCL")
    weighted["mcl"] = (objective.mcl_weight, output.loss)
    watched = {
        "mcl_accuracy": output.accuracy,
        "mcl_direct": output.accuracy_direct,
        "mcl_generator_share": output.generator_share,
        "mcl_gradient_norm": output.gradient_norm,
    }
    return weighted, watched


def _noisy_batch(model: MDDiff, images: Tensor, generator: torch.Generator) -> NoisyBatch:
    pixels = model.pixels(images)
    latents = model.latents_of(pixels)
    concepts = model.encoder(pixels)
    tokens = model.tokens(concepts)
    steps = draw_steps(len(latents), model.config.noise, generator).to(latents.device)
    noise = torch.randn(latents.shape, generator=generator).to(latents)
    noisy = model.scheduler.add_noise(latents, noise, steps)  # type: ignore[arg-type]
    with torch.no_grad():
        codes = model.codes_of(latents)
    # MCL's gradient features differentiate with respect to these.
    is_needed = model.contrast is not None and model.contrast.config.mode not in DIRECTIONAL
    codes.requires_grad_(is_needed)
    noisy.requires_grad_(is_needed)
    return NoisyBatch(pixels, codes, model.condition(concepts, tokens), tokens, noisy, noise, steps)


def _contrast(
    model: MDDiff,
    batch: NoisyBatch,
    predicted: Tensor,
    decoded: Tensor | None,
    generator: torch.Generator,
    objective: MDDiffObjective,
) -> MclOutput:
    assert model.contrast is not None
    assert model.config.contrast is not None
    generate: Generator
    if model.config.contrast.generator == "decoder":
        generate, z, x_hat = model.decode_latents, batch.codes, decoded
    else:

        def generate(noisy: Tensor, condition: Tensor) -> Tensor:
            noise: Tensor = model.unet(noisy, batch.steps, model.tokens_of_condition(condition))
            return noise

        z, x_hat = batch.noisy, predicted
    # Under no_grad (validation) there is no graph to differentiate, so MCL builds its own.
    x_hat = x_hat if x_hat is not None and x_hat.requires_grad else None
    keys = batch.condition if objective.trained_keys else batch.condition.detach()
    output: MclOutput = model.contrast(generate, z, keys, u_for_g=batch.condition, x_hat=x_hat, rng=generator)
    return output


def set_trained(model: MDDiff, objective: MDDiffObjective) -> None:
    """Choose what trains in the first stage.

    Encoder and codebook stay frozen, so that latents do not change.
    """
    model.first_stage.requires_grad_(False)
    if objective.trained_decoder == "frozen":
        return
    if not objective.reconstruction_weight and model.contrast is None:
        raise ValueError(
            f"trained_decoder: {objective.trained_decoder} needs a loss on pictures: "
            "reconstruction_weight > 0, or a contrast"
        )
    chosen = model.first_stage.condition.parameters()
    if objective.trained_decoder == "all":
        chosen = iter(model.first_stage.decoder_parameters())
    for parameter in chosen:
        parameter.requires_grad_(True)
