"""Evaluate rollouts of a world model on held-out episodes: video quality and action following.

worldmodel rollout CHECKPOINT DATA [key=value ...]         --help lists the keys
accelerate launch -m worldmodel rollout CHECKPOINT DATA    on several GPUs, each takes a share of the clips

CHECKPOINT is a world model folder or hub id, DATA a dataset of any supported format. Rows: the static frame,
the autoencoder's ceiling, true actions and every control of `controls.py`. Writes OUTPUT/report.html (with
embedded videos), report.md, results.json, curves.png, videos/ and clips.jsonl, from which a killed run
resumes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from worldmodel.checked import check_ranges
from worldmodel.cli_errors import one_way_out
from worldmodel.data.video import write_video
from worldmodel.device import Device, Precision
from worldmodel.evaluation.command_line import joined_processes, load_model, run_on_data, settings_of
from worldmodel.evaluation.controls import CONTROLS, controlled_actions, static_video
from worldmodel.evaluation.held_out import HeldOutClip, HeldOutClips, HeldOutConfig, held_out_clips
from worldmodel.evaluation.idm_evaluator import action_judge
from worldmodel.evaluation.jsonl_store import RecordLines, read_records
from worldmodel.evaluation.metrics.actions import Carried, action_error, carried_object, point_error
from worldmodel.evaluation.metrics.generation import AlexNetDistance
from worldmodel.evaluation.metrics.video import score_video
from worldmodel.evaluation.nearest_frame import NearestFrames
from worldmodel.evaluation.predictors import Drive, ModelPredictor, predict_each
from worldmodel.evaluation.rollouts.contrast_curve import contrast_records
from worldmodel.evaluation.rollouts.page import summary_text, write_rollout_page
from worldmodel.evaluation.rollouts.results import CEILING, LPIPS, NEAREST, STATIC, TRUE, summarize
from worldmodel.files import fingerprint
from worldmodel.locator.model import Locator
from worldmodel.locator.truth import object_in_frames
from worldmodel.models.model import WorldModel
from worldmodel.report.figures import draw_trajectories
from worldmodel.report.videos import side_by_side
from worldmodel.signals import stop_on_signals
from worldmodel.types import EpisodeSource, evenly_spread

M = TypeVar("M")
Commands = dict[str, Float[Tensor, "n u"] | None]
Videos = dict[str, Float[Tensor, "t 3 H W"]]


@dataclass(frozen=True)
class RolloutsConfig:
    """What is rolled out, and what is written."""

    output: str = "outputs/rollouts"  # folder of the report
    allow_external: bool = False  # also load from other places that the model's config.yaml names
    device: Device = "auto"  # auto (a GPU if there is one), cpu, cuda or mps
    mixed_precision: Precision = "auto"  # of rollouts: no, bf16, or auto = bf16 on cuda, else no
    held_out: HeldOutConfig = field(default_factory=HeldOutConfig)
    controls: tuple[str, ...] = CONTROLS  # negative controls to run in addition to the true actions
    nearest: bool = False  # also show for each command the training frame seen under the nearest one
    drive: Drive = "robot"  # robot actions, or latent actions inferred from the true video (lacg)
    num_inference_steps: int = 0  # Euler steps per chunk; 0: the number recommended for the model
    compositor: bool = True  # false: show decoded frames, as a model without one does
    seed: int = 0  # world model whose IDM recovers robot actions; empty: the model's own, if any
    judge: str = ""  # world model whose IDM tells the robot actions of videos; empty: the model's own, if any
    locator: str = ""  # folder of a gripper locator (train_locator.py); empty: positions are not measured
    lpips: str = ""  # folder with alexnet-owt-7be5be79.pth and alex.pth; empty: LPIPS is not measured
    videos: int = 6  # clips whose videos are in the report, evenly spaced
    max_batch: int = 16  # rollouts at once

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.controls) - set(CONTROLS)):
            raise ValueError(f"controls are {', '.join(CONTROLS)}; got {', '.join(unknown)}")
        check_ranges(self, num_inference_steps=(0, 1000), max_batch=(1, 1 << 20))


class RolloutEvaluation:
    """Evaluates one model on one set of clips."""

    def __init__(self, model: WorldModel, clips: HeldOutClips, config: RolloutsConfig) -> None:
        self.model, self.clips, self.config = model.eval(), clips, config
        if not config.compositor:
            model.compositor = model.head = None
        self.predictor = ModelPredictor(
            model, config.num_inference_steps, config.drive, config.mixed_precision
        )
        self.nearest = NearestFrames(clips.index, model.normalizer) if config.nearest else None
        self.lpips = AlexNetDistance.from_folder(config.lpips).to(model.device) if config.lpips else None
        self.recover = action_judge(
            model, config.judge, clips.embodiments, allow_external=config.allow_external
        )
        self.locator = Locator.from_pretrained(config.locator, model.device) if config.locator else None

    def evaluate(self, number: int) -> tuple[dict[str, Any], dict[str, Float[Tensor, "t 3 H W"]]]:
        """The record of one clip, and its videos (complete, starting with the given frames)."""
        clip, num_given = self.clips[number], self.predictor.num_given
        commands = self.commands(number, clip)
        videos = predict_each(
            self.predictor,
            clip,
            commands,
            num_given=num_given,
            seed=self.config.seed + number,
            max_batch=self.config.max_batch,
        )
        last_given, count = clip.frames[num_given - 1], len(clip.frames) - num_given
        floors = {STATIC: torch.cat([clip.frames[:num_given], static_video(last_given, count)])}
        if self.nearest is not None:
            remembered = self.nearest(clip.actions[num_given - 1 :])
            floors[NEAREST] = torch.cat([clip.frames[:num_given], remembered])
        floors[CEILING] = self._round_trip(clip.frames)
        videos = {**floors, **videos}
        record = {
            **{name: getattr(clip, name) for name in ("uid", "source", "start", "embodiment", "task")},
            "num_given": num_given,
            "rows": self._scores(clip, videos, lambda frames: frames),
            "views": {
                name: self._scores(clip, videos, box.cut) for name, box in self.model.contract.views.items()
            },
            "action_error": self._action_errors(clip, videos),
            **self._positions(clip, videos),
        }
        return record, videos

    def _scores(
        self, clip: HeldOutClip, videos: dict[str, Tensor], shown: Callable[[Tensor], Tensor]
    ) -> dict[str, Any]:
        """Every metric of the generated frames, by row; `shown` crops them to a view."""
        first = self.predictor.num_given
        real = shown(clip.frames)

        def measure(video: Tensor) -> dict[str, Any]:
            made = shown(video)[first:]
            scores: dict[str, Any] = score_video(made, real[first:], real[first - 1])
            if self.lpips is not None:
                scores[LPIPS] = self.lpips.curve(made, real[first:]).tolist()
            return scores

        return _each_once(measure, videos)

    def commands(self, number: int, clip: HeldOutClip) -> Commands:
        """The true actions of a clip, and the controls that apply to it."""
        partner = self.clips.partner(number)
        made = controlled_actions(
            self.predictor.commands(clip),
            self.predictor.command_names(clip),
            num_given=self.predictor.num_given,
            other=None if partner is None else self.predictor.commands(self.clips[partner]),
            generator=torch.Generator().manual_seed(self.config.seed + number),
        )
        chosen = {name: made[name] for name in (TRUE, *self.config.controls) if name in made}
        # A model without actions makes the same video for all commands.
        return dict.fromkeys(chosen) if self.model.config.regime == "no_action" else chosen

    def _round_trip(self, frames: Float[Tensor, "t 3 H W"]) -> Float[Tensor, "t 3 H W"]:
        given = frames[None].to(self.model.device)
        return self.model.decode(self.model.encode(given))[0].cpu()

    def _action_errors(self, clip: HeldOutClip, videos: dict[str, Tensor]) -> dict[str, float]:
        """Error of the robot actions recovered by the IDM; `truth` is the IDM's error on the true video."""
        recover, first = self.recover, self.predictor.num_given - 1
        if recover is None:
            return {}
        return _each_once(
            lambda video: (
                action_error(recover(video, clip.embodiment), clip.actions, clip.mask)[first:].mean().item()
            ),
            {"truth": clip.frames, **videos},
        )

    def _positions(self, clip: HeldOutClip, videos: dict[str, Tensor]) -> dict[str, Any]:
        """Gripper error in pixels and the final position of a manipulated object, by the locator.

        `truth` is the locator's result on the true video: for the object, its own error.
        """
        locator = self.locator
        if locator is None:
            return {}
        first, width = self.predictor.num_given, clip.frames.shape[-1]
        truth = locator.locate(clip.frames[first - 1 :])
        places, visible = self._object_truth(clip) or (truth.points[:, 2], truth.is_visible[:, 2])
        found = {"truth": truth} | _each_once(lambda video: locator.locate(video[first:]), videos)
        last_second = max(1, round(self.model.contract.fps))
        grippers: dict[str, float] = {}
        at_end: dict[str, float] = {}
        carried: dict[str, Carried] = {}
        for name, one in found.items():
            if name != "truth":
                errors = point_error(one.points[:, :2], truth.points[1:, :2], truth.is_visible[1:, :2])
                for answer, part in ((grippers, errors), (at_end, errors[-last_second:])):
                    if not part.isnan().all():
                        answer[name] = part.nanmean().item()
            judged = carried_object(one.points[:, 2], places, one.is_visible[:, 2], visible, width)
            if judged is not None:
                carried[name] = judged
        return {"gripper_error": grippers, "gripper_error_end": at_end, "object": _object_record(carried)}

    def _object_truth(self, clip: HeldOutClip) -> tuple[Tensor, Tensor] | None:
        """True object positions from the last given frame on; None if they are not available."""
        contract, frames = self.model.contract, clip.recorded[self.predictor.num_given - 1 :]
        if contract.aspect != "stretch":
            return None
        known = object_in_frames(clip.source, contract.camera, frames, (contract.height, contract.width))
        return None if known is None else (torch.from_numpy(known[0]).float(), torch.from_numpy(known[1]))

    def shown(self, number: int, commands: Commands) -> Videos:
        """Truth and videos to look at: a picture head shows the camera's own size."""
        clip = self.clips[number]
        if self.model.head is not None:
            clip = replace(clip, frames=self.clips.as_recorded(number))
        return {"truth": clip.frames} | predict_each(
            self.predictor,
            clip,
            commands,
            num_given=self.predictor.num_given,
            seed=self.config.seed + number,
            max_batch=self.config.max_batch,
        )

    def picture(self, number: int, clip: HeldOutClip, video: Tensor, folder: Path) -> None:
        """Write a side-by-side video, and with a locator the trajectories."""
        pair = {"truth": clip.frames, TRUE: video}
        if self.model.head is not None:
            pair = self.shown(number, {TRUE: self.commands(number, clip)[TRUE]})
        row = side_by_side(pair["truth"], pair[TRUE])
        write_video(folder / f"clip{number:03d}.mp4", iter(row), self.model.contract.fps)
        if self.locator is not None:
            located = [self.locator.locate(frames) for frames in (clip.frames, video)]
            # Points outside the picture are dropped, which breaks the line.
            points = [one.points.masked_fill(~one.is_visible[..., None], float("nan")) for one in located]
            draw_trajectories(folder / f"clip{number:03d}.png", clip.frames, video, *points)


