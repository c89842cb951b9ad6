"""Train a VAE baseline: worldmodel train-vae configs/disentanglement/desk/beta_vae.yaml ...

Writes OUTPUT/checkpoints, log.jsonl, tensorboard/ and, when finished, cost.json, OUTPUT/model (last
step) and OUTPUT/best (lowest fit.best_metric), which `ImageVae.from_pretrained` loads.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from worldmodel.cli_errors import one_way_out
from worldmodel.config import save_config
from worldmodel.mddiff.data.factors import FactorDataConfig, data_identity, load_images, open_factor_data
from worldmodel.mddiff.models.image_vae import ImageVae, ImageVaeConfig
from worldmodel.mddiff.objectives.image_vae import image_vae_loss
from worldmodel.mddiff.training.cost import write_cost
from worldmodel.mddiff.training.scores import ConceptScores, ScoreConfig
from worldmodel.objectives.losses import Losses
from worldmodel.training.command_line import run_script
from worldmodel.training.loop.checkpoints import Checkpoint, export_finished, open_store
from worldmodel.training.loop.distributed import start_accelerator
from worldmodel.training.loop.fit import FitConfig, fit


@dataclass(frozen=True)
class VaeBaselineConfig:
    """A baseline and its training."""

    output: str = "outputs/vae_baseline"  # folder of checkpoints, curves and the finished models
    data: FactorDataConfig = field(default_factory=FactorDataConfig)
    model: ImageVaeConfig = field(default_factory=ImageVaeConfig)
    scores: ScoreConfig = field(default_factory=ScoreConfig)  # measured at every validation
    fit: FitConfig = field(default_factory=lambda: FitConfig(best_metric="factor_vae_error"))


def _step(model: ImageVae, images: Tensor, generator: torch.Generator, num_pictures: int) -> Losses:
    return image_vae_loss(model, images, generator, num_pictures)


def build_model(config: VaeBaselineConfig) -> ImageVae:
    """Build the model at the image size of the data; random weights depend only on the seed."""
    torch.manual_seed(config.fit.seed)
    return ImageVae(replace(config.model, image_size=config.data.size))


def export_model(config: VaeBaselineConfig, checkpoint: Checkpoint, folder: Path) -> None:
    """Write a training checkpoint as a model folder, with averaged weights if there are any."""
    model = build_model(config)
    model.load_state_dict(checkpoint.tensors("weights") | checkpoint.tensors("ema"))
    model.save_pretrained(folder)


def train(config: VaeBaselineConfig, resume: bool) -> bool:
    """Build, fit, export; returns False if a signal stopped it early."""
    accelerator = start_accelerator(config.fit.machine)
    output = Path(config.output)
    store = open_store(output, accelerator, resume, config.fit.keep_checkpoints)
    dataset = open_factor_data(config.data)
    model = build_model(config)
    result = fit(
        partial(_step, num_pictures=len(dataset)),
        model,
        dataset,
        config.fit,
        output,
        load=load_images,
        validate=ConceptScores(dataset, config.scores) if config.scores.num_pictures else None,
        resume=resume,
        accelerator=accelerator,
        identity={"data": data_identity(dataset), "model": asdict(config.model)},
        on_start=partial(save_config, config, output / "config.yaml"),
    )
    if result.is_finished and accelerator.is_main_process:
        write_cost(output, result, config.fit, model)
        export_finished(store, result.metrics, partial(export_model, config))
    accelerator.end_training()
    return result.is_finished


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    return run_script(VaeBaselineConfig, train, __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main())
