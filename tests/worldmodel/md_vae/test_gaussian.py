import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from worldmodel.md_vae import gaussian as elbo


def posterior(full: bool) -> elbo.Gaussian:
    torch.manual_seed(0)
    lower = torch.randn(2, 6, 3, 3).tril(-1) if full else None
    return elbo.Gaussian(torch.randn(2, 6, 3), 0.3 * torch.randn(2, 6, 3), lower)


@pytest.mark.parametrize("full", [False, True])
def test_kl_agrees_with_torch_distributions(full: bool) -> None:
    q = posterior(full)
    mean, log_std = torch.randn(2, 6, 3), 0.3 * torch.randn(2, 6, 3)
    theirs = MultivariateNormal(q.mean, q.covariance)
    prior = MultivariateNormal(mean, torch.diag_embed(torch.exp(2 * log_std)))
    torch.testing.assert_close(elbo.kl_divergence(q, mean, log_std), kl_divergence(theirs, prior))
    standard = MultivariateNormal(torch.zeros(3), torch.eye(3)).expand((2, 6))
    torch.testing.assert_close(elbo.standard_kl(q), kl_divergence(theirs, standard))


@pytest.mark.parametrize("full", [False, True])
def test_samples_have_the_covariance_they_claim(full: bool) -> None:
    one = posterior(full)
    lower = None if one.lower is None else one.lower[0, :1].expand(200_000, 3, 3)
    q = elbo.Gaussian(one.mean[0, :1].expand(200_000, 3), one.log_std[0, :1].expand(200_000, 3), lower)
    sample = q.sample(torch.randn(200_000, 3, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(sample.T.cov(), q.covariance[0], rtol=0.03, atol=0.03)
    torch.testing.assert_close(sample.mean(0), one.mean[0, 0], rtol=0, atol=0.02)


def test_gaussian_nll_agrees_with_torch_distributions() -> None:
    x, mean = torch.randn(3, 20, 4), torch.randn(3, 20, 4)
    expected = -Normal(mean, 0.1).log_prob(x).sum(-1).mean(-1)
    torch.testing.assert_close(elbo.gaussian_nll(x, mean, 0.1), expected)
    perfect = elbo.gaussian_nll(x, x, 0.1)
    assert perfect[0].item() == pytest.approx(4 * math.log(0.1 * math.sqrt(2 * math.pi)))
