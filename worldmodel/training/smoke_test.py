"""An end-to-end smoke test on a CPU: collect, encode, train 2 steps, resume to 4, roll out, write metrics.

worldmodel smoke-test --output outputs/debug                          every regime, MCL, full, LoRA
worldmodel smoke-test --output outputs/debug --only lacg+exact+lora   one of them

It tests that the parts work together; the numbers after 4 steps mean nothing.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from robotwin_adapters.tabletop.collect import collect_all
from robotwin_adapters.tabletop.record import RecordingConfig
from worldmodel.cli_errors import one_way_out
from worldmodel.config import load_config
from worldmodel.data.clips import cut_clip
from worldmodel.data.video import write_video
from worldmodel.evaluation.metrics.video import psnr
from worldmodel.files import write_json
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.report.videos import side_by_side
from worldmodel.shipped import PRESETS
from worldmodel.training.autoencoder import AutoencoderConfig
from worldmodel.training.autoencoder import train as train_autoencoder
from worldmodel.training.datasets import DataConfig, open_index
from worldmodel.training.encode_latents import main as encode_latents
from worldmodel.training.world_model import TrainConfig
from worldmodel.training.world_model import train as train_world_model
from worldmodel.types import to_unit_range

CONFIGS = PRESETS / "debug"
REGIMES = {
    "no_action": ["model.regime=no_action"],
    "acg": ["model.regime=acg"],
    "acg+poses": ["model.actions.pose_maps={}", "data.action_space=pose_commands"],
    "acg+exact": ["model.regime=acg", "model.mcl.mode=exact"],
    "lacg": ["model.regime=lacg"],
    "lacg+exact": ["model.regime=lacg", "model.mcl.mode=exact"],
}
VARIANTS = {
    **REGIMES,
    **{f"{name}+lora": [*overrides, "model.lora.rank=2"] for name, overrides in REGIMES.items()},
}


def prepare(output: Path) -> list[str]:
    """Create episodes of two robots, an autoencoder and latents; returns the config overrides to use them."""
    episodes, size = output / "episodes", 32
    robots = [RecordingConfig("babble", name, width=size, height=size) for name in ("finch", "heron")]
    collect_all(episodes, robots, episodes=2, seed=0, workers=1)
    data = [f"data.paths=[{episodes}]", "data.synthetic_episodes=0"]
    data += ["data.splits.val_uids=[babble/finch/data/episode1]"]
    overrides = [*data, f"output={output / 'autoencoder'}"]
    config = load_config(AutoencoderConfig, str(CONFIGS / "autoencoder.yaml"), overrides)
    assert train_autoencoder(config, resume=True)
    overrides = [*data, f"data.latents={output / 'latents'}", f"model.vae={output / 'autoencoder' / 'vae'}"]
    assert encode_latents([str(CONFIGS / "world_model.yaml"), *overrides]) == 0
    return overrides


def run_variant(output: Path, name: str, overrides: Sequence[str]) -> dict[str, float]:
    """Train 2 steps, resume to 4, reload the result, roll out beyond one clip, write metrics."""
    folder = output / name
    overrides = [*overrides, *VARIANTS[name], f"output={folder}"]
    for steps, resume in ((2, False), (4, True)):
        config = load_config(
            TrainConfig, str(CONFIGS / "world_model.yaml"), [*overrides, f"fit.steps={steps}"]
        )
        assert train_world_model(config, resume)
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["long_rollout_psnr"] = roll_out(config.data, folder)
    write_json(folder / "metrics.json", metrics)
    return metrics


def roll_out(data: DataConfig, folder: Path) -> float:
    """Roll out two chunks of the held-out episode with the saved model and its recorded actions.

    PSNR in dB.
    """
    model = WorldModel.from_pretrained(folder / "model").eval()
    index = open_index(data)
    episode = index.open(index.of("val")[0])
    num_actions = 2 * (model.contract.num_frames - 1)
    frames, _ = cut_clip(episode, 0, replace(data.clip, num_frames=num_actions + 1))
    model.contract.check(fps=episode.fps)
    model.normalizer.check_names(episode.embodiment, episode.action_names)
    is_driven = model.config.regime != "no_action"
    rollout = RolloutPipeline(model)(
        frames[None, :1],
        episode.robot_actions[None, :num_actions] if is_driven else None,
        embodiment=episode.embodiment,
        num_frames=num_actions + 1,
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(0),
        camera=episode.cameras.get(model.contract.camera),
    )
    real, made = to_unit_range(frames), rollout.frames[0]
    write_video(folder / "rollout.mp4", iter(side_by_side(real, made)), model.contract.fps)
    return psnr(made[1:], real[1:]).mean().item()


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Run every variant, or the selected ones; prints one line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    arguments = parser.parse_args(argv)
    overrides = prepare(arguments.output)
    for name in arguments.only:
        metrics = run_variant(arguments.output, name, overrides)
        print(f"{name:<16}" + "  ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
    return 0
