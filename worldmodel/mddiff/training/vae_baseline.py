"""Train a VAE baseline: worldmodel train-vae configs/disentanglement/desk/beta_vae.yaml ...

Writes OUTPUT/checkpoints, log.jsonl, tensorboard/ and, when finished, cost.json, OUTPUT/model (last
step) and OUTPUT/best (lowest fit.best_metric), which `ImageVae.from_pretrained` loads.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from worldmodel.cli_errors import one_way_out
from worldmodel.mddiff.data.factors import FactorDataConfig, data_identity, load_images, open_factor_data
from worldmodel.mddiff.models.image_vae import ImageVae, ImageVaeConfig
from worldmodel.mddiff.objectives.image_vae import image_vae_loss
from worldmodel.mddiff.training.image_run import ImageRun, train_run
from worldmodel.mddiff.training.scores import ConceptScores, ScoreConfig
from worldmodel.training.command_line import run_script
from worldmodel.training.loop.checkpoints import Checkpoint
from worldmodel.training.loop.fit import FitConfig


@dataclass(frozen=True)
class VaeBaselineConfig:
    """A baseline and its training."""

    output: str = "outputs/vae_baseline"  # folder of checkpoints, curves and the finished models
    data: FactorDataConfig = field(default_factory=FactorDataConfig)
    model: ImageVaeConfig = field(default_factory=ImageVaeConfig)
    scores: ScoreConfig = field(default_factory=ScoreConfig)  # measured at every validation
    fit: FitConfig = field(default_factory=lambda: FitConfig(best_metric="factor_vae_error"))

    def __post_init__(self) -> None:
        if self.model.family in ("factor_vae", "beta_tcvae"):
            self.fit.refuse_micro_batches(
                f"the total correlation of {self.model.family} is one of the codes of a whole batch"
            )


def build_model(config: VaeBaselineConfig) -> ImageVae:
    """Build the model at the image size of the data; random weights depend only on the seed."""
    torch.manual_seed(config.fit.seed)
    return ImageVae(replace(config.model, image_size=config.data.size))


def export_model(config: VaeBaselineConfig, checkpoint: Checkpoint, folder: Path) -> None:
    """Write a training checkpoint as a model folder, with averaged weights if there are any."""
    model = build_model(config)
    model.load_state_dict(checkpoint.tensors("weights") | checkpoint.tensors("ema"))
    model.save_pretrained(folder)


def build_run(config: VaeBaselineConfig) -> ImageRun:
    """Open the data and build the model."""
    dataset = open_factor_data(config.data)
    return ImageRun(
        config,
        build_model(config),
        dataset,
        partial(image_vae_loss, num_pictures=len(dataset)),
        load_images,
        ConceptScores(dataset, config.scores) if config.scores.num_pictures else None,
        {"data": data_identity(dataset), "model": asdict(config.model)},
        partial(export_model, config),
    )


train = partial(train_run, build_run)


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    return run_script(VaeBaselineConfig, train, __doc__ or "", argv)
