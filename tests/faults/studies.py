"""The studies in a size for tests, to be killed: table2, disentanglement, identifiability.

Their cells run in forked processes instead of new ones, which would spend all their time on imports.
"""

import json
import os
import signal
import sys
import traceback
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
from studies import child_process
from studies.cells import ROLL_OUT, TRAIN
from studies.disentanglement.run import main as disentanglement_study
from studies.identifiability.run import collect
from studies.table2.run import main as table2

from tests.support.robotwin_sets import write_robotwin_set
from worldmodel.evaluation.command_line import run_on_data
from worldmodel.evaluation.rollouts.run import RolloutsConfig
from worldmodel.evaluation.rollouts.run import run as roll_out
from worldmodel.md_vae.model import VaeConfig
from worldmodel.md_vae.simulation import IdentifiabilityDataConfig
from worldmodel.md_vae.stacked import OptimizationConfig
from worldmodel.md_vae.train import CellConfig, train_cell
from worldmodel.mddiff.data import render_rooms as rendered
from worldmodel.mddiff.evaluation import scores as evaluation
from worldmodel.mddiff.training.vae_baseline import VaeBaselineConfig
from worldmodel.mddiff.training.vae_baseline import train as train_baseline
from worldmodel.training.command_line import run_script
from worldmodel.training.datasets import open_index
from worldmodel.training.world_model import TrainConfig, build_model, load_train_config, train

PROJECT = Path(__file__).parents[2]
TRAINING = str(PROJECT / "configs/debug/world_model.yaml")
SOURCE, TARGET, TARGET_TEST, TRANSFER_TEST = SETS = (
    "seen/place_a2b_left/arx-x5_clean_50",
    "seen/place_a2b_left/aloha-agilex_clean_50",
    "unseen/place_a2b_left/aloha-agilex_clean_50",
    "unseen/place_a2b_right/aloha-agilex_clean_50",
)
ROLLOUTS = ["held_out.split=all", "num_inference_steps=1", "videos=0", "controls=[zero]"]
SCRIPTS: dict[str, Callable[[Sequence[str]], int]] = {
    TRAIN: partial(run_script, TrainConfig, train, ""),
    ROLL_OUT: partial(run_on_data, RolloutsConfig, roll_out, ""),
    "train-vae": partial(run_script, VaeBaselineConfig, train_baseline, ""),
}
FEW_SCORES = ("num_votes=1000", "num_mig=500", "dci_train=0", "num_reconstructed=8")
ROOMS = """
presets: {configs}/debug
data: [data.path=rooms, "data.counts=[2,2,2,2,2,2]", data.size=16, data.cache={cache}]
groups:
  - command: train-vae
    rows: [{{name: autoencoder}}]
  - scores_of: autoencoder
    rows: [{{name: ae_ica, scoring: [ica=true]}}]
"""


class ForkedWork:
    """Stands in for Popen: the script runs in a fork, with the output and the signals of a new process."""

    def __init__(
        self, command: Sequence[str], stdout: IO[str], preexec_fn: Callable[[], None], **_: object
    ) -> None:
        self.process = os.fork()
        if self.process:
            return
        code = 70
        try:
            os.setpgid(0, 0)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            preexec_fn()
            os.dup2(stdout.fileno(), 1), os.dup2(stdout.fileno(), 2)
            _, _, _, name, *arguments = command  # python -m worldmodel NAME
            code = SCRIPTS[name](arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def fork_cells() -> None:
    child_process.subprocess = SimpleNamespace(Popen=ForkedWork)  # type: ignore[attr-defined]


def training_settings(inputs: Path, out: Path) -> list[str]:
    return [
        *("data.synthetic_episodes=0", "data.splits.val_uids=[]", "validation.num_clips=0", "first_batch=0"),
        *("fit.trackers=[]", "fit.global_batch=2", "fit.micro_batch=2", "fit.checkpoint_every=1"),
        *(f"model.vae={inputs / 'vae'}", f"data.latents={out / 'latents'}"),
    ]


def prepare_sets(inputs: Path) -> None:
    """Data of two robots and a pretrained model."""
    for name in SETS:
        write_robotwin_set(inputs / name, joints=6, frames=10)
    settings = [*training_settings(inputs, inputs), f"data.paths=[{inputs / SOURCE}]", "fit.seed=5"]
    config = load_train_config(TRAINING, settings)
    build_model(config, open_index(config.data)).save_pretrained(inputs / "given")


def run_table2(inputs: Path, out: Path) -> int:
    fork_cells()
    config = {
        "output": str(out),
        "source": [str(inputs / SOURCE)],
        "target": [str(inputs / TARGET)],
        "target_test": str(inputs / TARGET_TEST),
        "transfer_test": str(inputs / TRANSFER_TEST),
        "pretrained": {"acg": str(inputs / "given")},
        "training": TRAINING,
        "training_settings": training_settings(inputs, out),
        "pretraining_steps": 3,
        "finetuning_steps": 3,
        "rollout_settings": ROLLOUTS,
        "rows": ["no_action", "acg"],
        "seeds": [0],
    }
    return table2([written(inputs / f"{out.name}.yaml", config)])


def written(path: Path, config: dict[str, Any]) -> str:
    path.write_text(json.dumps(config))  # JSON is YAML
    return str(path)


def noise_of(*geometry: object) -> np.ndarray:
    """A picture for every room that no other room has."""
    generator = np.random.default_rng(zlib.crc32(repr(geometry).encode()))
    return generator.integers(0, 2**15, (3, 64, 64), dtype=np.uint16)


def run_disentanglement(inputs: Path, out: Path) -> int:
    fork_cells()
    rendered.brightness = noise_of  # rendering takes minutes
    evaluation.check_alignment = lambda *_, **__: {}  # and so does this; it has tests of its own
    study = inputs / "rooms.yaml"
    study.write_text(ROOMS.format(cache=inputs / "cache", configs=PROJECT / "configs/disentanglement"))
    return disentanglement_study([str(study), "--out", str(out), "--seeds", "1", *FEW_SCORES])


def run_identifiability(inputs: Path, out: Path) -> int:
    for name, family in (("concat", "concat"), ("ivae", "ivae")):
        config = CellConfig(
            name=name,
            data=IdentifiabilityDataConfig(latent_dim=3, num_conditions=4, num_samples=1600),
            model=VaeConfig(family=family),  # type: ignore[arg-type]
            optimization=OptimizationConfig(epochs=6),
            num_seeds=2,
            save_every=1,
            out=str(out / "runs" / name),
        )
        train_cell(config, quiet=True)
    collect(out / "runs", out / "results")
    return 0
