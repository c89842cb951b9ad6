"""Speed of a rollout: our pipeline against a plain loop over diffusers' Wan.

    python eval/bench/rollout.py [key=value ...]        --help lists the keys

All variants make the same video from the same weights, noise and steps (the largest difference is reported).
The plain loop calls the transformer as diffusers' pipeline does: prompt, timestep of every token, rotary
tables and modulation are recomputed in every step. That pipeline also makes a guidance pass by default; with
the single prompt that all clips share it only costs time, so it is measured as a separate variant. The
backbone has the shape of the shipped desk model. That model's additions to Wan do not fit into a plain loop,
so no variant includes them: action embedding (zero in all variants), action map, scene and refiner. Weights
are random: only cost is measured, not quality. The variants alternate; a time is the CPU time of the process
in the best round, since noise only adds. With `checkpoint` and `data`: quality against steps. `out=FILE`
saves the results as JSON.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from jaxtyping import Float
from torch import Tensor

from worldmodel.cli_errors import one_way_out
from worldmodel.config import describe_config, load_config
from worldmodel.data.normalize import ActionNormalizer, ActionStats
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.evaluation.command_line import open_for_model
from worldmodel.evaluation.held_out import HeldOutClip, HeldOutConfig, held_out_clips
from worldmodel.evaluation.metrics.video import score_video
from worldmodel.evaluation.predictors import ModelPredictor
from worldmodel.evaluation.rollouts.results import TRUE, episode_scores
from worldmodel.files import write_json
from worldmodel.models.backbone import WanConfig, build_wan
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.report.intervals import estimate_of, mean_estimate
from worldmodel.types import num_latent_frames

ACTION_DIM = 14
OURS, GUIDANCE = "ours", 5.0  # the guidance scale is the default of diffusers' Wan pipeline
# As in configs/desk/streaming.yaml, but with 16 channels, and an output that is not zero before training.
DESK = WanConfig(num_layers=4, num_heads=6, head_dim=32, ffn_dim=768, patch_size=(1, 4, 4), text_dim=16)
QUALITY = ("clip_psnr", "moving_clip_psnr", "psnr", "moving_psnr")


@dataclass(frozen=True)
class BenchConfig:
    """What is measured."""

    size: int = 64  # pixels per side
    num_frames: int = 17  # of a clip
    steps: int = 8  # Euler steps
    batch: int = 1  # videos at once
    text_tokens: tuple[int, ...] = (1, 512)  # prompt lengths: the desk model's and Wan's
    rounds: int = 15  # of each variant
    backbone: WanConfig = field(default_factory=lambda: DESK)
    checkpoint: str = ""  # world model folder for the quality curve; empty: none
    data: str = ""  # held-out dataset for the quality curve
    held_out: HeldOutConfig = field(default_factory=lambda: HeldOutConfig(split="all", episodes=16))
    quality_steps: tuple[int, ...] = (1, 2, 4, 8, 20)  # numbers of steps of the quality curve
    teacher: str = ""  # world model folder: measure the difference to this model's videos
    teacher_steps: int = 8  # sampling steps of the teacher
    out: str = ""  # JSON file for the figures; empty: printed only


def build_model(config: BenchConfig, text_tokens: int, small: SmallNetConfig | None = None) -> WorldModel:
    """A world model with random weights whose actions have no effect, so that the plain loop can match it."""
    limits = ((-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM)
    names = tuple(f"joint{i}" for i in range(ACTION_DIM))
    normalizer = ActionNormalizer({"robot": ActionStats(names, *limits, *limits, num_samples=1)})
    contract = InputSpec(config.num_frames, config.size, config.size, 10.0, latent_scale=4)
    generator = torch.Generator().manual_seed(0)
    vae = CausalAutoencoder(height=config.size, width=config.size, hidden=32, num_blocks=1)
    noise = 2 * torch.rand(2, 3, 9, config.size, config.size, generator=generator) - 1
    vae.initialize_from(noise)  # otherwise every latent would decode to the same gray
    vae.set_latent_statistics(noise)
    model_config = WorldModelConfig(backbone=config.backbone, small=small)
    model = WorldModel.build(model_config, contract, normalizer, vae=vae).eval()
    model.text = torch.randn(1, text_tokens, config.backbone.text_dim, generator=generator)
    return model


class PlainLoop:
    """A rollout as one would write it with diffusers: scheduler, unmodified transformer, autoencoder."""

    def __init__(self, model: WorldModel, backbone: WanConfig, guidance: float | None = None) -> None:
        self.model, self.guidance = model, guidance
        self.transformer = build_wan(backbone).eval()  # the same seed, and so the model's weights
        self.scheduler = FlowMatchEulerDiscreteScheduler(shift=model.config.objective.shift)
        height, width = (
            side // patch
            for side, patch in zip(model.contract.latent_grid[1:], backbone.patch_size[1:], strict=True)
        )
        self.tokens_per_frame = height * width

    @torch.no_grad()
    def __call__(
        self, frames: Float[Tensor, "b 1 3 H W"], steps: int, seed: int
    ) -> Float[Tensor, "b t 3 H W"]:
        """One clip from one frame."""
        model = self.model
        history = model.encode(frames)
        count, channels, _, height, width = history.shape
        shape = (channels, num_latent_frames(model.contract.num_frames), height, width)
        noise = torch.stack(
            [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for _ in range(count)]
        )
        latents = noise[:, :, 1:]
        self.scheduler.set_timesteps(sigmas=torch.linspace(1, 1 / steps, steps).tolist())
        for timestep in self.scheduler.timesteps:
            per_frame = torch.cat([timestep.new_zeros(1), timestep.expand(shape[1] - 1)])
            inputs = {
                "hidden_states": torch.cat([history, latents], 2),
                "timestep": per_frame.repeat_interleave(self.tokens_per_frame).expand(count, -1),
                "encoder_hidden_states": model.text.expand(count, -1, -1),
            }
            (velocity,) = self.transformer(**inputs, return_dict=False)
            if self.guidance is not None:
                (unguided,) = self.transformer(**inputs, return_dict=False)
                velocity = unguided + self.guidance * (velocity - unguided)
            latents = self.scheduler.step(velocity[:, :, 1:], timestep, latents, return_dict=False)[0]
        return torch.cat([frames, model.decode(torch.cat([history, latents], 2))[:, 1:]], 1)


def compare(config: BenchConfig, text_tokens: int) -> list[dict[str, float | str]]:
    """CPU seconds of every variant for one clip, their ratio to ours, and the difference of the videos."""
    model = build_model(config, text_tokens)
    shape = (config.batch, 1, 3, config.size, config.size)
    frames = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    actions = torch.zeros(config.batch, config.num_frames - 1, ACTION_DIM)
    predictor = ModelPredictor(model, config.steps)
    plain, guided = (PlainLoop(model, config.backbone, guidance) for guidance in (None, GUIDANCE))
    ways: dict[str, Callable[[], Tensor]] = {
        OURS: lambda: predictor(frames, actions, config.num_frames, 0),
        "plain": lambda: plain(frames, config.steps, 0),
        "plain with guidance": lambda: guided(frames, config.steps, 0),
    }
    videos = {name: work() for name, work in ways.items()}  # also the warm-up
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(config.rounds):
        for name, work in ways.items():
            start = time.process_time()
            work()
            seconds[name].append(time.process_time() - start)
    best = {name: min(times) for name, times in seconds.items()}
    return [
        {
            "way": name,
            "text_tokens": text_tokens,
            "seconds": fastest,
            "times_ours": fastest / best[OURS],
            "largest_difference": (videos[name] - videos[OURS]).abs().max().item(),
            "contrast": videos[OURS].std().item(),
        }
        for name, fastest in best.items()
    ]


def measure_quality(config: BenchConfig) -> list[dict[str, Any]]:
    """PSNR of held-out rollouts with true actions against the number of steps."""
    model = WorldModel.from_pretrained(config.checkpoint)
    clips = held_out_clips(
        open_for_model(config.checkpoint, config.data), model.contract, model.normalizer, config.held_out
    )
    wanted: list[Float[Tensor, "t 3 H W"]] = []
    if config.teacher:
        teacher = ModelPredictor(WorldModel.from_pretrained(config.teacher), config.teacher_steps)
        wanted = [_video(teacher, clips[number], number) for number in range(len(clips))]
    answers = []
    for steps in config.quality_steps:
        predictor = ModelPredictor(model, steps)
        given, records, seconds, distances = predictor.num_given, [], 0.0, []
        for number in range(len(clips)):
            clip = clips[number]
            start = time.process_time()
            video = _video(predictor, clip, number)
            seconds += time.process_time() - start
            scores = score_video(video, clip.frames[given:], clip.frames[given - 1])
            records.append({"uid": clip.uid, "rows": {TRUE: scores}})
            distances += [(video - one).square().mean().item() for one in wanted[number : number + 1]]
        quality = {
            metric: mean_estimate(episode_scores(records, TRUE, metric)).to_dict() for metric in QUALITY
        }
        answers.append({"steps": steps, "seconds": seconds / len(clips), **quality})
        if distances:
            answers[-1]["to_teacher"] = mean_estimate(distances).to_dict()
    return answers


def _video(predictor: ModelPredictor, clip: HeldOutClip, seed: int) -> Float[Tensor, "t 3 H W"]:
    """The generated frames, without the given ones, for the true actions."""
    given, commands = predictor.num_given, predictor.commands(clip)[None]
    return predictor(clip.frames[None, :given], commands, len(clip.frames), seed, clip)[0, given:]


def show(result: dict) -> str:
    """Format the results as text."""
    lines = ["prompt tokens  way                   CPU s  times ours  largest difference"]
    lines += [
        f"{row['text_tokens']:>13}  {row['way']:<20}{row['seconds']:>7.3f}{row['times_ours']:>12.2f}"
        f"{row['largest_difference']:>20.1e}"
        for row in result["compare"]
    ]
    if result["quality"]:
        lines += [
            "",
            "PSNR in dB with 95 % intervals over episodes: of clips (mean error of all frames), then of",
        ]
        lines += ["frames (mean over frames), each whole and of moving pixels", "steps  CPU s a clip"]
        lines += [
            f"{row['steps']:>5}{row['seconds']:>14.2f}  "
            + ", ".join(estimate_of(row[metric]).text(2) for metric in QUALITY)
            + (f", to the teacher's {estimate_of(row['to_teacher']).text(6)}" if "to_teacher" in row else "")
            for row in result["quality"]
        ]
    return "\n".join(lines)


@one_way_out
def main() -> None:
    """Run all measurements, print and save them."""
    torch.set_num_threads(1)
    if "--help" in sys.argv:
        print(__doc__, *describe_config(BenchConfig), sep="\n")
        return
    config = load_config(BenchConfig, None, sys.argv[1:])
    result = {
        "config": asdict(config),
        "compare": [row for tokens in config.text_tokens for row in compare(config, tokens)],
        "quality": measure_quality(config) if config.checkpoint else [],
    }
    print(show(result))
    if config.out:
        write_json(Path(config.out), result)


if __name__ == "__main__":
    main()
