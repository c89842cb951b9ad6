"""Train a concept model, one stage at a time:

worldmodel train-concepts configs/disentanglement/desk/vqvae.yaml      first stage
worldmodel train-concepts configs/disentanglement/desk/encdiff.yaml    stage 1, or mddiff.yaml
worldmodel train-concepts configs/disentanglement/desk/mcl.yaml        stage 2, MCL fine-tuning

Writes OUTPUT/checkpoints, log.jsonl, tensorboard/ and, when finished, metrics.json, cost.json,
OUTPUT/model (last step) and OUTPUT/best (lowest fit.best_metric): a VQ-VAE folder after the first
stage, else one that `MDDiff.from_pretrained` loads.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from worldmodel.cli_errors import one_way_out
from worldmodel.config import save_config
from worldmodel.mddiff.data.factors import load_images
from worldmodel.mddiff.training.concept_run import ConceptTrainConfig, build_run, export_model, run_identity
from worldmodel.mddiff.training.cost import write_cost
from worldmodel.training.command_line import run_script
from worldmodel.training.loop.checkpoints import export_finished, open_store
from worldmodel.training.loop.distributed import start_accelerator
from worldmodel.training.loop.fit import fit


def train(config: ConceptTrainConfig, resume: bool) -> bool:
    """Build, fit, export; returns False if a signal stopped it early."""
    accelerator = start_accelerator(config.fit.machine)
    output = Path(config.output)
    store = open_store(output, accelerator, resume, config.fit.keep_checkpoints)
    run = build_run(config)
    result = fit(
        run.step,
        run.model,
        run.data,
        run.config.fit,
        output,
        load=load_images,
        validate=run.validation,
        resume=resume,
        accelerator=accelerator,
        identity=run_identity(run),
        on_start=partial(save_config, run.config, output / "config.yaml"),
    )
    if result.is_finished and accelerator.is_main_process:
        write_cost(output, result, config.fit, run.model)
        export_finished(store, result.metrics, partial(export_model, run))
    accelerator.end_training()
    return result.is_finished


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    return run_script(ConceptTrainConfig, train, __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main())
