"""Short trials on this machine, whose models are discarded: what frames, steps and predictions take."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from robotwin_adapters.open_dataset import open_dataset
from worldmodel.checkpoint.folder import read_description
from worldmodel.data.clips import clip_pictures
from worldmodel.device import find_device
from worldmodel.models.vae import encode_video, load_vae
from worldmodel.quickstart.budget import Speeds, Stopwatch, at_rest
from worldmodel.quickstart.commands import Quickstart, command, head_settings
from worldmodel.training.datasets import DataConfig, open_clips, open_index
from worldmodel.training.predictions import AT_ONCE, PredictionsConfig, recorded_clips
from worldmodel.training.world_model import load_train_config
from worldmodel.types import FRAMES_PER_LATENT

STEPS = 4  # the fastest one counts: the first loads and warms up, and other work may come between
ENCODED = 8 * FRAMES_PER_LATENT + 1  # frames
WITH_WRITING = 2.0  # times decoding and encoding: frames and latents are hashed and written too


def encoding_time(asked: Quickstart, settings: Sequence[str], place: int, num_frames: int) -> float:
    """Seconds to decode and encode so many frames once, from some of the episode at this place."""
    config = load_train_config(asked.preset, settings)
    vae = load_vae(config.model.vae)
    episode = open_dataset(asked.data, camera=asked.camera, mapping=asked.mapping, verify=False)[place]
    watch = Stopwatch()
    frames = clip_pictures(
        episode, [number % episode.num_frames for number in range(ENCODED)], config.data.clip
    )
    encode_video(vae, frames[None].float() / 127.5 - 1)
    return WITH_WRITING * watch() / ENCODED * num_frames


def try_speeds(asked: Quickstart, settings: Sequence[str]) -> Speeds:
    """From a few steps of base and head; latents and frames are kept."""
    folder = asked.out / "trial"
    shutil.rmtree(folder, ignore_errors=True)  # of an interrupted trial
    short = [
        f"fit.steps={STEPS}",
        "fit.log_every=1",
        "fit.validate_every=0",
        "fit.optim.warmup_steps=1",
    ]
    look = ["validation.num_clips=1", "validation.num_rollouts=1", "validation.num_inference_steps=1"]
    command("train", [asked.preset, *settings, *short, *look, f"output={folder}/run"])
    config = load_train_config(asked.preset, settings)
    wall, cpu = fastest_step(folder / "run")
    on_cpu = find_device(config.fit.machine.device).type == "cpu"  # else it may rightly wait, for the GPU
    step = at_rest(wall, cpu) if on_cpu else wall
    speeds = Speeds(step, waiting=1 - step / wall)
    has_own = config.model.compositor_width or config.model.head is not None
    if not has_own and config.fit.machine.device == "cpu":  # the head's preset is for a CPU
        rollout = _seconds_to_record(config.data, folder / "run")
        head = [*head_settings(asked, settings, folder / "run/model"), f"predictions.clips={AT_ONCE}"]
        command("train", [*head, *short, f"output={folder}/head"])
        speeds = replace(speeds, head_step=at_rest(*fastest_step(folder / "head")), rollout=rollout)
    shutil.rmtree(folder)
    return speeds


def _seconds_to_record(data: DataConfig, run: Path) -> float:
    """Seconds for the predictions of a clip, its reading included."""
    known = read_description(run / "model")
    clips = open_clips(data, open_index(data), "train", known.normalizer, None, True, known.config.reader)
    watch = Stopwatch()
    config = PredictionsConfig(f"{run}_predictions", AT_ONCE)
    made = recorded_clips(f"{run}/model", clips, config)
    return watch() / len(made)


def fastest_step(run: Path) -> tuple[float, float]:
    """Wall and CPU seconds."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return min((line["seconds"], line["cpu_seconds"]) for line in lines if line["kind"] == "train")
