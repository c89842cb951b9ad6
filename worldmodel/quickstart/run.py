"""Inspect, choose, fine-tune, roll out, evaluate, report: the steps of `worldmodel quickstart`.

Every step is a separate command whose settings are printed, so that it can be repeated with changes.
"""

import json
import shlex
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.tools.inspect_dataset import (
    check_videos,
    format_summary,
    summarize,
    write_pictures,
)
from worldmodel.checked import read_json
from worldmodel.cli_errors import STOPPED, CommandError, Stopped
from worldmodel.evaluation.command_line import open_for_model
from worldmodel.evaluation.held_out import HeldOutConfig
from worldmodel.evaluation.rollouts import run as rollouts
from worldmodel.evaluation.sensitivity import run as sensitivity
from worldmodel.files import check_apart, write_json
from worldmodel.quickstart.baseline import FILE, train_baseline
from worldmodel.quickstart.choices import Plan, make_plan, size_choice
from worldmodel.quickstart.page import Spent, write_quickstart_page
from worldmodel.signals import end_on_signals
from worldmodel.training import world_model as training
from worldmodel.training.world_model import load_train_config

TRIAL_STEPS = 4  # the first one, which loads and warms up, is not counted
LEAST_STEPS, MOST_STEPS = 20, 20_000
EVALUATION_SHARE = 0.15  # of all minutes: rollouts, controls and report
MOST_VIDEOS = 48  # clips whose videos are written; the report shows best, middle and worst
HELD_OUT = HeldOutConfig(episodes=24, clips_per_episode=2)
NOT_FOLLOWED = 3  # exit code of `sensitivity`: a finding, not a failure
COMMANDS = {"train": training.main, "rollout": rollouts.main, "sensitivity": sensitivity.main}
NOTES = "quickstart.json"  # the request and the result of the trial, so that the same command can resume
GO_ON = "what is done is in {}, the same command goes on from there"
TRIED = ("zero", "shuffled", "reversed")  # negative controls


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


def run(asked: Quickstart, say: Callable[[str], None] = print) -> Path:
    """Run all steps and return the report's path; resumes after a signal."""
    with end_on_signals(GO_ON.format(asked.out)):
        return _run(asked, say)


def _run(asked: Quickstart, say: Callable[[str], None]) -> Path:
    notes = _read_notes(asked)
    started = time.monotonic()
    plan = _inspect(asked, notes, say)
    settings = _training_settings(asked, plan)
    if "steps" not in notes:
        say(
            f"plan      {asked.minutes:g} minutes in all: frames are encoded once, then training, then about "
            f"{EVALUATION_SHARE:.0%} of the time for the evaluation"
        )
        seconds = _trial(asked, settings)
        steps = steps_in_time(asked.minutes, time.monotonic() - started, seconds)
        write_json(asked.out / NOTES, notes := {**notes, "seconds": seconds, "steps": steps})
    seconds, steps = notes["seconds"], notes["steps"]  # decided once, so that a stopped run ends equal
    say(f"{seconds:.2f} s a step: {steps} steps, about {seconds * steps / 60:.0f} minutes")
    length = [*_length_settings(steps), f"output={asked.out}/run", "--resume"]
    _command("train", [asked.preset, *settings, *length], say)
    trained = time.monotonic()
    _evaluate(asked, say)
    spent = Spent(steps, seconds, trained - started, time.monotonic() - trained)
    if asked.baseline:
        say("baseline  a direct predictor is trained for the same time")
        data = load_train_config(asked.preset, settings).data
        source = open_for_model(f"{asked.out}/run/model", asked.data, asked.mapping)
        write_json(asked.out / FILE, train_baseline(data, source, asked.out, HELD_OUT))
    name = asked.name or Path(asked.data).resolve().name
    return write_quickstart_page(asked.out, name, plan, spent)


def steps_in_time(minutes: float, spent: float, seconds_a_step: float) -> int:
    """Training steps that fit between the seconds spent so far and the evaluation."""
    left = 60 * minutes * (1 - EVALUATION_SHARE) - spent
    return max(LEAST_STEPS, min(MOST_STEPS, int(left / seconds_a_step)))


