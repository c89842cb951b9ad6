"""The action-sensitivity report: does the video follow its actions?

worldmodel sensitivity CHECKPOINT DATA [key=value ...]      --help lists the keys
accelerate launch -m worldmodel sensitivity CHECKPOINT DATA on several GPUs, each takes a share of the clips

From the same first frame and with the same noise, a video is made under the true actions and under every
control; on some clips each action dimension is nudged by itself and the actions are scaled. Writes
OUTPUT/report.html, report.md, sensitivity.json, pictures, and clips.jsonl, from which a killed run goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from worldmodel.checked import check_ranges
from worldmodel.cli_errors import one_way_out
from worldmodel.device import Device, Precision
from worldmodel.evaluation.command_line import joined_processes, load_model, run_on_data, settings_of
from worldmodel.evaluation.controls import controlled_actions, static_video
from worldmodel.evaluation.held_out import HeldOutClip, HeldOutClips, HeldOutConfig, held_out_clips
from worldmodel.evaluation.idm_evaluator import Recover, action_judge
from worldmodel.evaluation.jsonl_store import RecordLines, read_records
from worldmodel.evaluation.metrics.actions import action_error
from worldmodel.evaluation.metrics.video import moving_pixels
from worldmodel.evaluation.predictors import Drive, ModelPredictor, Predict, predict_each
from worldmodel.evaluation.sensitivity.page import write_sensitivity_page
from worldmodel.evaluation.sensitivity.verdict import judge
from worldmodel.files import fingerprint
from worldmodel.models.model import WorldModel
from worldmodel.report.figures import draw_responses, draw_sheet
from worldmodel.types import EpisodeSource, evenly_spread

LEAST_MOVING = 0.002  # share of pixels: a clip in which fewer move counts as static
STATIC = "static frame"
NUDGED = "raised "  # before the name of a dimension: the video with that one raised


@dataclass(frozen=True)
class SensitivityConfig:
    """Settings of the action-sensitivity evaluation: wrong actions to compare with, clips, nudges."""

    output: str = "outputs/sensitivity"  # folder of the report
    allow_external: bool = False  # also load from other places that the model's config.yaml names
    device: Device = "auto"  # auto (a GPU if there is one), cpu, cuda or mps
    mixed_precision: Precision = "auto"  # of rollouts: no, bf16, or auto = bf16 on cuda, else no
    held_out: HeldOutConfig = field(default_factory=HeldOutConfig)
    drive: Drive = "robot"  # robot actions, or latent actions inferred from the true video (lacg)
    num_inference_steps: int = 0  # Euler steps per chunk; 0: the number recommended for the model
    seed: int = 0  # of the noise and of shuffled actions
    action_gain: float = 1.0  # multiplies every command; 50: a fault that the report must detect
    judge: str = ""  # world model whose IDM recovers robot actions; empty: the model's own, if any
    max_batch: int = 16  # rollouts at once
    response_clips: int = 8  # clips on which dimensions are perturbed and actions scaled; evenly spaced
    nudge: float = 0.25  # perturbation of one dimension in half ranges, at all times
    scales: tuple[float, ...] = (0.02, 0.1, 0.5, 1.0, 2.0, 10.0, 50.0)  # of the true actions
    sheets: int = 2  # clips shown in pictures

    def __post_init__(self) -> None:
        if self.scales and 1.0 not in self.scales:
            raise ValueError(f"scales are compared with 1, which must be among them, got {self.scales}")
        check_ranges(self, num_inference_steps=(0, 1000), max_batch=(1, 1 << 20))


@dataclass(frozen=True)
class SensitivityProbe:
    """Measures the sensitivity of one predictor on clips."""

    predict: Predict
    num_given: int
    config: SensitivityConfig
    recover: Recover | None = None  # the IDM evaluator, if there is one

    def measure(
        self,
        clip: HeldOutClip,
        commands: Float[Tensor, "n u"],
        names: Sequence[str],
        other: Float[Tensor, "n u"] | None,
        *,
        seed: int,
        with_response: bool,
    ) -> tuple[dict[str, Any], dict[str, Float[Tensor, "t 3 H W"]]]:
        """The record of one clip, and the video of every control and of every raised dimension."""
        generator = torch.Generator().manual_seed(seed)
        told = controlled_actions(commands, names, num_given=self.num_given, other=other, generator=generator)
        videos = self._videos(clip, told, seed)
        future = {name: video[self.num_given :] for name, video in videos.items()}
        real, last_given = clip.frames[self.num_given :], clip.frames[self.num_given - 1]
        future[STATIC] = static_video(last_given, len(real))
        moving = moving_pixels(real, last_given).float().mean().item()
        motion = {"truth": real, **future}
        record = {
            "uid": clip.uid,
            "source": clip.source,
            "moves": moving >= LEAST_MOVING,
            "error": {name: _mean_square(video - real) for name, video in future.items()},
            "told": {
                name: _mean_square((actions - commands)[:, : len(names)]) ** 0.5
                for name, actions in told.items()
                if actions is not None
            },
            "change": {name: (video - future["true"]).abs().mean().item() for name, video in future.items()},
            "drift": {
                name: (video - last_given).abs().mean((1, 2, 3)).tolist() for name, video in motion.items()
            },
            "recovered": self._recovered(clip, told, videos),
        }
        if with_response:
            response, nudged = self._response(clip, commands, names, future["true"], seed)
            record |= response
            videos |= {NUDGED + name: video for name, video in nudged.items()}
        return record, videos

    def _videos(
        self, clip: HeldOutClip, commands: Mapping[str, Float[Tensor, "n u"] | None], seed: int
    ) -> dict[str, Float[Tensor, "t 3 H W"]]:
        max_batch = self.config.max_batch
        return predict_each(
            self.predict, clip, commands, num_given=self.num_given, seed=seed, max_batch=max_batch
        )

    def _response(
        self,
        clip: HeldOutClip,
        commands: Float[Tensor, "n u"],
        names: Sequence[str],
        reference: Float[Tensor, "t 3 H W"],
        seed: int,
    ) -> tuple[dict[str, Any], dict[str, Float[Tensor, "t 3 H W"]]]:
        """Change of the video by each dimension, error against the truth for scaled actions; the videos."""
        nudged: dict[str, Tensor | None] = {}
        for number, name in enumerate(names):
            changed = commands.clone()
            changed[self.num_given - 1 :, number] += self.config.nudge
            nudged[name] = changed
        scaled: dict[str, Tensor | None] = {str(scale): scale * commands for scale in self.config.scales}
        real = clip.frames[self.num_given :]
        raised = self._videos(clip, nudged, seed)
        videos = {name: video[self.num_given :] for name, video in raised.items()}
        scales = {name: video[self.num_given :] for name, video in self._videos(clip, scaled, seed).items()}
        found = {
            "response": {name: (video - reference).abs().mean().item() for name, video in videos.items()},
            "scale_error": {name: _mean_square(video - real) for name, video in scales.items()},
        }
        return found, raised

    def _recovered(
        self, clip: HeldOutClip, told: Mapping[str, Tensor | None], videos: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """Difference of the robot actions recovered from each video and its input actions."""
        if self.recover is None:
            return {}
        pairs = {"true video": (clip.frames, clip.actions)}
        pairs |= {name: (videos[name], actions) for name, actions in told.items() if actions is not None}
        errors = {
            name: action_error(self.recover(video, clip.embodiment), actions, clip.mask)
            for name, (video, actions) in pairs.items()
        }
        return {name: error[self.num_given - 1 :].mean().item() for name, error in errors.items()}


def probe_model(
    model: WorldModel, config: SensitivityConfig, embodiments: Sequence[str]
) -> tuple[SensitivityProbe, ModelPredictor]:
    """A probe for a world model on these robots, with an IDM evaluator if robot actions drive it."""
    predictor = ModelPredictor(model, config.num_inference_steps, config.drive, config.mixed_precision)

    def predict(
        given: Tensor, actions: Tensor | None, num_frames: int, seed: int, clip: HeldOutClip
    ) -> Tensor:
        reaching = None if actions is None else config.action_gain * actions
        return predictor(given, reaching, num_frames, seed, clip)

    recover = None
    if config.drive == "robot":
        recover = action_judge(model, config.judge, embodiments, allow_external=config.allow_external)
    return SensitivityProbe(predict, predictor.num_given, config, recover), predictor


def run(checkpoint_source: str, source: EpisodeSource, config: SensitivityConfig) -> int:
    """Measure the remaining clips, decide, write the report.

    Returns 0 if the actions are followed, else 3.
    """
    model, config, folder = load_model(checkpoint_source, config)
    processes = joined_processes(model)
    clips = held_out_clips(source, model.contract, model.normalizer, config.held_out, model.trained_on)
    settings = {
        **settings_of(config),
        "data": source.name,
        "model": fingerprint(folder),
    }
    records = RecordLines(Path(config.output) / "clips.jsonl", settings)
    probe, predictor = probe_model(model, config, clips.embodiments)
    measure_clips(probe, predictor, clips, records, processes.process_index, processes.num_processes)
    processes.wait_for_everyone()
    if not processes.is_main_process:
        return 0
    found = read_records(records.path)
    ordered = [found[key] for key in clips.keys]
    title = f"Action sensitivity of {Path(checkpoint_source).name} on {source.name}"
    following = judge(ordered)
    write_sensitivity_page(
        following,
        ordered,
        settings,
        Path(config.output),
        title,
        action_spaces=clips.action_spaces,
        trained_on=clips.overlap,
    )
    print(following.title, *following.reasons, sep="\n  ")
    print(f"report: {Path(config.output) / 'report.html'}")
    return 0 if following.is_followed else 3


def measure_clips(
    probe: SensitivityProbe,
    predictor: ModelPredictor,
    clips: HeldOutClips,
    records: RecordLines,
    rank: int = 0,
    count: int = 1,
) -> None:
    """Add the missing records of every `count`-th clip from clip `rank` on."""
    config, output = probe.config, Path(probe.config.output)
    counts = (config.response_clips, config.sheets)
    nudged, drawn = (set(evenly_spread(len(clips), count, round_down=True)) for count in counts)
    keys = clips.keys
    for number in tqdm(range(rank, len(keys), count), desc="sensitivity", unit="clip", disable=rank > 0):
        key = keys[number]
        pictures = {
            name: output / f"{name}{number:03d}.png"
            for name, numbers in (("sheet", drawn), ("moves", nudged if number in drawn else ()))
            if number in numbers
        }
        if key in records and all(path.exists() for path in pictures.values()):
            continue
        clip, partner = clips[number], clips.partner(number)
        record, videos = probe.measure(
            clip,
            predictor.commands(clip),
            predictor.command_names(clip),
            None if partner is None else predictor.commands(clips[partner]),
            seed=config.seed + number,
            with_response=number in nudged,
        )
        _draw(pictures, clip, videos, probe.num_given)
        records.add(key, record)


def _draw(
    pictures: Mapping[str, Path],
    clip: HeldOutClip,
    videos: Mapping[str, Float[Tensor, "t 3 H W"]],
    num_given: int,
) -> None:
    """The sheet of all controls, and what each dimension moves."""
    raised = {name.removeprefix(NUDGED): video for name, video in videos.items() if name.startswith(NUDGED)}
    if "sheet" in pictures:
        controls = {name: video for name, video in videos.items() if not name.startswith(NUDGED)}
        draw_sheet(pictures["sheet"], {"truth": clip.frames, **controls})
    if "moves" in pictures:
        changes = {name: (video - videos["true"])[num_given:].abs() for name, video in raised.items()}
        changes = {name: change.mean((0, 1)) for name, change in changes.items()}
        draw_responses(pictures["moves"], clip.frames[num_given - 1], changes)


def _mean_square(values: Tensor) -> float:
    return values.double().square().mean().item()


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    return run_on_data(SensitivityConfig, run, __doc__ or "", argv)
