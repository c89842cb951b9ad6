"""Train a context model, or a model that it is compared with:

worldmodel train-context configs/context/desk.yaml
worldmodel train-context configs/context/desk.yaml data.path=quad_causal fit.seed=1 --resume
worldmodel train-context configs/context/desk.yaml output=outputs/context/frozen train=module \
    model.has_head=true start_from=outputs/context/base_pooled/model

Writes OUTPUT/checkpoints, log.jsonl, tensorboard/ and, when finished, metrics.json, cost.json, OUTPUT/model
(last step) and OUTPUT/best (lowest fit.best_metric), which `ContextModel.from_pretrained` loads. With
train=module_first the first phase, host frozen, has a folder of its own: OUTPUT/module_first.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from worldmodel.cli_errors import one_way_out
from worldmodel.config import save_config
from worldmodel.context_module.data.open_contexts import load_contexts
from worldmodel.context_module.training.context_run import (
    ContextTrainConfig,
    build_run,
    export_model,
    run_identity,
)
from worldmodel.mddiff.training.cost import write_cost
from worldmodel.training.command_line import run_script
from worldmodel.training.loop.checkpoints import export_finished, open_store
from worldmodel.training.loop.distributed import start_accelerator
from worldmodel.training.loop.fit import fit

FIRST_PHASE = "module_first"


def train(config: ContextTrainConfig, resume: bool) -> bool:
    """Run all phases; returns False if a signal stopped it early."""
    if config.train != "module_first":
        return train_phase(config, resume)
    first, second = phases(config)
    is_done = (Path(first.output) / "model").exists()
    if not (resume and is_done) and not train_phase(first, resume):
        return False
    return train_phase(second, resume)


def phases(config: ContextTrainConfig) -> tuple[ContextTrainConfig, ContextTrainConfig]:
    """Two phases: the module alone for its share of the steps, then everything for the rest."""
    num_first = min(max(round(config.module_share * config.fit.steps), 1), config.fit.steps - 1)
    folder = str(Path(config.output) / FIRST_PHASE)
    first = replace(config, train="module", output=folder, fit=replace(config.fit, steps=num_first))
    rest = replace(config.fit, steps=config.fit.steps - num_first)
    return first, replace(config, train="all", start_from=f"{folder}/model", fit=rest)


def train_phase(config: ContextTrainConfig, resume: bool) -> bool:
    """Build, fit, export; returns False if a signal stopped it early."""
    accelerator = start_accelerator(config.fit.machine)
    output = Path(config.output)
    store = open_store(output, accelerator, resume, config.fit.keep_checkpoints)
    run = build_run(config)
    result = fit(
        run.step,
        run.model,
        run.pictures,
        config.fit,
        output,
        load=load_contexts,
        validate=run.validation,
        resume=resume,
        accelerator=accelerator,
        identity=run_identity(run),
        on_start=partial(save_config, config, output / "config.yaml"),
    )
    if result.is_finished and accelerator.is_main_process:
        write_cost(output, result, config.fit, run.model)
        export_finished(store, result.metrics, partial(export_model, run))
    accelerator.end_training()
    return result.is_finished


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    return run_script(ContextTrainConfig, train, __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main())
