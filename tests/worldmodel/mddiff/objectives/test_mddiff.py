from dataclasses import replace

import pytest
import torch

from tests.support.tiny_mddiff import some_images, tiny_mddiff
from worldmodel.mcl.config import MclConfig
from worldmodel.mddiff.models.config import ContrastConfig, MDDiffConfig
from worldmodel.mddiff.models.first_stage import DecoderConditionConfig
from worldmodel.mddiff.models.mddiff import MDDiff
from worldmodel.mddiff.objectives.mddiff import (
    MDDiffObjective,
    mcl_gradient_flow,
    mddiff_step,
    set_trained,
)

STAGE_2 = MDDiffObjective(reconstruction_weight=0.1, mcl_weight=0.01, trained_decoder="all")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def reached(model: MDDiff, objective: MDDiffObjective = STAGE_2) -> dict[str, str]:
    """Group -> verdict, from the statement that a run logs."""
    set_trained(model, objective)
    lines = mcl_gradient_flow(model.eval(), some_images(), rng(), objective).splitlines()[1:]
    pairs = (line.strip().split(": ", 1) for line in lines)
    return {group: verdict.split(",")[0].split(" (")[0] for group, verdict in pairs}


def test_an_untrained_denoiser_errs_by_the_noise_itself() -> None:
    model = tiny_mddiff()
    with torch.no_grad():
        model.unet.conv_out.weight.zero_()
        model.unet.conv_out.bias.zero_()
    noise = torch.randn(6, 3, 4, 4, generator=_after_steps())
    for name, expected in (("l1", noise.abs().mean()), ("l2", noise.square().mean())):
        losses = mddiff_step(model, some_images(), rng(), MDDiffObjective(noise_loss=name))  # type: ignore[arg-type]
        torch.testing.assert_close(losses.total.detach(), expected)
        assert set(losses.parts) == {"diffusion"}


def _after_steps() -> torch.Generator:
    generator = rng()
    torch.randint(1000, (6,), generator=generator)
    return generator


def test_stage_1_trains_encoder_tokens_and_denoiser_and_no_first_stage() -> None:
    model, objective = tiny_mddiff(), MDDiffObjective()
    set_trained(model, objective)
    mddiff_step(model, some_images(), rng(), objective).total.backward()
    untouched = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is None}
    assert untouched == {"first_stage"}
    assert all(p.grad.any() for p in model.encoder.layers[-1].parameters() if p.grad is not None)


def test_the_reconstruction_trains_decoder_and_encoder_through_u() -> None:
    objective = replace(STAGE_2, mcl_weight=None)
    model = tiny_mddiff()
    set_trained(model, objective)
    losses = mddiff_step(model, some_images(), rng(), objective)
    expected = losses.parts["diffusion"] + 0.1 * losses.parts["reconstruction"]
    torch.testing.assert_close(losses.total.detach(), expected)
    losses.total.backward()
    trained = {name for name, p in model.first_stage.named_parameters() if p.grad is not None}
    assert trained == {name for name, _ in model.first_stage.named_parameters()} - {
        name
        for name, _ in model.first_stage.named_parameters()
        if name.startswith(("vq.encoder", "vq.quant"))
    }
    set_trained(model, replace(objective, trained_decoder="condition"))
    chosen = {name.split(".")[0] for name, p in model.first_stage.named_parameters() if p.requires_grad}
    assert chosen == {"condition"}
    with pytest.raises(ValueError, match="needs a loss on pictures"):
        set_trained(model, MDDiffObjective(trained_decoder="all"))


YES, NO = "yes", "NO"
ON_DECODER = {"encoder": YES, "concept tokens": NO, "denoiser": NO}


