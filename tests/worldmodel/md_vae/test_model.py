import pytest
import torch

from worldmodel.md_vae.gaussian import Gaussian, gaussian_nll, standard_kl
from worldmodel.md_vae.model import StackedVae, VaeConfig

FAMILIES = ["beta_vae", "ivae", "concat", "modulated", "tied", "hypernetwork"]
D, X, A = 3, 8, 4


def vae(num_seeds: int = 2, **options) -> StackedVae:
    streams = [torch.Generator().manual_seed(seed) for seed in range(num_seeds)]
    return StackedVae(VaeConfig(**options), latent_dim=D, output_dim=X, condition_dim=A, streams=streams)


def batch(num_seeds: int = 2, num_rows: int = 10):
    rng = torch.Generator().manual_seed(5)
    shapes = ((num_rows, X), (num_rows, A), (num_rows, D))
    return [torch.randn(num_seeds, *shape, generator=rng) for shape in shapes]


@pytest.mark.parametrize("posterior", ["mean_field", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_per_seed_and_reach_every_parameter(family: str, posterior: str) -> None:
    model = vae(family=family, posterior=posterior)
    loss = model.loss(*batch())
    assert loss.reconstruction.shape == loss.kl.shape == (2,)
    assert (loss.kl > 0).all()
    loss.negative_elbo[0].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad[0].abs().max() > 0, name
        assert parameter.grad[1].abs().max() == 0, name


@pytest.mark.parametrize("family", FAMILIES)
def test_who_sees_the_condition(family: str) -> None:
    model, (x, u, noise) = vae(family=family), batch()
    other = u.flip(1)
    sees = {
        "posterior": not model.encode(x, u).mean.equal(model.encode(x, other).mean),
        "generator": not model.generate(noise, u).equal(model.generate(noise, other)),
    }
    assert sees == {"posterior": family != "beta_vae", "generator": family not in ("beta_vae", "ivae")}


def test_tied_is_the_ivae_in_other_coordinates() -> None:
    x, u, noise = batch()
    tied, ivae = vae(family="tied"), vae(family="ivae")
    first, second = tied.loss(x, u, noise), ivae.loss(x, u, noise)
    assert first.negative_elbo.equal(second.negative_elbo)
    assert tied.latents(x, u)["latent"].equal(ivae.latents(x, u)["standardized"])
    # and its generator maps its own z to the same x
    torch.testing.assert_close(tied.generate(first.z, u), ivae.generate(second.z, u))


def test_the_bound_of_the_tied_model_is_the_md_vae_bound_in_z() -> None:
    # KL and reconstruction computed in z with prior N(0, I): the same numbers as in w with prior N(b, m^2).
    x, u, noise = batch()
    tied = vae(family="tied")
    log_scale, shift = tied.condition(u)
    w = tied.encode(x, u)
    z = Gaussian((w.mean - shift) * torch.exp(-log_scale), w.log_std - log_scale)
    loss = tied.loss(x, u, noise)
    torch.testing.assert_close(loss.kl, standard_kl(z).mean(-1))
    mean = tied.generate(z.sample(noise), u)
    torch.testing.assert_close(loss.reconstruction, gaussian_nll(x, mean, 0.1))


@pytest.mark.parametrize("family", ["concat", "modulated", "hypernetwork"])
def test_rotating_the_latent_keeps_the_bound_of_a_full_posterior(family: str) -> None:
    # g(R^T z, u) with the rotated posterior: neither likelihood nor prior can tell, even for R = R(u).
    x, u, noise = batch()
    model = vae(family=family)
    posterior = model.encode(x, u)
    turns = torch.linalg.qr(torch.randn(2, 10, D, D, generator=torch.Generator().manual_seed(1)))[0]
    sample = posterior.sample(noise)
    rotated = (turns @ sample.unsqueeze(-1)).squeeze(-1)
    back = (turns.transpose(-1, -2) @ rotated.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(model.generate(back, u), model.generate(sample, u), rtol=1e-4, atol=1e-5)
    covariance = turns @ posterior.covariance @ turns.transpose(-1, -2)
    factor = torch.linalg.cholesky(covariance)
    turned = Gaussian(
        (turns @ posterior.mean.unsqueeze(-1)).squeeze(-1), factor.diagonal(0, -2, -1).log(), factor.tril(-1)
    )
    torch.testing.assert_close(standard_kl(turned), standard_kl(posterior), rtol=1e-4, atol=1e-4)
    # A mean-field posterior is not closed under rotation: keeping only the diagonal gives up entropy.
    diagonal = Gaussian(turned.mean, 0.5 * covariance.diagonal(0, -2, -1).log())
    loss = standard_kl(posterior) - standard_kl(diagonal)
    assert loss.min() > -1e-5  # Hadamard: the diagonal has the larger determinant
    assert loss.max() > 1e-3


def test_the_likelihood_cannot_see_a_rotation_per_condition() -> None:
    # Exact log p(x | u) of x = A(u) z + b(u) + noise, z ~ N(0, I): N(b(u), A A^T + s^2 I). With z turned by
    # R(u) the mixing is A(u) R(u)^T, another latent for every x.
    rng = torch.Generator().manual_seed(3)
    mixing = torch.randn(A, X, D, generator=rng, dtype=torch.float64)
    shift = torch.randn(A, X, generator=rng, dtype=torch.float64)
    turns = torch.linalg.qr(torch.randn(A, D, D, generator=rng, dtype=torch.float64))[0]
    x = torch.randn(A, 50, X, generator=rng, dtype=torch.float64)

    def log_likelihood(matrix):
        covariance = matrix @ matrix.transpose(-1, -2) + 0.01 * torch.eye(X, dtype=torch.float64)
        return torch.distributions.MultivariateNormal(shift.unsqueeze(1), covariance.unsqueeze(1)).log_prob(x)

    def posterior(matrix):
        precision = torch.eye(D, dtype=torch.float64) + matrix.transpose(-1, -2) @ matrix / 0.01
        project = torch.linalg.solve(precision, matrix.transpose(-1, -2)) / 0.01
        return (x - shift.unsqueeze(1)) @ project.transpose(-1, -2), precision

    rotated = mixing @ turns.transpose(-1, -2)
    torch.testing.assert_close(log_likelihood(rotated), log_likelihood(mixing), rtol=1e-10, atol=1e-10)
    (mean, precision), (turned, precision_turned) = posterior(mixing), posterior(rotated)
    torch.testing.assert_close(turned, mean @ turns.transpose(-1, -2), rtol=1e-9, atol=1e-9)
    assert (turned - mean).abs().max() > 0.1
    # What tells them apart is the best mean-field bound: its gap to the likelihood depends on the axes.
    gaps = [0.5 * (p.diagonal(0, -2, -1).log().sum(-1) - p.logdet()) for p in (precision, precision_turned)]
    assert (gaps[0] - gaps[1]).abs().min() > 1e-3


def test_a_seed_is_the_same_alone_and_in_a_stack() -> None:
    x, u, noise = batch(3)
    both = vae(3, family="modulated").loss(x, u, noise)
    alone = vae(1, family="modulated").loss(x[:1], u[:1], noise[:1])
    torch.testing.assert_close(both.negative_elbo[:1], alone.negative_elbo)


def test_one_seed_can_be_taken_out_of_a_stack() -> None:
    _, u, noise = (part.double() for part in batch(3))
    model = vae(3, family="modulated")
    alone = model.of_seed(2)
    torch.testing.assert_close(alone.generate(noise[2:], u[2:]), model.double().generate(noise, u)[2:])


def test_widths_follow_the_paper() -> None:
    streams = [torch.Generator().manual_seed(0)]
    big = StackedVae(VaeConfig(), latent_dim=20, output_dim=80, condition_dim=16, streams=streams)
    assert big.encoder[0].weight.shape == (1, 96, 80)
    assert vae().encoder[0].weight.shape == (2, X + A, 64)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="beta must be positive"):
        VaeConfig(beta=0.0)


def test_a_learned_width_starts_at_the_given_one_and_finds_the_noise() -> None:
    fixed, learned = vae(decoder_std=0.3), vae(decoder_std=0.3, learns_std=True)
    torch.testing.assert_close(
        learned.loss(*batch()).reconstruction, fixed.loss(*batch()).reconstruction, rtol=1e-5, atol=0
    )
    x, mean = 0.1 * torch.randn(2, 2000, X), torch.zeros(2, 2000, X)
    optimizer = torch.optim.Adam([learned.log_std], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        gaussian_nll(x, mean, learned.decoder_std).sum().backward()
        optimizer.step()
    torch.testing.assert_close(learned.decoder_std, torch.full((2,), 0.1), rtol=0.05, atol=0)