def _each_once(measure: Callable[[Tensor], M], videos: Mapping[str, Tensor]) -> dict[str, M]:
    """Measure every video; identical videos under several names are measured once."""
    distinct = {id(video): video for video in videos.values()}
    measured = {key: measure(video) for key, video in distinct.items()}
    return {name: measured[id(video)] for name, video in videos.items()}


def _object_record(carried: dict[str, Carried]) -> dict[str, Any] | None:
    if not carried:
        return None
    return {
        "moved": carried["truth"].moved,
        "in_place": {name: one.in_place for name, one in carried.items()},
        "distance": {name: one.distance for name, one in carried.items()},
    }


def run(checkpoint_source: str, source: EpisodeSource, config: RolloutsConfig) -> int:
    """Evaluate the remaining clips, then summarize and write the report."""
    model, config, folder = load_model(checkpoint_source, config)
    processes = joined_processes(model)
    clips = held_out_clips(source, model.contract, model.normalizer, config.held_out, model.trained_on)
    output = Path(config.output)
    evaluation = RolloutEvaluation(model, clips, config)
    settings = {
        **settings_of(config),
        "data": source.name,
        "model": fingerprint(folder),
    }
    records = RecordLines(output / "clips.jsonl", settings)
    shown = set(evenly_spread(len(clips), config.videos, round_down=True))
    keys = clips.keys
    own = range(processes.process_index, len(keys), processes.num_processes)
    with stop_on_signals() as stop:
        for number in tqdm(own, desc="rollouts", unit="clip", disable=not processes.is_main_process):
            key = keys[number]
            is_drawn = number not in shown or (output / "videos" / f"clip{number:03d}.mp4").exists()
            if key in records and is_drawn:
                continue
            record, videos = evaluation.evaluate(number)
            if number in shown:
                evaluation.picture(number, clips[number], videos[TRUE], output / "videos")
            records.add(key, record)
            stop.check(
                f"{number + 1} of {len(keys)} clips are in {output}, the same command goes on from there"
            )
    processes.wait_for_everyone()
    if not processes.is_main_process:
        return 0
    found = read_records(records.path)
    ordered = [found[key] for key in keys]
    results = {
        "settings": settings,
        "regime": model.config.regime,
        "action_spaces": clips.action_spaces,
        "trained_on": clips.overlap,
        "contrast": contrast_records(folder),
        **summarize(ordered),
    }
    checkpoint_name = Path(checkpoint_source).name
    write_rollout_page(
        results, ordered, sorted(shown), output, title=f"Rollouts of {checkpoint_name} on {source.name}"
    )
    print(summary_text(results))
    print(f"report: {output / 'report.html'}")
    return 0


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    return run_on_data(RolloutsConfig, run, __doc__ or "", argv)
