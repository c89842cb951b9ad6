import dataclasses
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldmodel.mcl.config import ActionMclConfig, MclConfig
from worldmodel.mcl.contrast import MechanisticContrast
from worldmodel.mcl.critics import LatentVideoCritic, ProjectionHead, VectorCritic
from worldmodel.mcl.gradient_flow import flow_report, gradient_flow
from worldmodel.mcl.info_nce import contrast_keys
from worldmodel.mcl.rows import MclOutput, clip_rows, unit_rows

LATENT, OUTPUT, CONDITION = 3, 5, 2


class Decoder(nn.Module):
    """A smooth conditional generator on vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LATENT + CONDITION, 16), nn.Tanh(), nn.Linear(16, OUTPUT))

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        return self.net(torch.cat([z, u], dim=-1))


def vector_mcl(config: MclConfig) -> MechanisticContrast:
    return MechanisticContrast(
        config,
        VectorCritic(LATENT, OUTPUT, CONDITION, hidden_dim=32),
        ProjectionHead(config.feature_dim(LATENT, OUTPUT), 16),
        ProjectionHead(CONDITION, 16),
    )


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


REACHED = {
    ("infonce", "exact"): {"generator", "critic", "gradient_head", "condition_head", "condition"},
    ("infonce", "hessian_diag"): {"generator", "critic", "gradient_head", "condition_head", "condition"},
    ("infonce", "detached"): {"gradient_head", "condition_head", "condition"},
    ("infonce", "jvp"): {"generator", "gradient_head", "condition_head", "condition"},
    ("infonce", "finite_difference"): {"generator", "gradient_head", "condition_head", "condition"},
    ("jacobian_vjp", "exact"): {"generator", "gradient_head", "condition_head", "condition"},
    ("jacobian_vjp", "detached"): {"gradient_head", "condition_head", "condition"},
    ("nce", "exact"): {"generator", "critic", "condition"},
    ("fisher", "exact"): {"generator", "critic", "condition"},
    ("denoising", "exact"): {"generator", "critic", "condition"},
}


@pytest.mark.parametrize(("variant", "mode"), list(REACHED))
@pytest.mark.parametrize("through_latent", [False, True])
def test_gradient_flowes_exactly_what_the_mode_promises(
    variant: str, mode: str, through_latent: bool
) -> None:
    torch.manual_seed(0)
    config = MclConfig(mode=mode, variant=variant, through_latent=through_latent)
    mcl, decoder = vector_mcl(config), Decoder()
    encoder_weight = torch.randn(LATENT, LATENT, requires_grad=True)
    z = torch.randn(12, LATENT) @ encoder_weight
    u = torch.randn(12, CONDITION, requires_grad=True)
    output = mcl(decoder, z, u, rng=rng())
    groups = {
        "generator": decoder.parameters(),
        "critic": mcl.critic.parameters(),
        "gradient_head": mcl.gradient_head.parameters(),
        "condition_head": mcl.condition_head.parameters(),
        "condition": [u],
        "encoder": [encoder_weight],
    }
    reach = gradient_flow(output.loss, groups)
    encoder = {"encoder"} if through_latent and mode != "detached" else set()
    assert {name for name, group in reach.items() if group.is_reached} == REACHED[variant, mode] | encoder
    statement = flow_report(config, reach)
    assert f"({variant}, {mode})" in statement
    assert ("encoder: yes" in statement) == bool(encoder)


class GaussianCritic:
    """log p(x | z) + log p(z) for x ~ N(z, s2 I): the derivative through a linear generator is known."""

    def __init__(self, target: Tensor, s2: float) -> None:
        self.target, self.s2 = target, s2

    def __call__(self, x_hat: Tensor, z: Tensor, u: Tensor) -> Tensor:
        return -(x_hat - self.target).square().sum(-1) / (2 * self.s2) - z.square().sum(-1) / 2

    def rows(self, tensor: Tensor) -> Tensor:
        return tensor

    def condition_rows(self, u: Tensor) -> Tensor:
        return u


class Record(nn.Module):
    """A head that keeps what it was given."""

    def forward(self, rows: Tensor) -> Tensor:
        self.seen = rows
        return F.normalize(rows, dim=-1)


def linear_gaussian(mode: str, **options):
    torch.manual_seed(2)
    mechanisms = torch.randn(4, OUTPUT, LATENT)
    labels = torch.arange(12) % 4
    u = F.one_hot(labels, 4).float()
    z, target = torch.randn(12, LATENT), torch.randn(12, OUTPUT)

    def generator(z: Tensor, u: Tensor) -> Tensor:
        return torch.einsum("nk,kxd,nd->nx", u, mechanisms, z)

    head, config = Record(), MclConfig(mode=mode, clip_norm=0.0, **options)
    width = config.feature_dim(LATENT, OUTPUT)
    mcl = MechanisticContrast(config, GaussianCritic(target, 0.25), head, ProjectionHead(4, width))
    return generator, mcl, head, mechanisms[labels], z, u, target


@pytest.mark.parametrize("mode", ["exact", "detached"])
def test_mechanism_gradient_of_a_linear_gaussian_host_is_the_closed_form(mode: str) -> None:
    generator, mcl, head, a, z, u, target = linear_gaussian(mode)
    mcl(generator, z, u)
    residual = torch.einsum("nxd,nd->nx", a, z) - target
    expected = -torch.einsum("nxd,nx->nd", a, residual) / 0.25 - z
    torch.testing.assert_close(head.seen, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_probes", [0, 1000])
def test_hessian_diagonal_of_a_linear_gaussian_host_is_the_closed_form(num_probes: int) -> None:
    generator, mcl, head, a, z, u, _ = linear_gaussian("hessian_diag", num_probes=num_probes)
    mcl(generator, z, u, rng=rng())
    expected = -a.square().sum(1) / 0.25 - 1
    error = (head.seen[:, LATENT:] - expected).abs() / expected.abs()
    assert error.max() < (1e-4 if num_probes == 0 else 0.3)


def test_jvp_is_the_jacobian_times_one_direction_for_all_rows() -> None:
    torch.manual_seed(3)
    config = MclConfig(mode="jvp", clip_norm=0.0)
    mcl, decoder = vector_mcl(config), Decoder()
    mcl.gradient_head = Record()
    mcl.condition_head = nn.Linear(CONDITION, OUTPUT)
    z, u = torch.randn(6, LATENT), torch.randn(6, CONDITION)
    mcl(decoder, z, u, rng=rng(7))
    columns = []
    for column in torch.eye(LATENT):
        leaf = torch.zeros(6, 1, requires_grad=True)
        x = decoder(z + leaf * column, u)
        columns.append(
            torch.stack(
                [torch.autograd.grad(x[:, i].sum(), leaf, retain_graph=True)[0] for i in range(OUTPUT)], 1
            )
        )
    jacobian = torch.cat(columns, dim=2)
    direction = torch.linalg.lstsq(jacobian.flatten(0, 1), mcl.gradient_head.seen.flatten()).solution
    assert direction.norm().item() == pytest.approx(1, abs=1e-4)
    torch.testing.assert_close(mcl.gradient_head.seen, jacobian @ direction, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["exact", "detached"])
def test_jacobian_vjp_is_one_direction_of_the_output_times_the_jacobian(mode: str) -> None:
    generator, mcl, head, a, z, u, _ = linear_gaussian(mode, variant="jacobian_vjp")
    mcl(generator, z, u, rng=rng(3))
    # Features v^T A(u) of 4 mechanisms, 12 numbers, from 5 unknowns: v is found, and is of unit length.
    rows = a.transpose(1, 2).flatten(0, 1)
    direction = torch.linalg.lstsq(rows, head.seen.flatten().unsqueeze(1)).solution.squeeze(1)
    assert direction.norm().item() == pytest.approx(1, abs=1e-4)
    torch.testing.assert_close(head.seen, torch.einsum("x,nxd->nd", direction, a), rtol=1e-4, atol=1e-5)


def test_nce_pairs_rows_with_other_conditions_only() -> None:
    class FirstEntry(GaussianCritic):
        def __call__(self, x_hat: Tensor, z: Tensor, u: Tensor) -> Tensor:
            return u[..., 0] + 0 * z.sum(-1)

    z = torch.zeros(4, 1)
    mcl = MechanisticContrast(MclConfig(mode="exact", variant="nce"), FirstEntry(z, 1.0), Record(), Record())

    def loss(values: list[float], mask: list[bool] | None = None) -> float:
        u = torch.tensor(values).unsqueeze(1)
        valid = None if mask is None else torch.tensor(mask)
        return mcl(lambda z, u: z, z[: len(u)], u, mask=valid, rng=rng()).loss.item()

    def softplus(value: float) -> float:
        return math.log1p(math.exp(value))

    # Two rows: each is scored with its own condition and with the other's.
    expected = sum(softplus(-v) + softplus(v) for v in (2.0, -1.0)) / 2
    assert loss([2.0, -1.0]) == pytest.approx(expected, rel=1e-5)
    assert loss([2.0, 2.0]) == pytest.approx(softplus(-2.0), rel=1e-5)  # equal: no shuffled pair is left
    assert loss([2.0, -1.0], [True, False]) == pytest.approx(softplus(-2.0), rel=1e-5)


def test_finite_difference_tends_to_the_jvp_as_the_step_shrinks() -> None:
    torch.manual_seed(4)
    decoder = Decoder().double()
    z, u = torch.randn(8, LATENT).double(), torch.randn(8, CONDITION).double()
    seen = {}
    for step in (None, 1e-1, 1e-2, 1e-3):
        mode = "jvp" if step is None else "finite_difference"
        mcl = vector_mcl(MclConfig(mode=mode, step=step or 1.0, clip_norm=0.0)).double()
        mcl.gradient_head, mcl.condition_head = Record(), nn.Linear(CONDITION, OUTPUT).double()
        mcl(decoder, z, u, rng=rng(5))
        seen[step] = mcl.gradient_head.seen
    errors = [(seen[step] - seen[None]).norm() / seen[None].norm() for step in (1e-1, 1e-2, 1e-3)]
    assert errors[0] < 0.2
    for coarse, fine in itertools.pairwise(errors):
        assert 8 < coarse / fine < 12  # first order: ten times the step, ten times the error


def test_exact_gradient_equals_a_numeric_one() -> None:
    torch.manual_seed(5)
    mcl, decoder = vector_mcl(MclConfig(mode="exact")).double(), Decoder().double()
    z, u = torch.randn(6, LATENT).double(), torch.randn(6, CONDITION).double()
    weight = decoder.net[0].weight
    (analytic,) = torch.autograd.grad(mcl(decoder, z, u).loss, weight)
    nudge = torch.randn_like(weight)
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(sign * 1e-5 * nudge)
            losses.append(mcl(decoder, z, u).loss)
            weight.sub_(sign * 1e-5 * nudge)
    assert ((losses[0] - losses[1]) / 2e-5).item() == pytest.approx((analytic * nudge).sum().item(), rel=1e-5)


@pytest.mark.parametrize("mode", ["exact", "detached", "finite_difference"])
def test_the_hosts_own_forward_gives_the_same_loss(mode: str) -> None:
    torch.manual_seed(6)
    mcl, decoder = vector_mcl(MclConfig(mode=mode)), Decoder()
    z, u = torch.randn(6, LATENT, requires_grad=True), torch.randn(6, CONDITION)
    x_hat = decoder(z, u)
    given, own = mcl(decoder, z, u, x_hat=x_hat, rng=rng()), mcl(decoder, z, u, rng=rng())
    torch.testing.assert_close(given.loss, own.loss)
    (given.loss + x_hat.sum()).backward()  # the host's graph must still be there
    if mode != "finite_difference":
        with pytest.raises(ValueError, match="require grad"):
            mcl(decoder, z.detach(), u, x_hat=x_hat)


@pytest.mark.parametrize("mode", ["exact", "finite_difference"])
def test_an_encoder_is_never_trained_by_accident(mode: str) -> None:
    torch.manual_seed(6)
    decoder, encoder = Decoder(), nn.Linear(4, LATENT)
    z, u = encoder(torch.randn(6, 4)), torch.randn(6, CONDITION)
    with pytest.raises(ValueError, match="set through_latent"):
        vector_mcl(MclConfig(mode=mode))(decoder, z, u, x_hat=decoder(z, u), rng=rng())
    wanted = vector_mcl(MclConfig(mode=mode, through_latent=True))
    loss = wanted(decoder, z, u, x_hat=decoder(z, u), rng=rng()).loss
    assert torch.autograd.grad(loss, encoder.weight)[0].abs().max() > 0


class VideoGenerator(nn.Module):
    """Frames attend to each other and are modulated by their own condition."""

    def __init__(self, channels: int, condition_dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(channels, 3 * channels)
        self.modulation = nn.Linear(condition_dim, channels)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        tokens = z.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).unsqueeze(1).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).unflatten(2, z.shape[2:])
        return z - mixed * (1 + self.modulation(u).transpose(1, 2)[..., None, None])


@pytest.mark.parametrize("mode", ["exact", "detached", "jvp", "finite_difference", "hessian_diag"])
def test_latent_video_host_with_history_frames_masked(mode: str) -> None:
    torch.manual_seed(7)
    config = MclConfig(mode=mode, tolerance=0.05, num_probes=1)
    dims = config.feature_dim(4 * 8 * 8, 4 * 8 * 8)
    mcl = MechanisticContrast(
        config, LatentVideoCritic(4, 6), ProjectionHead(dims, layer_norm=True), ProjectionHead(6)
    )
    generator = VideoGenerator(4, 6)
    z, u = torch.randn(3, 4, 3, 8, 8), torch.rand(3, 3, 6) * 2 - 1
    mask = torch.tensor([False, True, True]).expand(3, 3)
    output = mcl(generator, z, u, mask=mask, rng=rng())
    output.loss.backward()
    assert 0 < output.loss.item() < 3 * math.log(6)
    reached = generator.modulation.weight.grad is not None
    assert reached == (mode != "detached")
    silent = u.clone()
    silent[:, 0] = 5.0  # only the key changes: the generator still sees u
    same = mcl(generator, z, silent, u_for_g=u, mask=mask, rng=rng())
    torch.testing.assert_close(same.loss, output.loss)


def test_key_and_generator_condition_can_differ() -> None:
    torch.manual_seed(8)
    mcl, decoder = vector_mcl(MclConfig(mode="exact")), Decoder()
    mcl.condition_head = ProjectionHead(9, 16)
    z, u, key = torch.randn(6, LATENT), torch.randn(6, CONDITION), torch.randn(6, 9, requires_grad=True)
    output = mcl(decoder, z, key, u_for_g=u)
    (gradient,) = torch.autograd.grad(output.loss, key)
    assert gradient.abs().max() > 0


def test_training_the_exact_mode_teaches_a_generator_to_tell_conditions_apart() -> None:
    torch.manual_seed(9)
    alphabet = torch.randn(4, CONDITION)
    mcl, decoder = vector_mcl(MclConfig(mode="exact", negatives="multi_positive")), Decoder()
    for parameter in (*mcl.critic.parameters(), *mcl.gradient_head.parameters()):
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam([*decoder.parameters(), *mcl.condition_head.parameters()], lr=1e-2)
    accuracy = []
    for step in range(250):
        u = alphabet[torch.randint(0, 4, (64,), generator=rng(step))]
        output = mcl(decoder, torch.randn(64, LATENT, generator=rng(step + 1000)), u)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        accuracy.append(output.accuracy.item())
    assert sum(accuracy[:5]) / 5 < 0.6
    assert sum(accuracy[-5:]) / 5 > 0.85


def test_score_matching_variants_recover_the_gaussian_score() -> None:
    # c = -a z^2 / 2 has score -a z; for z ~ N(0, 1) the losses are least at the precision of z (plus noise).
    z = torch.randn(20000, 1, generator=rng(1))
    for variant, best in (("fisher", 1.0), ("denoising", 1 / 1.01)):
        losses = {}
        for precision in (0.5 * best, best, 1.5 * best):

            class Quadratic(GaussianCritic):
                def __call__(self, x_hat: Tensor, z: Tensor, u: Tensor, a: float = precision) -> Tensor:
                    return -a * z.square().sum(-1) / 2

            mcl = MechanisticContrast(
                MclConfig(mode="exact", variant=variant), Quadratic(z, 1.0), Record(), Record()
            )
            losses[precision] = mcl(lambda z, u: z, z, torch.zeros(20000, 1), rng=rng()).loss.item()
        assert min(losses, key=losses.__getitem__) == best
    assert losses[best] == pytest.approx(0.5 * (1 - 0.01 * best), rel=0.02)


def test_rows_are_clipped_one_by_one() -> None:
    rows = torch.tensor([[30.0, 40.0], [3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    clipped, norm = clip_rows(rows, 10.0)
    torch.testing.assert_close(clipped, torch.tensor([[6.0, 8.0], [3.0, 4.0], [0.0, 0.0]]))
    torch.testing.assert_close(norm, torch.tensor([50.0, 5.0, 0.0]))
    clipped.sum().backward()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


def test_metrics_and_no_grad_evaluation() -> None:
    mcl, decoder = vector_mcl(MclConfig(mode="exact", clip_norm=1e-6)), Decoder()
    with torch.no_grad():
        output = mcl(decoder, torch.randn(5, LATENT), torch.randn(5, CONDITION))
    assert all(getattr(output, field.name).ndim == 0 for field in dataclasses.fields(MclOutput))
    assert output.clipped == 1


def test_heads_can_have_their_own_learning_rate() -> None:
    assert vector_mcl(MclConfig(head_lr=3e-4)).optimizer_group(1e-3)["lr"] == 3e-4
    group = vector_mcl(MclConfig(mode="exact")).optimizer_group(1e-3)
    assert group["lr"] == 1e-3
    assert len(group["params"]) == 14


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "jvp", "variant": "fisher"}, "fisher works with mode exact"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"clip_norm": -1.0}, "clip_norm must not be negative"),
    ],
)
def test_impossible_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MclConfig(**options)


def test_unit_rows_say_the_same_however_small_they_are() -> None:
    rows = torch.randn(4, 9, generator=rng())
    unit, norm = unit_rows(1e-12 * rows)
    torch.testing.assert_close(unit, unit_rows(rows)[0])
    torch.testing.assert_close(unit.square().mean(-1), torch.ones(4))
    torch.testing.assert_close(norm, 1e-12 * rows.norm(dim=-1))
    empty = torch.zeros(1, 9, requires_grad=True)
    unit_rows(empty)[0].mul(0).sum().backward()
    assert empty.grad is not None
    assert empty.grad.isfinite().all()


def test_rows_paired_with_others_have_the_contrast_of_keys_moved_by_half_the_rows() -> None:
    feature, keys = torch.randn(8, 4, generator=rng()), torch.randn(8, 3, generator=rng(1))
    heads = [(ProjectionHead(4, 5), ProjectionHead(3, 5))]
    valid = torch.tensor([True] * 7 + [False])

    def contrast(pairing: str, keys: Tensor, valid: Tensor) -> Tensor:
        config = ActionMclConfig(pairing=pairing)
        return contrast_keys(config, feature, heads, [keys], valid, gathers=False).loss

    moved, both = keys[[4, 5, 6, 7, 0, 1, 2, 3]], valid & valid[[4, 5, 6, 7, 0, 1, 2, 3]]
    assert both.sum() == 6  # the row whose key would be one that takes no part is left out too
    assert torch.equal(contrast("other", keys, valid), contrast("own", moved, both))
    assert not torch.equal(contrast("other", keys, valid), contrast("own", keys, valid))
