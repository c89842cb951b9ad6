import pytest
import torch

from tests.support.tiny_contexts import tiny_context_model
from tests.support.tiny_mddiff import some_images
from worldmodel.context_module.data.types import ContextBatch
from worldmodel.context_module.objective import ContextObjective, context_step, elbo
from worldmodel.md_vae.gaussian import standard_kl


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def step(objective: ContextObjective, do: tuple[int, ...] = (1,), **settings: object) -> dict[str, float]:
    model = tiny_context_model(**settings)  # type: ignore[arg-type]
    losses = context_step(model, ContextBatch(some_images(), do), rng(), objective, 1000)
    return {"total": losses.total.item(), **{name: part.item() for name, part in losses.parts.items()}}


def test_the_bound_is_likelihood_plus_divergence_under_the_intervention() -> None:
    model = tiny_context_model().eval()
    images = some_images()
    bound = elbo(model, images, (1,), rng())
    pixels = model.host.pixels(images)
    posterior = model.posterior(pixels)
    z = posterior.mean + posterior.log_std.exp() * torch.randn(posterior.mean.shape, generator=rng())
    torch.testing.assert_close(bound.nll, model.host.nll(pixels, model.decode(z, (1,))))
    torch.testing.assert_close(bound.kl, standard_kl(posterior))
    assert not torch.equal(bound.nll, elbo(model, images, (0,), rng()).nll)


def test_terms_are_weighted_as_told() -> None:
    plain = step(ContextObjective())
    assert plain["total"] == pytest.approx(plain["nll"] + plain["kl"], rel=1e-6)
    halved = step(ContextObjective(beta=0.5))
    assert halved["total"] == pytest.approx(plain["nll"] + 0.5 * plain["kl"], rel=1e-6)
    sparse = step(ContextObjective(group_sparsity=3.0))
    assert sparse["total"] == pytest.approx(plain["total"] + 3 * sparse["causal_size"], rel=1e-5)
    assert step(ContextObjective(l2=2.0))["total"] > plain["total"]
    apart = step(ContextObjective(total_correlation=2.0))
    assert apart["total"] == pytest.approx(plain["total"] + 2 * apart["total_correlation"], rel=1e-5)
    with pytest.raises(ValueError, match="weights must be >= 0"):
        ContextObjective(beta=-1.0)


def test_a_base_model_has_no_causal_blocks_to_shrink() -> None:
    assert "causal_size" not in step(ContextObjective(group_sparsity=1.0), variant="base")


def test_a_step_first_puts_causal_weights_back_into_their_interval() -> None:
    model = tiny_context_model()
    weights = model.module.causal.weights()  # type: ignore[union-attr]
    assert any((weight < 0).any() for weight in weights)
    context_step(model, ContextBatch(some_images(), ()), rng(), ContextObjective(), 10)
    assert all((weight >= 0).all() for weight in weights)


def test_shrinking_groups_switches_whole_effects_off() -> None:
    model = tiny_context_model()
    causal = model.module.causal  # type: ignore[union-attr]
    model.project()
    before = causal.group_norms().sum().item()
    optimizer = torch.optim.SGD(causal.weights(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        causal.group_norms().sum().backward()
        optimizer.step()
        model.project()
    assert causal.group_norms().sum().item() < 0.1 * before
    batch = ContextBatch(some_images(), ())
    assert torch.isfinite(context_step(model, batch, rng(), ContextObjective(group_sparsity=1.0), 10).total)
