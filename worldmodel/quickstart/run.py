"""Inspect, choose, fine-tune, roll out, evaluate, report: the steps of `worldmodel quickstart`.

Every step is a separate command whose settings are printed, so that it can be repeated with changes.
"""

import json
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.tools.inspect_dataset import (
    check_videos,
    format_summary,
    summarize,
    write_pictures,
)
from worldmodel.checked import read_json
from worldmodel.evaluation.command_line import open_for_model
from worldmodel.evaluation.held_out import HeldOutConfig
from worldmodel.files import check_apart, write_json
from worldmodel.quickstart.baseline import FILE, train_baseline
from worldmodel.quickstart.budget import BUSY, Budget, Speeds, share_out
from worldmodel.quickstart.choices import Plan, make_plan, size_choice
from worldmodel.quickstart.commands import (
    CHECKPOINTS,
    Quickstart,
    command,
    head_settings,
    kept_step,
    length_settings,
    often,
    training_settings,
)
from worldmodel.quickstart.page import Spent, headline, write_quickstart_page
from worldmodel.quickstart.pictures import write_clips
from worldmodel.quickstart.trial import encoding_time, try_speeds
from worldmodel.signals import end_on_signals
from worldmodel.training.world_model import load_train_config

VIDEOS = 3  # of the rollout report
HELD_OUT = HeldOutConfig(episodes=24, clips_per_episode=2)
NOT_FOLLOWED = 3  # exit code of `sensitivity`: a finding, not a failure
NOTES = "quickstart.json"  # the request and what was decided, so that the same command can resume
GO_ON = "what is done is in {}, the same command goes on from there"
TRIED = ("zero", "shuffled", "reversed")  # negative controls


@dataclass(frozen=True)
class Looked:
    """What was found in the data, and decided from it."""

    plan: Plan
    settings: list[str]  # of the training
    num_frames: int  # of all episodes
    first: int  # place of the first readable episode


def run(asked: Quickstart, say: Callable[[str], None] = print) -> Path:
    """Run all steps and return the report's path; resumes after a signal."""
    with end_on_signals(GO_ON.format(asked.out)):
        return _run(asked, say)


def _run(asked: Quickstart, say: Callable[[str], None]) -> Path:
    notes = _read_notes(asked)
    started = time.monotonic()
    looked = _inspect(asked, notes, say)
    if "budget" not in notes:
        notes = {**notes, "budget": asdict(decide(asked, looked, started, say))}
        write_json(asked.out / NOTES, notes)
    # Decided once, so that a stopped run ends equal.
    budget = Budget(**{**notes["budget"], "speeds": Speeds(**notes["budget"]["speeds"])})
    for name, minutes, what in budget.parts():
        say(f"plan      {name:<11} {minutes:>5} min: {what}")
    _train(asked, looked.settings, budget, say)
    trained = time.monotonic()
    _evaluate(asked, say)
    source = open_for_model(str(asked.model), asked.data, asked.mapping)
    write_clips(asked.model, source, HELD_OUT, asked.out)
    spent = Spent(budget, trained - started, time.monotonic() - trained, kept_step(asked.base, budget.steps))
    if asked.baseline:
        say("baseline  a direct predictor is trained for the same time")
        data = load_train_config(asked.preset, looked.settings).data
        write_json(asked.out / FILE, train_baseline(data, source, asked, HELD_OUT))
    name = asked.name or Path(asked.data).resolve().name
    report = write_quickstart_page(asked.out, name, looked.plan, spent)
    say(f"$ worldmodel play {shlex.join([str(asked.model), '--dataset', asked.data])}  # takes the controls")
    say(headline(read_json(asked.out / "sensitivity" / "sensitivity.json"), "").title)
    return report


