"""Train a world model:

accelerate launch training/train_world_model.py CONFIG.yaml key=value ...      (or python, or torchrun)

Writes OUTPUT/checkpoints, log.jsonl, tensorboard/, rollouts/*.mp4 and, when finished, metrics.json and the
world model folders OUTPUT/model (last step) and OUTPUT/best (lowest validation number), which
`WorldModel.from_pretrained` loads.
"""

import sys
from functools import partial
from pathlib import Path

from training.checkpointing import export_finished
from training.command_line import run_script
from training.distributed import start_accelerator
from training.loop import fit, open_store
from training.world_model_run import TrainConfig, build_run, data_identity, export_model, say_contrast
from worldmodel.config import save_config
from worldmodel.objectives.world_model_loss import world_model_step


def train(config: TrainConfig, resume: bool) -> bool:
    """Build, fit, export; False when a signal ended it early."""
    accelerator = start_accelerator(config.fit.machine)
    output = Path(config.output)
    store = open_store(output, accelerator, resume, config.fit.keep_checkpoints)
    run = build_run(config, accelerator.device)
    say_contrast(run, accelerator)
    result = fit(
        world_model_step,
        run.model,
        run.train_clips,
        config.fit,
        output,
        validate=run.validation,
        resume=resume,
        accelerator=accelerator,
        identity=data_identity(config, run.model),
        on_start=partial(save_config, config, output / "config.yaml"),
    )
    if result.is_finished and accelerator.is_main_process:
        export_finished(store, result.metrics, partial(export_model, config))
    accelerator.end_training()
    return result.is_finished


if __name__ == "__main__":
    sys.exit(run_script(TrainConfig, train, __doc__ or ""))
