"""Train a world model:

accelerate launch training/train_world_model.py CONFIG.yaml key=value ...      (or python, or torchrun)

Writes OUTPUT/first_batch.mp4 (what the model is fed), checkpoints, log.jsonl, tensorboard/, rollouts/*.mp4
and, when finished, metrics.json and the world model folders OUTPUT/model (last step) and OUTPUT/best (lowest
validation number), which `WorldModel.from_pretrained` loads.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from worldmodel.config import save_config
from worldmodel.exits import one_way_out
from worldmodel.files import check_apart
from worldmodel.shipped import find_weights
from worldmodel.training.command_line import run_script
from worldmodel.training.loop.checkpoints import export_finished, open_store
from worldmodel.training.loop.distributed import resolve_parallel, start_accelerator
from worldmodel.training.loop.fit import fit
from worldmodel.training.runs.first_batch import write_first_batch
from worldmodel.training.runs.world_model import (
    TrainConfig,
    build_run,
    data_identity,
    export_model,
    load_train_config,
    log_mcl_reach,
    step_of,
    whole_model,
)


def train(config: TrainConfig, resume: bool) -> bool:
    """Build, fit, export; False when a signal ended it early."""
    accelerator = start_accelerator(config.fit.machine)
    config.check_sharding(resolve_parallel(config.fit.machine, accelerator.num_processes))
    output = Path(config.output)
    check_apart(output, *config.data.paths, find_weights(config.start_from) if config.start_from else "")
    store = open_store(output, accelerator, resume, config.fit.keep_checkpoints)
    run = build_run(config, accelerator.device)
    if accelerator.is_main_process:
        write_first_batch(
            output / "first_batch.mp4", run.model, run.train_clips, config.fit, config.first_batch
        )
    log_mcl_reach(run, accelerator)
    result = fit(
        step_of(run, accelerator.device),
        run.model,
        run.train_clips,
        config.fit_with_heads,
        output,
        validate=run.validation,
        resume=resume,
        accelerator=accelerator,
        identity=data_identity(config, run.model),
        on_start=partial(save_config, config, output / "config.yaml"),
    )
    if result.is_finished and accelerator.is_main_process:
        export_finished(store, result.metrics, partial(export_model, whole_model(run)))
    accelerator.end_training()
    return result.is_finished


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run."""
    return run_script(TrainConfig, train, __doc__ or "", argv, load_train_config)


if __name__ == "__main__":
    sys.exit(main())
