"""Generated videos in the folder layouts of benchmarks, from any world model and dataset.

worldarena  {name}_test/{task}_episode_{x}.mp4, summary.json and gt/ for its local evaluation, and
            {name}.tar.gz with model_readme.md and videos/ to submit
ewmbench    {name}_dataset/{task}/episode_{x}/{1,2,3}/ with video/frame_00000.jpg and traj/traj.npy, and
            gt_dataset/ with the same layout

Nothing is uploaded. `results.json` holds the scores that need no large weights.
"""

import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from worldmodel.checked import check_ranges
from worldmodel.cli_errors import one_way_out
from worldmodel.data.video import write_video
from worldmodel.device import Device, Precision
from worldmodel.evaluation.command_line import load_model, run_on_data
from worldmodel.evaluation.held_out import HeldOutClip, HeldOutConfig, held_out_clips
from worldmodel.evaluation.metrics.trajectories import MISSING, trajectory_accuracy
from worldmodel.evaluation.metrics.video import plain_ssim, psnr
from worldmodel.evaluation.predictors import ModelPredictor
from worldmodel.files import new_folder, write_json, write_text
from worldmodel.locator.model import Locator
from worldmodel.types import EpisodeSource, to_uint8


@dataclass(frozen=True)
class SubmitConfig:
    """What is written, and the entries of the model card."""

    output: str = "outputs/submission"  # new folder
    allow_external: bool = False  # also load from other places that the model's config.yaml names
    device: Device = "auto"  # auto (a GPU if there is one), cpu, cuda or mps
    mixed_precision: Precision = "auto"  # of rollouts: no, bf16, or auto = bf16 on cuda, else no
    format: Literal["worldarena", "ewmbench"] = "worldarena"  # layout of the benchmark
    name: str = "worldmodel"  # of the model, in file names
    fps: float = 0.0  # of the videos; frames are repeated or dropped; 0: the model's own
    height: int = 0  # pixels of the videos; 0: the model's own
    width: int = 0  # pixels; 0: the model's own
    generations: int = 3  # of each clip, with different noise (ewmbench)
    num_inference_steps: int = 0  # sampling steps; 0: the number recommended for the model
    seed: int = 0  # of the noise
    locator: str = "locator"  # finds the grippers; empty: no tracks and no trajectory accuracy
    held_out: HeldOutConfig = field(default_factory=HeldOutConfig)  # which clips
    version: str = "1.0"  # of the model, for the card
    organization: str = ""  # for the card
    release_year: int = 0  # for the card; 0: not stated
    source_type: str = "open"  # for the card
    control_type: str = "action"  # for the card

    def __post_init__(self) -> None:
        sizes = {"height": (0, 16384), "width": (0, 16384), "fps": (0, 1e4)}
        check_ranges(self, num_inference_steps=(0, 1000), generations=(1, 1000), **sizes)


@dataclass(frozen=True)
class _Pair:
    """A clip and its generated videos."""

    task: str
    number: int  # of the episode
    real: Float[Tensor, "t 3 H W"]
    made: Sequence[Float[Tensor, "t 3 H W"]]
    prompt: str

    @property
    def stem(self) -> str:
        return f"{self.task}_episode_{self.number}"


def submit(checkpoint: str, source: EpisodeSource, config: SubmitConfig) -> int:
    """Write the folders that a public benchmark scores, from held-out clips; 0 when all is done."""
    model, config, _ = load_model(checkpoint, config)
    clips = held_out_clips(source, model.contract, model.normalizer, config.held_out)
    predictor = ModelPredictor(model, config.num_inference_steps, mixed_precision=config.mixed_precision)
    locator = Locator.from_pretrained(config.locator, model.device) if config.locator else None
    count = config.generations if config.format == "ewmbench" else 1
    rows = []
    with new_folder(config.output) as folder:
        for number in range(len(clips)):
            pair = _generate(predictor, clips[number], number, config.seed, count)
            rows.append(_score(pair, locator))
            write = _write_ewmbench if config.format == "ewmbench" else _write_worldarena
            write(folder, pair, config, model.contract.fps, locator)
        if config.format == "worldarena":
            _finish_worldarena(folder, config, rows)
        mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key != "video"}
        write_json(folder / "results.json", {"mean": mean, "videos": rows})
    print(f"wrote {config.output}: {len(rows)} clips; " + ", ".join(f"{k} {v:.3f}" for k, v in mean.items()))
    return 0


def _generate(predictor: ModelPredictor, clip: HeldOutClip, number: int, seed: int, count: int) -> _Pair:
    given = clip.frames[None, : predictor.num_given]
    commands = predictor.commands(clip)[None]
    made = [predictor(given, commands, len(clip.frames), seed + i, clip)[0] for i in range(count)]
    # Task names come from data and become file names.
    task = re.sub(r"[^\w.-]+", "_", clip.task)[:60].strip(".") or "task"
    return _Pair(task, number, clip.frames, made, (clip.task or "").replace("_", " "))


