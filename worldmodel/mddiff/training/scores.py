"""Quick disentanglement scores during training, for curves and for selecting `best`."""

from dataclasses import dataclass

import numpy as np
from accelerate import Accelerator

from worldmodel.checked import check_ranges
from worldmodel.diagnostics import factor_vae_score, mig
from worldmodel.diagnostics.scores.factor_sampling import FEW_POINTS
from worldmodel.mddiff.data.types import FactorDataset
from worldmodel.mddiff.models.protocol import ConceptModel
from worldmodel.training.loop.tracking import Tracker


@dataclass(frozen=True)
class ScoreConfig:
    """Number of images and votes for the quick scores."""

    num_pictures: int = 4096  # random images, the same at every validation; 0 = no scores
    num_votes: int = 2000  # votes of the FactorVAE score; a quarter of them is held out
    batch: int = 512  # images encoded at once

    def __post_init__(self) -> None:
        check_ranges(self, num_votes=(4, 10_000_000), batch=(1, 1 << 20))


class ConceptScores:
    """FactorVAE score and MIG on small samples; not comparable with published numbers.

    A `best` checkpoint chosen by these numbers is selected on the metric that is later reported, as in the
    reference code: always report `last` as well.
    """

    def __init__(self, dataset: FactorDataset, config: ScoreConfig, seed: int = 0) -> None:
        self.dataset, self.config, self.seed = dataset, config, seed
        rng = np.random.default_rng(seed)
        count = min(config.num_pictures, len(dataset))
        self.indices = rng.choice(len(dataset), count, replace=False).astype(np.int64)

    def __call__(
        self, model: ConceptModel, step: int, accelerator: Accelerator, tracker: Tracker | None
    ) -> dict[str, float]:
        """Scores from 0 to 1, and an error to minimize when selecting the best checkpoint."""
        parts = np.array_split(self.indices, max(1, -(-len(self.indices) // self.config.batch)))
        codes = np.concatenate([model.encode(self.dataset.images(part)).cpu().numpy() for part in parts])
        factors = self.dataset.factors(self.indices)
        num_train = self.config.num_votes * 3 // 4
        num_points = max(len(codes), FEW_POINTS)  # drawn with replacement
        vote = factor_vae_score(
            codes,
            factors,
            seed=self.seed,
            num_train=num_train,
            num_eval=self.config.num_votes - num_train,
            num_variance=num_points,
        )
        gap = mig(codes, factors, seed=self.seed, num_train=num_points)
        return {
            "factor_vae": vote.value,
            "mig": gap.value,
            "num_active": vote.num_active,
            "factor_vae_error": 1 - vote.value,
        }
