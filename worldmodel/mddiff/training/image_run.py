"""Builds, fits and exports a model of pictures: concept models, VAE baselines and context models."""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from worldmodel.config import save_config
from worldmodel.mddiff.training.cost import write_cost
from worldmodel.training.loop.checkpoints import Checkpoint, export_finished, open_store
from worldmodel.training.loop.distributed import start_accelerator
from worldmodel.training.loop.fit import LoadFn, ValidateFn, fit
from worldmodel.training.loop.step import StepFn


@dataclass(frozen=True)
class ImageRun:
    """A model with its data, ready for `fit`."""

    config: Any  # of the training, with every default resolved
    model: nn.Module
    data: Sized
    step: StepFn
    load: LoadFn
    validation: ValidateFn | None
    identity: Mapping[str, Any]  # a resumed run must have the same start, pictures, model and objective
    export: Callable[[Checkpoint, Path], None]  # writes a checkpoint as a model folder


def train_run(build: Callable[[Any], ImageRun], config: Any, resume: bool) -> bool:
    """Build, fit, export; returns False if a signal stopped it early."""
    accelerator = start_accelerator(config.fit.machine)
    output = Path(config.output)
    store = open_store(output, accelerator, resume, config.fit.keep_checkpoints)
    run = build(config)
    result = fit(
        run.step,
        run.model,
        run.data,
        run.config.fit,
        output,
        load=run.load,
        validate=run.validation,
        resume=resume,
        accelerator=accelerator,
        identity=run.identity,
        on_start=partial(save_config, run.config, output / "config.yaml"),
    )
    if result.is_finished and accelerator.is_main_process:
        write_cost(output, result, config.fit, run.model)
        export_finished(store, result.metrics, run.export)
    accelerator.end_training()
    return result.is_finished
