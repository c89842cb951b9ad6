"""The runs of docs/results/real_robots.md: what comes behind the training of the base.

python eval/study.py real_robots SET DATA BASE OUTPUT --model head HEAD --model longer RUN

BASE, HEAD and RUN are outputs of `worldmodel train`: of the base, of a picture head on it, and of any other
model of the same data. Every step leaves a file in OUTPUT and is passed over where that is there already.
"""

import argparse
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from robotwin_adapters.open_dataset import open_dataset
from studies.real_robots.page import control_leads, lead, lead_text, read_split, table, write_sheet
from studies.real_robots.protocol import CLIP, CLIPS_PER_EPISODE, held_out_episodes
from studies.real_robots.rows import (
    Judged,
    camera_frames,
    camera_size_videos,
    clip_videos,
    judge_rows,
)
from worldmodel.cli_errors import one_way_out
from worldmodel.data.dataset import ClipDataset
from worldmodel.data.index import EpisodeIndex, index_episodes
from worldmodel.data.kept_frames import KeptSource
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.evaluation.metrics.clips import score_clip
from worldmodel.evaluation.nearest_frame import NearestFrames
from worldmodel.files import write_json
from worldmodel.models.model import WorldModel
from worldmodel.quickstart.direct import train_direct

TRIAL_STEPS = 8
TRAINING_STEP = 4  # recorded frames between the starts of training clips


def opened(data: str, output: Path, step: int, name: str) -> EpisodeIndex:
    """The set with frames decoded once, as the protocol divides it."""
    config = replace(CLIP, step=step)
    source = KeptSource(open_dataset(data, verify=False), str(output / "frames"), config)
    return index_episodes([source], config, held_out_episodes(name).splits, on_bad="skip")


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """All steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set")
    parser.add_argument("data")
    parser.add_argument("base", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", choices=("direct", "judge"), help="one step")
    parser.add_argument("--model", nargs=2, action="append", default=[], metavar=("ROW", "RUN"), help="a row")
    parser.add_argument("--direct-minutes", type=float, default=0.0, help="0: as long as the base")
    parser.add_argument("--no-direct", action="store_true", help="judge without the direct predictor")
    run(parser.parse_args(argv))
    return 0


def run(asked: argparse.Namespace) -> None:
    """What is asked for and not there yet."""
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    output: Path = asked.output
    output.mkdir(parents=True, exist_ok=True)
    index = opened(asked.data, output, TRAINING_STEP, asked.set)
    model = WorldModel.from_pretrained(asked.base / "model")
    clips = ClipDataset(index, "train", model.normalizer, on_bad="skip")
    if asked.only in (None, "direct") and not asked.no_direct:
        _direct(asked, clips)
    if asked.only in (None, "judge"):
        _judge(asked, model, clips)


def _direct(asked: argparse.Namespace, clips: ClipDataset) -> None:
    folder, plan = asked.output / "direct", asked.output / "direct_plan.json"
    if not plan.exists():
        minutes = asked.direct_minutes or base_minutes(asked.base)
        started = time.process_time()
        train_direct(clips, TRIAL_STEPS, asked.output / f"trial{time.time():.0f}")
        seconds = (time.process_time() - started) / (TRIAL_STEPS + 1)
        write_json(plan, {"minutes": minutes, "seconds": seconds, "steps": int(60 * minutes / seconds)})
    _, result = train_direct(clips, json.loads(plan.read_text())["steps"], folder)
    note(asked.output, "direct", result.cpu_seconds)


def base_minutes(base: Path) -> float:
    """Minutes of one core that the training of the base took, without encoding."""
    last = sorted((base / "checkpoints").glob("step_*"))[-1]
    return float(json.loads((last / "state.json").read_text())["cpu_seconds"]) / 60


def _judge(asked: argparse.Namespace, model: WorldModel, clips: ClipDataset) -> None:
    splits, index = held_out_episodes(asked.set).splits, clips.index
    chosen = {
        split: held_out_clips(
            index.sources[0],
            model.contract,
            model.normalizer,
            HeldOutConfig(split, splits, 0, CLIPS_PER_EPISODE, on_bad="skip"),
            model.trained_on,
        )
        for split in ("val", "test")
    }
    rows = dict(asked.model)
    models = {row: WorldModel.from_pretrained(Path(run) / "model") for row, run in rows.items()}
    heads = {row: one.head for row, one in models.items() if one.head is not None}
    if not heads:
        raise ValueError(f"--model names no model with a picture head: expected ROW RUN, got {asked.model}")
    others = {row: one for row, one in models.items() if one.head is None}
    direct = None
    if not asked.no_direct:
        direct, _ = train_direct(clips, _planned(asked.output), asked.output / "direct")
    judged = Judged(model, heads, direct, others, chosen, index)
    started = time.process_time()
    judge_rows(judged, asked.output)
    _write_results(judged, asked)
    note(asked.output, "judge", time.process_time() - started)


def _planned(output: Path) -> int:
    return int(json.loads((output / "direct_plan.json").read_text())["steps"])


def _write_results(judged: Judged, asked: argparse.Namespace) -> None:
    """results.md, and a sheet of clips: truth, base, head, direct, nearest frame."""
    file, text = asked.output / "clips.jsonl", []
    for split in judged.clips:
        records = read_split(file, split)
        text += [f"## {split}", table(records), ""]
        first, *more = judged.heads
        others = ["base", "nearest", *judged.others, *(f"{row}/true" for row in more)]
        others += [] if judged.direct is None else ["direct/true"]
        for other in others:
            text.append(f"{first}/true before {other}: {lead_text(lead(records, f'{first}/true', other))}")
        for name in (first,) if judged.direct is None else (first, "direct"):
            leads, holds = control_leads(records, name)
            text += [f"{name} {key}: {lead_text(one)} {holds[key]}" for key, one in leads.items()]
    (asked.output / "results.md").write_text("\n".join(text) + "\n")
    clips, scored = judged.clips["test"], read_split(file, "test")
    shown = f"{next(iter(judged.heads))}/true"
    moving = [(one["rows"][shown]["moving"] or 0.0, number) for number, one in enumerate(scored)]
    order = [number for _, number in sorted(moving)]
    chosen = [order[int(share * (len(order) - 1))] for share in (1.0, 0.75, 0.5, 0.25, 0.0)]
    nearest, rows, large, own = NearestFrames(judged.index, judged.model.normalizer), [], [], []
    source = open_dataset(asked.data, verify=False)
    for number in chosen:
        clip, videos = clips[number], clip_videos(judged, clips, number, nearest)
        rows.append((clip.frames[0], clip.frames[1:]))
        names = [name for name in ("base", shown, "direct/true", "nearest") if name in videos]
        rows += [(clip.frames[0], videos[name]) for name in names]
        frames = camera_frames(source, judged, clip)
        at_size = camera_size_videos(judged, clip, frames, number)
        large += [(frames[0], frames[1:]), *((frames[0], at_size[name]) for name in ("base", "head"))]
        scores = {name: asdict(score_clip(video, frames[1:], frames[0])) for name, video in at_size.items()}
        own.append({"uid": clip.uid, "split": "own", "rows": scores})
    write_sheet(asked.output / "sheet.png", rows)
    write_sheet(asked.output / "camera_size.png", large, scale=1)
    write_json(asked.output / "camera_size.json", own)


def note(output: Path, name: str, seconds: float) -> None:
    """Minutes of one core, in one file."""
    file = output / "spent.json"
    spent = json.loads(file.read_text()) if file.exists() else {}
    write_json(file, {**spent, name: round(seconds / 60, 2)})
