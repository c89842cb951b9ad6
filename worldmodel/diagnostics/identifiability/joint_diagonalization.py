"""A linear map that jointly diagonalizes several covariance matrices.

If w has independent Gaussian entries whose variances change with the condition, and A w is observed, the
covariances of the conditions are A D_k A^T. The maximum-likelihood estimate of A^-1 minimizes (Pham 2001)

    1/2 sum_k p_k log det diag(B C_k B^T) - log |det B|

which two conditions already determine, up to scale and order, if no two entries have the same ratio of
variances. Axes: s problems, k matrices, d size.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def joint_diagonalizer(
    covariances: Float[Tensor, "s k d d"],
    shares: Float[Tensor, "s k"],
    *,
    max_steps: int = 200,
    tolerance: float = 1e-8,
) -> Float[Tensor, "s d d"]:
    """B such that B C_k B^T is as diagonal as can be, in double precision; scale and order are arbitrary.

    Quasi-Newton steps B <- (I - H) B with the 2 x 2 blocks of the Hessian at a diagonal solution (Ablin,
    Cardoso and Gramfort 2019), halved until the criterion falls. `shares` are the weights p_k and sum to 1.
    """
    matrices, weights = covariances.double(), shares.double()
    basis = torch.linalg.inv(torch.linalg.cholesky((matrices * weights[..., None, None]).sum(1)))
    value = _criterion(basis, matrices, weights)
    for _ in range(max_steps):
        step = _newton_step(_transform(basis, matrices), weights)
        basis, new_value = _line_search(basis, step, value, matrices, weights)
        if (value - new_value).max() < tolerance:
            break
        value = new_value
    return basis


def _transform(basis: Tensor, matrices: Tensor) -> Tensor:
    return basis.unsqueeze(1) @ matrices @ basis.unsqueeze(1).transpose(-1, -2)


def _criterion(basis: Tensor, matrices: Tensor, weights: Tensor) -> Tensor:
    variances = _transform(basis, matrices).diagonal(0, -2, -1)
    return 0.5 * (variances.log().sum(-1) * weights).sum(-1) - torch.linalg.slogdet(basis)[1]


def _newton_step(current: Tensor, weights: Tensor) -> Tensor:
    variances = current.diagonal(0, -2, -1)
    gradient = torch.einsum("sk,skij,ski->sij", weights, current, 1 / variances)
    ratio = torch.einsum("sk,skj,ski->sij", weights, variances, 1 / variances)
    # At least 0 by Cauchy-Schwarz; 0 where two entries have the same ratio and cannot be separated.
    determinant = (ratio * ratio.transpose(-1, -2) - 1).clamp(min=1e-3)
    step = (ratio.transpose(-1, -2) * gradient - gradient.transpose(-1, -2)) / determinant
    return step - torch.diag_embed(step.diagonal(0, -2, -1))


def _line_search(
    basis: Tensor, step: Tensor, value: Tensor, matrices: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """For each problem, the longest halved step that lowers the criterion; none if no step does."""
    identity = torch.eye(basis.shape[-1], dtype=basis.dtype, device=basis.device)
    best, best_value = basis, value
    open_problems = torch.ones_like(value, dtype=torch.bool)
    for halvings in range(12):
        trial = (identity - step * 0.5**halvings) @ basis
        trial_value = _criterion(trial, matrices, weights)
        taken = open_problems & (trial_value < value)
        best = torch.where(taken[:, None, None], trial, best)
        best_value = torch.where(taken, trial_value, best_value)
        open_problems = open_problems & ~taken
        if not open_problems.any():
            break
    return best, best_value


class ConditionAlignment:
    """Undoes a linear mixture of latents whose scales change with a condition; needs no true latents.

    `fit` learns the mixture from the covariances of the conditions, `transform` unmixes and standardizes
    within each condition: for w = A (z * m(u) + b(u)) with z ~ N(0, I) it returns z up to sign and order.
    """

    unmixing_: Float[Tensor, "s d d"]
    mean_: Float[Tensor, "s k d"]  # of the unmixed latents in each condition
    std_: Float[Tensor, "s k d"]

    def fit(self, w: Float[Tensor, "s n d"], condition: Int[Tensor, "s n"]) -> "ConditionAlignment":
        """Estimate from samples; every condition 0 .. max needs more samples than dimensions."""
        num_conditions = int(condition.max()) + 1
        chosen = [(condition == value).double() for value in range(num_conditions)]
        counts = torch.stack([mask.sum(1) for mask in chosen], dim=1)
        if (counts <= w.shape[-1]).any():
            raise ValueError(
                f"a condition has {int(counts.min())} samples; more than {w.shape[-1]} are needed"
            )
        means, covariances = zip(*(_moments(w.double(), mask) for mask in chosen), strict=True)
        covariance = torch.stack(covariances, dim=1)
        # A trace of white noise, so that a collapsed latent does not break the others.
        size = covariance.diagonal(0, -2, -1).mean((-2, -1)) * 1e-10 + 1e-30
        covariance = covariance + size[:, None, None, None] * torch.eye(w.shape[-1], device=w.device)
        self.unmixing_ = joint_diagonalizer(covariance, counts / counts.sum(1, keepdim=True))
        self.mean_ = torch.stack(means, dim=1) @ self.unmixing_.transpose(-1, -2)
        self.std_ = _transform(self.unmixing_, covariance).diagonal(0, -2, -1).sqrt()
        return self

    def transform(self, w: Float[Tensor, "s n d"], condition: Int[Tensor, "s n"]) -> Float[Tensor, "s n d"]:
        """The unmixed latents, standardized within each condition."""
        unmixed = w.double() @ self.unmixing_.transpose(-1, -2)
        index = condition.unsqueeze(-1)
        mean, std = (torch.take_along_dim(part, index, dim=1) for part in (self.mean_, self.std_))
        return ((unmixed - mean) / std).to(w.dtype)


def _moments(w: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the samples where mask is 1."""
    count = mask.sum(1)[:, None, None]
    mean = (mask.unsqueeze(1) @ w) / count
    centered = (w - mean) * mask.unsqueeze(-1)
    return mean.squeeze(1), centered.transpose(1, 2) @ centered / (count - 1)
