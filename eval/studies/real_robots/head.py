"""A picture head, trained on recorded predictions of a finished base."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from worldmodel.data.dataset import ClipDataset, collate_clips
from worldmodel.models.model import WorldModel
from worldmodel.models.picture_head import HeadConfig, PictureHead
from worldmodel.objectives.pictures import head_loss
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.quickstart.direct import averaged_weights, direct_fit
from worldmodel.training.loop.fit import fit
from worldmodel.types import Actions, Losses, to_uint8, to_unit_range

BATCH, FRAMES = 8, 3  # clips of a step, and frames of each
ROLLOUTS = 16  # clips rolled out at once
TRIAL_STEPS = 20


def record_predictions(model: WorldModel, clips: ClipDataset, numbers: Sequence[int], file: Path) -> None:
    """True and decoded frames of these clips, in one sampling step a latent frame."""
    pipeline, true, made = RolloutPipeline(model), [], []
    for first in tqdm(range(0, len(numbers), ROLLOUTS), desc="predictions"):
        batch = collate_clips([clips[number] for number in numbers[first : first + ROLLOUTS]])
        assert batch.frames is not None
        given = to_unit_range(batch.frames[:, :1])
        generator = torch.Generator().manual_seed(first)
        actions = Actions(batch.robot_actions)
        count = batch.frames.shape[1]
        result = pipeline.rollout(
            given, actions, num_frames=count, num_inference_steps=1, generator=generator
        )
        true.append(batch.frames.numpy())
        made.append(to_uint8(result.frames[:, 1:]).numpy())
    np.savez(file, frames=np.concatenate(true), decoded=np.concatenate(made))


class Recorded:
    """Recorded predictions; an example is one clip."""

    def __init__(self, files: Sequence[Path]) -> None:
        parts = [np.load(file) for file in files]
        self.frames = np.concatenate([part["frames"] for part in parts])
        self.decoded = np.concatenate([part["decoded"] for part in parts])

    def __len__(self) -> int:
        return len(self.frames)

    @staticmethod
    def load(
        dataset: "Recorded", batches: Iterable[list[int]], num_workers: int, pin_memory: bool
    ) -> Iterator[dict[str, torch.Tensor]]:
        """All frames of these clips."""
        for numbers in batches:
            yield {
                "frames": torch.from_numpy(dataset.frames[numbers]),
                "decoded": torch.from_numpy(dataset.decoded[numbers]),
            }


def head_step(model: PictureHead, batch: dict[str, torch.Tensor], generator: torch.Generator) -> Losses:
    """The error of some frames of each clip."""
    count = batch["decoded"].shape[1]
    chosen = torch.randperm(count, generator=generator)[:FRAMES]
    frames, decoded = (to_unit_range(batch[name]) for name in ("frames", "decoded"))
    part = torch.cat([frames[:, :1], frames[:, 1 + chosen]], 1)
    return Losses(head_loss(model, decoded[:, chosen], part, generator), {})


def train_head(files: Sequence[Path], folder: Path, minutes: float, num_sources: int) -> float:
    """Train for so long, or find it done; the seconds of one core that it took."""
    plan = folder / "steps.txt"
    data = Recorded(files)

    def trained(steps: int, where: Path) -> float:
        torch.manual_seed(0)
        model = PictureHead(HeadConfig(num_sources=num_sources))
        config = replace(direct_fit(steps), global_batch=BATCH, micro_batch=BATCH)
        step: Any = head_step
        return fit(step, model, data, config, where, load=Recorded.load, resume=True).cpu_seconds

    if not plan.exists():
        started = time.process_time()
        trained(TRIAL_STEPS, folder / "trial")
        seconds = (time.process_time() - started) / TRIAL_STEPS
        plan.write_text(str(int(60 * minutes / seconds)))
    return trained(int(plan.read_text()), folder / "run")


def load_head(folder: Path, num_sources: int) -> PictureHead:
    """As trained."""
    head = PictureHead(HeadConfig(num_sources=num_sources))
    head.load_state_dict(averaged_weights(folder / "run"))
    return head.eval()
