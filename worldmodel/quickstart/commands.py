"""The commands that `worldmodel quickstart` consists of: their settings, and how they are run."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from worldmodel.cli_errors import STOPPED, CommandError, Stopped
from worldmodel.data.suggested_config import EpisodeFacts
from worldmodel.evaluation.rollouts import run as rollouts
from worldmodel.evaluation.sensitivity import run as sensitivity
from worldmodel.quickstart.choices import Plan
from worldmodel.training import world_model as training
from worldmodel.training.loop.checkpoints import CheckpointStore
from worldmodel.training.world_model import load_train_config

COMMANDS = {"train": training.main, "rollout": rollouts.main, "sensitivity": sensitivity.main}
HEAD = "desk/head"  # preset that trains a picture head
CHECKPOINTS = 4  # of a training; the middle one makes half of the predictions that a head learns from
STOPS = 16  # that a training may have without losing its middle checkpoint: each writes one
MOST_KEPT = 4e9  # bytes of frames that are decoded once and kept; of more, clips are decoded when used


@dataclass(frozen=True)
class Quickstart:
    """The arguments of the command."""

    data: str
    out: Path
    minutes: float  # wall time of everything, from files to report
    preset: str  # training config that is completed by the choices
    camera: str | None = None
    mapping: str | None = None
    baseline: bool = False  # also train a direct predictor for the same time
    extra: tuple[str, ...] = ()  # further settings of the training config
    name: str = ""  # of the data, for the report's title
    device: str = "auto"  # of training and evaluation

    @property
    def base(self) -> Path:
        """Output folder of the base model's training."""
        return self.out / "run"

    @property
    def base_model(self) -> Path:
        """The base where the loss on held-out episodes was lowest: few episodes are soon learned by heart."""
        best = self.base / "best"
        return best if best.exists() else self.base / "model"

    @property
    def head(self) -> Path:
        """Output folder of the picture head's training; missing if there was no time for one."""
        return self.out / "head"

    @property
    def model(self) -> Path:
        """The finished model."""
        return self.head / "model" if self.head.exists() else self.base_model


def training_settings(asked: Quickstart, plan: Plan, facts: Sequence[EpisodeFacts]) -> list[str]:
    """Of the base, without its length."""
    paths = f"data.paths={json.dumps([asked.data])}"
    clip = load_train_config(asked.preset, [paths, *asked.extra]).data.clip
    size = 3 * clip.height * clip.width * sum(one.num_frames for one in facts)
    is_kept = size <= MOST_KEPT and not isinstance(clip.camera, tuple)
    return [
        paths,
        f"data.latents={asked.out}/latents",
        *([f"fit.machine.device={asked.device}"] if asked.device != "auto" else []),
        *([f"data.frames={asked.out}/frames"] if is_kept else []),
        *([f"data.mapping={json.dumps(asked.mapping)}"] if asked.mapping else []),
        *plan.overrides,
        *asked.extra,
    ]


def head_settings(asked: Quickstart, settings: Sequence[str], base: Path) -> list[str]:
    """Of a head on this base model, from the same data, without its length."""
    data = asdict(load_train_config(asked.preset, settings).data)
    recorded = base.parent.with_name(f"{base.parent.name}_predictions")
    return [HEAD, f"start_from={base}", f"data={json.dumps(data)}", f"predictions.folder={recorded}"]


def kept_step(run: Path, steps: int) -> int:
    """The step of a finished training of so many steps whose weights are used."""
    best = CheckpointStore(run / "checkpoints", 1).best()
    return int(best.rpartition("_")[2]) if best else steps


def often(steps: int) -> int:
    """Steps between checkpoints."""
    return max(1, steps // CHECKPOINTS)


def length_settings(steps: int) -> list[str]:
    """How long to train, and what follows from it."""
    return [
        f"fit.steps={steps}",
        f"fit.optim.warmup_steps={min(20, steps // 4)}",
        f"fit.checkpoint_every={often(steps)}",
        f"fit.validate_every={often(steps)}",
        f"fit.keep_checkpoints={CHECKPOINTS + STOPS}",
    ]


def command(
    name: str,
    arguments: list[str],
    say: Callable[[str], None] = lambda _: None,
    fine: tuple[int, ...] = (0,),
) -> None:
    """Run one of the other commands, which prints its own errors."""
    say(f"$ worldmodel {name} {shlex.join(arguments)}")
    code = COMMANDS[name](arguments)
    if code == STOPPED:
        raise Stopped("quickstart was stopped, the same command goes on from there")
    if code not in fine:
        raise _StepError(f"quickstart ends: `worldmodel {name}` ended with exit code {code}", code)


class _StepError(CommandError):
    """A step failed, and has printed the reason."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code
