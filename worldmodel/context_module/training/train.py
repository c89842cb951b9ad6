"""Train a context model, or a model that it is compared with:

worldmodel train-context configs/context/desk.yaml
worldmodel train-context configs/context/desk.yaml data.path=quad_causal fit.seed=1 --resume
worldmodel train-context configs/context/desk.yaml output=outputs/context/frozen train=module \
    model.has_head=true start_from=outputs/context/base_pooled/model

Writes OUTPUT/checkpoints, log.jsonl, tensorboard/ and, when finished, metrics.json, cost.json, OUTPUT/model
(last step) and OUTPUT/best (lowest fit.best_metric), which `ContextModel.from_pretrained` loads. With
train=module_first the first phase, host frozen, has a folder of its own: OUTPUT/module_first.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from worldmodel.cli_errors import one_way_out
from worldmodel.context_module.training.context_run import ContextTrainConfig, build_run
from worldmodel.mddiff.training.image_run import train_run
from worldmodel.training.command_line import run_script

FIRST_PHASE = "module_first"
train_phase = partial(train_run, build_run)


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


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    return run_script(ContextTrainConfig, train, __doc__ or "", argv)
