"""Cross-validated linear probe: how well a label can be predicted from codes, compared with chance."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

RIDGE = 1e-3  # of the mean squared code


@dataclass(frozen=True)
class LabelProbe:
    """Held-out accuracy of the probe, and of always predicting the most frequent label."""

    accuracy: float
    chance: float
    num_samples: int

    def verdict(self) -> str:
        """One sentence for a report."""
        return (
            f"a linear probe reads the label from {self.accuracy:.0%} of {self.num_samples} codes, "
            f"guessing from {self.chance:.0%}"
        )


def label_probe(
    codes: Float[Tensor, "n d"], labels: Int[Tensor, " n"], *, num_folds: int = 5, seed: int = 0
) -> LabelProbe:
    """Least squares on one-hot labels; every sample is scored by a probe fitted without its fold.

    With the robot as the label and latent actions as codes, it measures what gradient reversal should remove.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import label_probe
        >>> labels = torch.arange(200) % 2
        >>> codes = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> label_probe(codes + 5 * labels[:, None], labels).accuracy
        1.0
    """
    if len(codes) < 2 * num_folds or labels.unique().numel() < 2:
        raise ValueError(
            f"a probe needs at least {2 * num_folds} codes and two labels, got {len(codes)} codes and "
            f"{labels.unique().numel()}"
        )
    x = F.pad(codes.double(), (0, 1), value=1.0)
    y = F.one_hot(labels).double()
    folds = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)) % num_folds
    ridge = RIDGE * x.square().mean() * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
    hits = 0
    for fold in range(num_folds):
        train = folds != fold
        weights = torch.linalg.solve(x[train].T @ x[train] + ridge, x[train].T @ y[train])
        hits += int(((x[~train] @ weights).argmax(1) == labels[~train]).sum())
    chance = torch.bincount(labels).max().item() / len(labels)
    return LabelProbe(hits / len(labels), chance, len(labels))