def _read_notes(asked: Quickstart) -> dict[str, Any]:
    """The notes of an interrupted quickstart with the same arguments in this folder; else new ones."""
    path, wanted = asked.out / NOTES, json.loads(json.dumps(asdict(asked), default=str))
    if path.is_file() and (notes := read_json(path)).get("asked") == wanted:
        return notes
    if asked.out.exists():
        raise ValueError(f"{asked.out} exists already: name another folder with --out")
    check_apart(asked.out, asked.data)
    return {"asked": wanted}


def _inspect(asked: Quickstart, notes: dict[str, Any], say: Callable[[str], None]) -> Plan:
    source = open_dataset(asked.data, camera=asked.camera, mapping=asked.mapping, verify=False)
    summary = summarize(source, range(len(source)), "skip")
    say(format_summary(summary))
    for reason in check_videos(summary, "skip"):
        say(f"damaged   {reason}")
    facts = summary.facts
    plan = make_plan(facts)
    if summary.skipped:
        plan = replace(plan, overrides=(*plan.overrides, "data.on_bad=skip"))
    clip = load_train_config(asked.preset, _training_settings(asked, plan)).data.clip
    plan = replace(plan, choices=(*plan.choices, size_choice(facts[0].size, clip)))
    asked.out.mkdir(parents=True, exist_ok=True)
    write_json(asked.out / NOTES, notes)
    write_pictures(source, summary, asked.out, "skip")
    if summary.picture_lag:
        say(f"lag       {summary.picture_lag}")
    for choice in plan.choices:
        say(f"{choice.setting:<9} {choice.value}: {choice.reason}")
    return plan


def _training_settings(asked: Quickstart, plan: Plan) -> list[str]:
    return [
        f"data.paths={json.dumps([asked.data])}",
        f"data.latents={asked.out}/latents",
        *([f"data.mapping={json.dumps(asked.mapping)}"] if asked.mapping else []),
        *plan.overrides,
        *asked.extra,
    ]


def _trial(asked: Quickstart, settings: Sequence[str]) -> float:
    """Seconds per step, from a few steps that are then discarded; the latents are kept."""
    folder = asked.out / "trial"
    shutil.rmtree(folder, ignore_errors=True)  # of an interrupted trial
    short = [
        f"fit.steps={TRIAL_STEPS}",
        "fit.log_every=1",
        "fit.validate_every=0",
        "fit.optim.warmup_steps=1",
    ]
    look = ["validation.num_clips=1", "validation.num_rollouts=1", "validation.num_inference_steps=1"]
    _command("train", [asked.preset, *settings, *short, *look, f"output={folder}"])
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    shutil.rmtree(folder)
    return statistics.median([line["seconds"] for line in lines if line["kind"] == "train"][1:])


def _length_settings(steps: int) -> list[str]:
    often = max(1, steps // 4)
    return [
        f"fit.steps={steps}",
        f"fit.optim.warmup_steps={min(20, steps // 4)}",
        f"fit.checkpoint_every={often}",
        f"fit.validate_every={often}",
    ]


def _evaluate(asked: Quickstart, say: Callable[[str], None]) -> None:
    model = [f"{asked.out}/run/model", asked.data, *(["--mapping", asked.mapping] if asked.mapping else [])]
    held_out = [
        f"held_out.episodes={HELD_OUT.episodes}",
        f"held_out.clips_per_episode={HELD_OUT.clips_per_episode}",
    ]
    shown = [f"controls=[{','.join(TRIED)}]", "nearest=true", f"videos={MOST_VIDEOS}"]
    _command("rollout", [*model, *held_out, *shown, f"output={asked.out}/rollouts"], say)
    few = ["response_clips=2", "scales=[0.5,1.0,2.0]", f"output={asked.out}/sensitivity"]
    _command("sensitivity", [*model, *held_out, *few], say, fine=(0, NOT_FOLLOWED))


def _command(
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