def decide(asked: Quickstart, looked: Looked, started: float, say: Callable[[str], None]) -> Budget:
    """How the minutes are shared out; what was done since `started` counts."""
    minutes = encoding_time(asked, looked.settings, looked.first, looked.num_frames) / 60
    say(f"plan      {asked.minutes:g} minutes in all on {torch.get_num_threads()} thread(s), of which")
    say(f"plan      frames      {minutes:5.1f} min: each is decoded and encoded once; then steps are timed")
    speeds = try_speeds(asked, looked.settings)
    at_rest = 1 - speeds.waiting
    if speeds.waiting > BUSY:
        say(
            f"busy      other programs share the processor: a step took {speeds.step / at_rest:.2f} s, "
            f"{speeds.step:.2f} s without waiting. The plan is for a machine at rest: beside them, it takes "
            f"{1 / at_rest:.1f} times as long"
        )
    num_clips = HELD_OUT.clips_per_episode * min(HELD_OUT.episodes, looked.plan.num_test)
    return share_out(asked.minutes, at_rest * (time.monotonic() - started), speeds, num_clips)


def _train(asked: Quickstart, settings: Sequence[str], budget: Budget, say: Callable[[str], None]) -> None:
    """The base, then its picture head where there is time for one."""
    length = [*length_settings(budget.steps), f"output={asked.base}", "--resume"]
    command("train", [asked.preset, *settings, *length], say)
    if (kept := kept_step(asked.base, budget.steps)) < budget.steps:
        say(f"plateau   the weights of step {kept} are used: none later did better on held-out episodes")
    if budget.head_steps:
        middle = CHECKPOINTS // 2 * often(budget.steps)
        learned = [
            f"predictions.clips={budget.head_clips}",
            f"predictions.early={asked.base}/checkpoints/step_{middle:08d}",
        ]
        length = [*length_settings(budget.head_steps), f"output={asked.head}", "--resume"]
        command("train", [*head_settings(asked, settings, asked.base_model), *learned, *length], say)


def _read_notes(asked: Quickstart) -> dict[str, Any]:
    """The notes of an interrupted quickstart with the same arguments in this folder; else new ones."""
    path, wanted = asked.out / NOTES, json.loads(json.dumps(asdict(asked), default=str))
    if path.is_file() and (notes := read_json(path)).get("asked") == wanted:
        return notes
    if asked.out.exists():
        raise ValueError(f"{asked.out} exists already: name another folder with --out")
    check_apart(asked.out, asked.data)
    return {"asked": wanted}


def _inspect(asked: Quickstart, notes: dict[str, Any], say: Callable[[str], None]) -> Looked:
    source = open_dataset(asked.data, camera=asked.camera, mapping=asked.mapping, verify=False)
    summary = summarize(source, range(len(source)), "skip")
    say(format_summary(summary))
    for reason in check_videos(summary, "skip"):
        say(f"damaged   {reason}")
    facts = summary.facts
    plan = make_plan(facts)
    if summary.skipped:
        plan = replace(plan, overrides=(*plan.overrides, "data.on_bad=skip"))
    settings = training_settings(asked, plan, facts)
    clip = load_train_config(asked.preset, settings).data.clip
    plan = replace(plan, choices=(*plan.choices, size_choice(facts[0].size, clip)))
    asked.out.mkdir(parents=True, exist_ok=True)
    write_json(asked.out / NOTES, notes)
    write_pictures(source, summary, asked.out, "skip")
    if summary.picture_lag:
        say(f"lag       {summary.picture_lag}")
    for choice in plan.choices:
        say(f"{choice.setting:<9} {choice.value}: {choice.reason}")
    return Looked(plan, settings, sum(one.num_frames for one in facts), summary.good[0])


def _evaluate(asked: Quickstart, say: Callable[[str], None]) -> None:
    model = [str(asked.model), asked.data, *(["--mapping", asked.mapping] if asked.mapping else [])]
    held_out = [
        f"held_out.episodes={HELD_OUT.episodes}",
        f"held_out.clips_per_episode={HELD_OUT.clips_per_episode}",
        *([f"device={asked.device}"] if asked.device != "auto" else []),
    ]
    shown = [f"controls=[{','.join(TRIED)}]", "nearest=true", f"videos={VIDEOS}"]
    command("rollout", [*model, *held_out, *shown, f"output={asked.out}/rollouts"], say)
    few = ["response_clips=2", "scales=[0.5,1.0,2.0]", f"output={asked.out}/sensitivity"]
    command("sensitivity", [*model, *held_out, *few], say, fine=(0, NOT_FOLLOWED))