def _score(pair: _Pair, locator: Locator | None) -> dict[str, float | str]:
    made, real = pair.made[0].clamp(0, 1), pair.real
    # Rounded to 1 / 255, as WorldArena reads them from picture files; the first frame is the given one.
    pictures = [to_uint8(frames[1:]) / 255 for frames in (made, real)]
    row: dict[str, float | str] = {
        "video": pair.stem,
        "psnr": float(psnr(*pictures).mean()),
        "ssim": float(plain_ssim(*pictures).mean()),
    }
    if locator is not None:
        row["trajectory_accuracy"] = trajectory_accuracy(
            gripper_track(locator, made), gripper_track(locator, real)
        )
    return row


def gripper_track(locator: Locator, frames: Float[Tensor, "t 3 H W"]) -> Float[np.ndarray, "t 2 2"]:
    """Positions of both grippers as shares of the image size; -1, -1 where one is not found."""
    found = locator.locate(frames)
    size = frames.new_tensor([frames.shape[-1], frames.shape[-2]])
    places = (found.points[:, :2] / size).numpy()
    return np.where(found.is_visible[:, :2, None].numpy(), places, MISSING).astype(np.float32)


def _write_worldarena(
    folder: Path, pair: _Pair, config: SubmitConfig, fps: float, locator: Locator | None
) -> None:
    rate = config.fps or fps
    for place, frames in ((f"{config.name}_test", pair.made[0]), ("gt", pair.real)):
        write_video(folder / place / f"{pair.stem}.mp4", list(_pictures(frames, config, fps)), rate)
    first = _pictures(pair.real, config, fps)[0]
    (folder / "first_frames").mkdir(exist_ok=True)
    Image.fromarray(first).save(folder / "first_frames" / f"{pair.stem}.png")


def _finish_worldarena(folder: Path, config: SubmitConfig, rows: list[dict[str, float | str]]) -> None:
    stems = [str(row["video"]) for row in rows]
    summary = [
        {
            "gt_path": f"gt/{stem}.mp4",
            "image": f"first_frames/{stem}.png",
            "prompt": [stem.rsplit("_episode_", 1)[0].replace("_", " ")],
        }
        for stem in stems
    ]
    write_json(folder / "summary.json", summary)
    card = {
        "model_name": config.name,
        "version": config.version,
        "organization": config.organization,
        "release_year": config.release_year or None,
        "source_type": config.source_type,
        "control_type": config.control_type,
    }
    write_text(folder / "model_readme.md", f"---\n{yaml.safe_dump(card, sort_keys=False)}---\n")
    with tarfile.open(folder / f"{config.name}.tar.gz", "w:gz") as archive:
        archive.add(folder / "model_readme.md", "model_readme.md", filter=_plain)
        for stem in stems:
            archive.add(folder / f"{config.name}_test" / f"{stem}.mp4", f"videos/{stem}.mp4", filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove machine-specific metadata from an archive entry."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o644
    return entry


def _write_ewmbench(
    folder: Path, pair: _Pair, config: SubmitConfig, fps: float, locator: Locator | None
) -> None:
    episode = f"{pair.task}/episode_{pair.number}"
    for number, frames in enumerate(pair.made, 1):
        place = folder / f"{config.name}_dataset" / episode / str(number)
        _write_frames(place, frames, config, fps, locator)
    truth = folder / "gt_dataset" / episode
    _write_frames(truth, pair.real, config, fps, locator)
    (truth / "prompt").mkdir()
    Image.fromarray(_pictures(pair.real, config, fps)[0]).save(truth / "prompt" / "init_frame.png")
    write_text(truth / "prompt" / "prompt.txt", pair.prompt + "\n")


def _write_frames(
    place: Path, frames: Float[Tensor, "t 3 H W"], config: SubmitConfig, fps: float, locator: Locator | None
) -> None:
    (place / "video").mkdir(parents=True)
    for number, picture in enumerate(_pictures(frames, config, fps)):
        Image.fromarray(picture).save(place / "video" / f"frame_{number:05d}.jpg", quality=95)
    if locator is not None:
        (place / "traj").mkdir()
        np.save(
            place / "traj" / "traj.npy", gripper_track(locator, _resampled(frames, config, fps).clamp(0, 1))
        )


def _pictures(
    frames: Float[Tensor, "t 3 H W"], config: SubmitConfig, fps: float
) -> UInt8[np.ndarray, "n H W 3"]:
    """The frames at the requested size and rate."""
    frames = _resampled(frames, config, fps)
    size = (config.height or frames.shape[-2], config.width or frames.shape[-1])
    if size != tuple(frames.shape[-2:]):
        frames = F.interpolate(frames, size, mode="bicubic", antialias=True)
    return to_uint8(frames).permute(0, 2, 3, 1).contiguous().numpy()


def _resampled(
    frames: Float[Tensor, "t 3 H W"], config: SubmitConfig, fps: float
) -> Float[Tensor, "n 3 H W"]:
    if not config.fps or config.fps == fps:
        return frames
    count = max(1, round(len(frames) * config.fps / fps))
    return frames[torch.arange(count).mul(fps / config.fps).floor().long().clamp(max=len(frames) - 1)]


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    return run_on_data(SubmitConfig, submit, "Write generated videos in a benchmark's layout.", argv)
