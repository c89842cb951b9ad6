"""Disentanglement in passing: scores of a few thousand pictures in training, for curves and for `best`."""

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
    """How many pictures and votes a score in passing takes."""

    num_pictures: int = 4096  # random pictures, the same ones every time; 0 = no scores
    num_votes: int = 2000  # of the FactorVAE score; a quarter of them is held out
    batch: int = 512  # pictures encoded at once

    def __post_init__(self) -> None:
        check_ranges(self, num_votes=(4, 10_000_000), batch=(1, 1 << 20))


class ConceptScores:
    """FactorVAE score and MIG at a step; their own small samples, so not comparable with published numbers.

    Chosen by these numbers, `best` is selected on the metric it is later judged by, as in the reference code:
    report it only beside `last`.
    """

    def __init__(self, dataset: FactorDataset, config: ScoreConfig, seed: int = 0) -> None:
        self.dataset, self.config, self.seed = dataset, config, seed
        rng = np.random.default_rng(seed)
        count = min(config.num_pictures, len(dataset))
        self.indices = rng.choice(len(dataset), count, replace=False).astype(np.int64)

    def __call__(
        self, model: ConceptModel, step: int, accelerator: Accelerator, tracker: Tracker | None
    ) -> dict[str, float]:
        """Scores from 0 to 1, and an error whose lowest value marks the best."""
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
