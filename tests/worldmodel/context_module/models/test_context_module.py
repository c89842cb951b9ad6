import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jacrev, vmap

from worldmodel.context_module.models.context_module import ContextModule, ContextModuleConfig, block_widths

SMALL = ContextModuleConfig(num_concepts=4, in_width=3, out_width=2, depth=3, norm="none")
FORMS: list[dict[str, Any]] = [
    {},
    {"norm": "batch"},
    {"mask_observational": False},
    {"causal": "structural"},
    {"causal": "none"},
    {"ancestors": "earlier"},
    {"effects": "shared"},
    {"clamp": False},
]
SETS = [do for size in (1, 2, 3, 4) for do in itertools.combinations(range(4), size)]


def build(seed: int = 0, **changes: Any) -> ContextModule:
    torch.manual_seed(seed)
    return ContextModule(replace(SMALL, **changes), out_dim=7).eval()


def latents(count: int = 5, module: ContextModule | None = None) -> Tensor:
    width = (module or build()).config.latent_dim
    return torch.randn(count, width, generator=torch.Generator().manual_seed(1))


def block_jacobian(module: ContextModule, z: Tensor, do: tuple[int, ...]) -> Tensor:
    """Derivative of each concept's code by each concept's block of z: [b m o m i]."""

    def code(row: Tensor) -> Tensor:
        return module.codes(row[None], do)[0]

    return vmap(jacrev(code))(z).unflatten(-1, (module.config.num_concepts, -1))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_an_intervened_concept_depends_on_its_own_block_alone(form: dict[str, Any]) -> None:
    module = build(**form)
    z = latents()
    for do in SETS:
        jacobian = block_jacobian(module, z, do)
        for concept in do:
            others = [other for other in range(4) if other != concept]
            assert not jacobian[:, concept][:, :, others].any()  # exactly 0
            assert jacobian[:, concept][:, :, concept].any()


@pytest.mark.parametrize("causal", ["reduced", "structural"])
def test_without_intervention_concepts_act_on_each_other(causal: str) -> None:
    jacobian = block_jacobian(build(causal=causal, clamp=False), latents(), ())
    acts = jacobian.abs().sum((0, 2, 4)) > 0  # [to from]
    allowed = torch.ones(4, 4, dtype=torch.bool)
    assert torch.equal(acts, allowed if causal == "reduced" else allowed.tril())


@pytest.mark.parametrize("form", [{"ancestors": "earlier"}, {"causal": "structural"}], ids=str)
def test_what_does_not_descend_from_an_intervention_is_unchanged(form: dict[str, Any]) -> None:
    module = build(**form)
    z = latents()
    seen = module.codes(z)
    for do in SETS:
        changed = module.codes(z, do)
        first = do[0]
        assert torch.equal(changed[:, :first], seen[:, :first])  # concepts before the first one, bit for bit
        assert not torch.equal(changed[:, first], seen[:, first])


def test_an_effect_of_zero_makes_no_descendant() -> None:
    module = build()
    with torch.no_grad():
        for weight in module.causal.weights():
            weight[3, 1] = 0  # concept 1 has no effect on concept 3
    z = latents()
    assert torch.equal(module.codes(z, (1,))[:, 3], module.codes(z)[:, 3])
    assert not torch.equal(module.codes(z, (1,))[:, 2], module.codes(z)[:, 2])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_order_of_interventions_does_not_matter(form: dict[str, Any]) -> None:
    module = build(**form)
    z = latents()
    for do in SETS:
        expected = module(z, do)
        for order in itertools.permutations(do):
            assert torch.equal(module(z, order), expected)
    assert torch.equal(module(z, (2, 2, 0)), module(z, (0, 2)))


def test_together_interventions_do_what_each_does_alone() -> None:
    module = build()
    z = latents()
    both = module.noises(z, (0, 2))
    assert torch.equal(both[:, 0], module.noises(z, (0,))[:, 0])
    assert torch.equal(both[:, 2], module.noises(z, (2,))[:, 2])
    assert torch.equal(both[:, [1, 3]], module.noises(z)[:, [1, 3]])
    masks = module.mask((0,)) | module.mask((2,))
    assert torch.equal(module.causal.effects(masks), module.causal.effects(module.mask((0, 2))))


@pytest.mark.parametrize("form", [{}, {"mask_observational": False}, {"causal": "structural"}], ids=str)
@pytest.mark.parametrize("do", [(), (1,), (0, 3)], ids=str)
def test_gradients_reach_interventional_weights_from_their_contexts_only(
    form: dict[str, Any], do: tuple[int, ...]
) -> None:
    module = build(clamp=False, **form)
    module(latents(), do).square().sum().backward()
    found = {name: weight.grad for name, weight in module.named_parameters()}
    for concept in range(4):
        noise = found["noise.interventional"][concept]
        assert bool(noise.any()) == (concept in do)
        outgoing = found["causal.interventional"][:, concept]
        assert not outgoing.any() if concept not in do else True
        incoming = [found[f"causal.{kind}"][concept] for kind in ("observational", "interventional")]
        if concept in do:
            assert not any(gradient.any() for gradient in incoming)
        if not form:
            assert bool(found["noise.observational"][concept].any()) == (concept not in do)
    if do == (1,) and form.get("causal") != "structural":
        assert found["causal.interventional"][:, 1].any()