@pytest.mark.parametrize(
    ("mcl", "expected"),
    [
        (MclConfig(mode="exact"), {"decoder": YES, "decoder's condition": YES, "critic": YES, "heads": YES}),
        # As printed in Algorithm 2: only the heads and, through the keys, the encoder.
        (
            MclConfig(mode="detached"),
            {"decoder": NO, "decoder's condition": NO, "critic": NO, "heads": YES},
        ),
        (MclConfig(mode="jvp"), {"decoder": YES, "decoder's condition": YES, "critic": NO, "heads": YES}),
        (
            MclConfig(mode="finite_difference"),
            {"decoder": YES, "decoder's condition": YES, "critic": NO, "heads": YES},
        ),
        (
            MclConfig(mode="hessian_diag", num_probes=1),
            {"decoder": YES, "decoder's condition": YES, "critic": YES, "heads": YES},
        ),
        (
            MclConfig(mode="exact", variant="jacobian_vjp"),
            {"decoder": YES, "decoder's condition": YES, "critic": NO, "heads": YES},
        ),
    ],
)
def test_each_mode_reaches_what_it_says(mcl: MclConfig, expected: dict[str, str]) -> None:
    model = tiny_mddiff(contrast=ContrastConfig(mcl=mcl))
    assert reached(model) == ON_DECODER | expected


def test_on_the_denoiser_the_contrast_reaches_it_and_the_tokens() -> None:
    parts = {"encoder", "concept tokens", "denoiser", "heads"}
    for mcl, more in ((MclConfig(mode="exact"), {"critic"}), (MclConfig(mode="jvp"), set())):
        model = tiny_mddiff(contrast=ContrastConfig(generator="denoiser", critic="mlp", mcl=mcl))
        assert {name for name, verdict in reached(model).items() if verdict == YES} == parts | more


def test_given_keys_reach_the_encoder_through_the_generator_only() -> None:
    given = replace(STAGE_2, trained_keys=False)
    detached = tiny_mddiff(contrast=ContrastConfig(mcl=MclConfig(mode="detached")))
    assert reached(detached, given)["encoder"] == NO
    assert reached(tiny_mddiff(contrast=ContrastConfig()), given)["encoder"] == YES


def test_the_derivative_along_a_direction_agrees_with_finite_differences() -> None:
    """The quantizer would make differences zero or wild; at the quantized latent both are the decoder's."""
    losses = []
    for mcl in (MclConfig(mode="jvp"), MclConfig(mode="finite_difference", step=1e-3)):
        model = tiny_mddiff(contrast=ContrastConfig(mcl=mcl)).eval()
        losses.append(mddiff_step(model, some_images(), rng(), STAGE_2).parts["mcl"])
    torch.testing.assert_close(losses[0], losses[1], atol=2e-3, rtol=2e-3)


def test_the_contrast_with_a_shared_picture_equals_the_one_that_paints_its_own() -> None:
    model = tiny_mddiff(DecoderConditionConfig(what="tokens"), ContrastConfig()).eval()
    shared = mddiff_step(model, some_images(), rng(), STAGE_2).parts
    alone = mddiff_step(model, some_images(), rng(), replace(STAGE_2, reconstruction_weight=0.0)).parts
    torch.testing.assert_close(shared["mcl"], alone["mcl"])
    with torch.no_grad():
        unseen = mddiff_step(model, some_images(), rng(), STAGE_2).parts
    torch.testing.assert_close(unseen["mcl"], shared["mcl"])


def test_lambda_is_given_and_not_negative() -> None:
    with pytest.raises(ValueError, match="set mcl_weight"):
        mddiff_step(
            tiny_mddiff(contrast=ContrastConfig()), some_images(), rng(), replace(STAGE_2, mcl_weight=None)
        )
    with pytest.raises(ValueError, match="weights must be >= 0"):
        MDDiffObjective(mcl_weight=-1.0)


def test_one_training_step_of_the_paper_model_on_a_cpu() -> None:
    torch.manual_seed(0)
    model = MDDiff(MDDiffConfig(contrast=ContrastConfig()))
    objective = replace(STAGE_2, mcl_weight=1e-3)
    set_trained(model, objective)
    images = some_images(3, 64)
    model.set_latent_scale(images)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2.56e-5)
    before = model.unet.conv_out.bias.detach().clone()
    losses = mddiff_step(model, images, rng(), objective)
    losses.total.backward()
    optimizer.step()
    assert torch.isfinite(losses.total)
    assert losses.parts["mcl"] < 3 * torch.tensor(3.0).log()
    assert not torch.equal(model.unet.conv_out.bias, before)
    assert model.contrast is not None
    trained = [p for p in model.contrast.parameters() if p.requires_grad]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trained)
