"""Recorded predictions of a trained world model: what its picture head learns from, beside the truth.

A head sees what rollouts decode. That does not change while the head alone is trained, so it is rolled out
once, and a step costs no more than the head itself. Predictions for clips that a model has learned by heart
are too good: half of them can come from an earlier checkpoint.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from safetensors import safe_open
from torch import Tensor
from tqdm import tqdm

from worldmodel.checked import check_ranges
from worldmodel.checkpoint.folder import locate
from worldmodel.data.dataset import ClipDataset, collate_clips
from worldmodel.files import fingerprint, write_tensors
from worldmodel.models.model import WorldModel
from worldmodel.objectives.pictures import head_loss
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.signals import stop_on_signals
from worldmodel.training.loop.checkpoints import verify
from worldmodel.types import Actions, Losses, evenly_spread, num_video_frames, to_uint8, to_unit_range

AT_ONCE = 16  # clips rolled out together
FRAMES = 3  # of each clip in a training step
GO_ON = "recorded predictions are in {}, the same command goes on"


@dataclass(frozen=True)
class PredictionsConfig:
    """What a picture head learns from, where it is trained alone (model.trained=head)."""

    folder: str = ""  # of the recordings; empty: single estimates of noisy clips, made in every step
    clips: int = 1400  # training clips that start_from is rolled out for, evenly spread
    early: str = ""  # a checkpoint folder of its training, which predicts every second clip; empty: none
    augment: bool = False  # mirrored pictures with exchanged colors, for a head that other robots start from

    def __post_init__(self) -> None:
        check_ranges(self, clips=(1, 10_000_000))


class RecordedClips:
    """True frames of clips, and the decoded ones of the rollouts; files are mapped into memory."""

    def __init__(self, files: Sequence[Path]) -> None:
        opened = [safe_open(file, framework="pt") for file in files]
        self.parts = [(one.get_tensor("frames"), one.get_tensor("decoded")) for one in opened]
        self.places = [
            (part, row) for part, (frames, _) in enumerate(self.parts) for row in range(len(frames))
        ]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> dict[str, UInt8[Tensor, "t 3 H W"]]:
        part, row = self.places[number]
        frames, decoded = self.parts[part]
        return {"frames": frames[row], "decoded": decoded[row]}

    @staticmethod
    def load(
        dataset: "RecordedClips", batches: Iterable[list[int]], num_workers: int, pin_memory: bool
    ) -> Iterator[dict[str, Tensor]]:
        """Whole clips, stacked."""
        for numbers in batches:
            clips = [dataset[number] for number in numbers]
            yield {name: torch.stack([clip[name] for clip in clips]) for name in clips[0]}


def recorded_clips(start_from: str, clips: ClipDataset, config: PredictionsConfig) -> RecordedClips:
    """Roll out what is not recorded yet; every batch of clips is a file, so that a stopped run goes on."""
    folder = locate(start_from)
    numbers = evenly_spread(len(clips), config.clips)
    sources = [folder, Path(config.early)] if config.early else [folder]
    files = []
    with stop_on_signals() as stop, tqdm(total=len(numbers), desc="predictions", unit="clip") as progress:
        for place, source in enumerate(sources):
            model, own = _without_head(folder, source), numbers[place :: len(sources)]
            key = f"{fingerprint(source, ('.safetensors',))}_{place + 1}of{len(sources)}_{len(numbers)}"
            for first in range(0, len(own), AT_ONCE):
                some = own[first : first + AT_ONCE]
                files.append(Path(config.folder) / f"{key}of{len(clips)}_{first:06d}.safetensors")
                if not files[-1].exists():
                    write_tensors(files[-1], _rolled_out(model, clips, some))
                progress.update(len(some))
                stop.check(GO_ON.format(config.folder))
    return RecordedClips(files)


def augmented_step(
    model: WorldModel, batch: dict[str, UInt8[Tensor, "b t 3 H W"]], generator: torch.Generator
) -> Losses:
    """As `recorded_step`, with all clips mirrored and their color channels exchanged in one way."""
    sides = [side for side in (-2, -1) if torch.rand((), generator=generator) < 0.5]
    colors = torch.randperm(3, generator=generator)
    turned = {name: part.flip(sides)[:, :, colors.to(part.device)] for name, part in batch.items()}
    return recorded_step(model, turned, generator)


def recorded_step(
    model: WorldModel, batch: dict[str, UInt8[Tensor, "b t 3 H W"]], generator: torch.Generator
) -> Losses:
    """The error of what the head shows, on some frames of each clip."""
    assert model.head is not None, "the config asks for one"
    frames, decoded = (to_unit_range(batch[name]) for name in ("frames", "decoded"))
    given = frames.shape[1] - decoded.shape[1]
    chosen = torch.randperm(decoded.shape[1], generator=generator)[:FRAMES]
    chosen = chosen.to(frames.device)
    part = torch.cat([frames[:, given - 1 : given], frames[:, given + chosen]], 1)
    error = head_loss(model.head, decoded[:, chosen], part, generator)
    return Losses(error, {"pixels": error.detach()})


def _without_head(folder: Path, source: Path) -> WorldModel:
    """The model that is trained further, as it was at a checkpoint of its own training if one is named."""
    model = WorldModel.from_pretrained(folder)
    if source != folder:
        trained = verify(source)
        model.load_state_dict({**trained.tensors("weights"), **trained.tensors("ema")}, strict=False)
    model.head = None
    return model


def _rolled_out(model: WorldModel, clips: ClipDataset, numbers: Sequence[int]) -> dict[str, Tensor]:
    batch = collate_clips([clips[number] for number in numbers])
    assert batch.frames is not None, "clips of a model with a picture head have frames"
    given = num_video_frames(model.config.history)
    actions = (
        Actions() if model.config.regime == "no_action" else Actions(batch.robot_actions, extras=batch.extras)
    )
    result = RolloutPipeline(model).rollout(
        batch.frames[:, :given],
        actions,
        num_frames=batch.frames.shape[1],
        generator=torch.Generator().manual_seed(numbers[0]),
        embodiments=[model.normalizer.embodiments[robot] for robot in batch.embodiment.tolist()],
    )
    return {"frames": batch.frames, "decoded": to_uint8(result.frames[:, given:])}