@pytest.mark.parametrize("mask", [True, False])
def test_an_untrained_module_can_be_the_identity_in_every_context(mask: bool) -> None:
    config = ContextModuleConfig(
        num_concepts=4,
        in_width=3,
        out_width=3,
        depth=3,
        norm="none",
        start="identity",
        mask_observational=mask,
    )
    module = ContextModule(config, out_dim=12)
    z = latents()
    for do in ((), *SETS):
        assert torch.equal(module(z, do), z)
    narrow = ContextModule(config, out_dim=10)
    assert torch.equal(narrow(z, (1,)), z[:, :10])
    module(z, (1,)).sum().backward()
    trained = [
        name for name, weight in module.named_parameters() if weight.grad is not None and weight.grad.any()
    ]
    assert {"noise.activation.gate", "noise.interventional", "causal.observational"} <= set(trained)


def test_the_unmasked_observational_branch_mixes_blocks() -> None:
    z = latents()
    masked = block_jacobian(build(causal="none"), z, ())
    mixed = block_jacobian(build(causal="none", mask_observational=False), z, ())
    off = ~torch.eye(4, dtype=torch.bool)
    assert not masked.abs().sum((0, 2, 4))[off].any()
    assert (mixed.abs().sum((0, 2, 4))[off] > 0).all()


def test_one_concept_works() -> None:
    module = build(num_concepts=1)
    z = latents(module=module)
    assert module(z).shape == (5, 7)
    assert not torch.equal(module(z), module(z, (0,)))
    assert not list(module.causal.parameters())
    assert module.causal.group_norms().shape == (0,)
    module(z, (0,)).sum().backward()


def test_projection_keeps_causal_weights_in_the_unit_interval_and_changes_no_output() -> None:
    module = build()
    assert any((weight < 0).any() for weight in module.causal.weights())
    z = latents()
    before = [module(z, do) for do in ((), (1,))]
    module.project()
    assert all(((weight >= 0) & (weight <= 1)).all() for weight in module.causal.weights())
    assert all(torch.equal(a, module(z, do)) for a, do in zip(before, ((), (1,)), strict=True))
    free = build(clamp=False)
    start = [weight.clone() for weight in free.causal.weights()]
    free.project()
    assert all(torch.equal(a, b) for a, b in zip(start, free.causal.weights(), strict=True))


def test_a_weight_on_the_border_still_learns() -> None:
    module = build()
    module.project()
    module(latents()).sum().backward()
    weight = module.causal.observational
    assert weight is not None
    assert weight.grad is not None
    on_border = (weight == 0) & module.causal.allowed[:, :, None, None]
    assert on_border.any()
    assert weight.grad[on_border].any()


def test_group_norms_are_those_of_the_blocks_that_may_act() -> None:
    module = build(clamp=False)
    norms = module.causal.group_norms()
    assert norms.shape == (2 * 12,)
    weight = module.causal.observational
    assert weight is not None
    assert norms[0].item() == pytest.approx(weight[0, 1].norm().item(), rel=1e-5)
    with torch.no_grad():
        for one in module.causal.weights():
            one.zero_()
    module.causal.group_norms().sum().backward()
    assert weight.grad is not None
    assert torch.isfinite(weight.grad).all()


def test_widths_go_evenly_from_latent_to_code() -> None:
    assert block_widths(ContextModuleConfig(in_width=32, out_width=8, depth=2)) == (32, 8)
    assert block_widths(ContextModuleConfig(in_width=2, out_width=10, depth=5)) == (2, 4, 6, 8, 10)
    assert block_widths(ContextModuleConfig(in_width=4, out_width=4, depth=1)) == (4,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_concepts": 0}, "num_concepts must lie in 1 .. 1024"),
        ({"depth": 1}, "depth 1 has one width"),
        ({"start": "identity"}, "in_width = out_width and norm=none"),
        ({"start": "identity", "out_width": 32}, "norm=batch"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContextModuleConfig(**settings)


def test_bad_calls_are_refused() -> None:
    module = build()
    with pytest.raises(ValueError, match=r"concepts are 0 to 3, got do=\(1, 4\)"):
        module(latents(), (4, 1))
    with pytest.raises(ValueError, match="takes latents of 12"):
        module(torch.zeros(2, 11))
    identity = ContextModuleConfig(num_concepts=2, in_width=3, out_width=3, norm="none", start="identity")
    with pytest.raises(ValueError, match="at least 7 dimensions"):
        ContextModule(identity, out_dim=7)


def test_directions_say_how_the_decoder_input_moves() -> None:
    module = build(causal="none", depth=1, in_width=2, out_width=2)
    codes = torch.zeros(1, 4, 2)
    moved = codes.clone()
    moved[0, 2, 1] = 1
    change = module.unpool(moved.flatten(1)) - module.unpool(codes.flatten(1))
    torch.testing.assert_close(module.directions()[2, 1], change[0])


@pytest.mark.parametrize("form", [form for form in FORMS if "norm" not in form], ids=str)
def test_each_sample_may_have_a_context_of_its_own(form: dict[str, Any]) -> None:
    module = build(**form)
    sets = [(), *SETS]
    z = latents(len(sets))
    each = torch.tensor([[concept in do for concept in range(4)] for do in sets])
    alone = torch.cat([module(row[None], do) for row, do in zip(z, sets, strict=True)])
    torch.testing.assert_close(module(z, each), alone)


def test_a_table_of_contexts_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected truth values \[samples 4\], got torch.bool \[5, 3\]"):
        build()(latents(), torch.ones(5, 3, dtype=torch.bool))
