"""Train the gripper locator on tabletop or RoboTwin episodes with poses:

worldmodel train-locator DATA [DATA ...] [key=value ...] [--resume] --help lists the keys

Writes OUTPUT/locator (weights in half precision, description, error on held-out episodes), checkpoints and
curves.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from tqdm import tqdm

from robotwin_adapters.robotwin.dataset import RobotwinDataset
from worldmodel.checked import check_ranges
from worldmodel.cli_errors import one_way_out
from worldmodel.config import config_parser, load_config
from worldmodel.data.splits import SplitConfig, split_of
from worldmodel.files import check_apart
from worldmodel.locator.model import Locator, LocatorConfig, target_map
from worldmodel.locator.truth import POINTS, label_episode
from worldmodel.training.loop.fit import FitConfig, fit
from worldmodel.training.loop.optim import OptimConfig
from worldmodel.types import Losses, to_unit_range

MAX_BLUR = 2.0  # pixels, sigma; generated frames are blurrier than real ones
MAX_NOISE = 0.06  # for pixels in [0, 1]


@dataclass(frozen=True)
class LocatorRunConfig:
    """The locator and its training."""

    output: str = "outputs/locator"  # run folder; the trained locator is its sub-folder locator
    camera: str = "desk_camera"  # camera name
    frames_per_episode: int = 16  # evenly spaced
    model: LocatorConfig = field(default_factory=LocatorConfig)
    splits: SplitConfig = field(default_factory=SplitConfig)  # train on train, measure on val and test
    fit: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=3000,
            global_batch=32,
            micro_batch=32,
            checkpoint_every=500,
            optim=OptimConfig(lr=2e-3, warmup_steps=50, schedule="cosine"),
        )
    )

    def __post_init__(self) -> None:
        check_ranges(self, frames_per_episode=(1, 1_000_000))


@dataclass(frozen=True)
class LocatorBatch:
    """Frames with labeled positions."""

    frames: UInt8[Tensor, "n 3 H W"]
    points: Float[Tensor, "n 3 2"]  # pixels
    is_known: Bool[Tensor, "n 3"]
    is_visible: Bool[Tensor, "n 3"]
    embodiments: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.frames)

    def take(self, rows: Sequence[int]) -> "LocatorBatch":
        """Select frames."""
        index = torch.as_tensor(rows)
        return LocatorBatch(
            self.frames[index],
            self.points[index],
            self.is_known[index],
            self.is_visible[index],
            tuple(self.embodiments[row] for row in rows),
        )

    def to(self, device: torch.device | str) -> "LocatorBatch":
        """The batch on another device."""
        return LocatorBatch(
            self.frames.to(device),
            self.points.to(device),
            self.is_known.to(device),
            self.is_visible.to(device),
            self.embodiments,
        )


def load_frames(paths: Sequence[str], config: LocatorRunConfig) -> tuple[LocatorBatch, LocatorBatch]:
    """Labeled frames of the training episodes of all datasets, and those of their other episodes."""
    size = (config.model.height, config.model.width)
    parts: dict[bool, list[Any]] = {True: [], False: []}
    for path in paths:
        dataset = RobotwinDataset(path, cameras=(config.camera,), action_space="measured_poses")
        for number in tqdm(range(len(dataset)), desc=f"frames of {path}", unit="episode"):
            labeled = label_episode(dataset, number, config.camera, size, config.frames_per_episode)
            parts[split_of(dataset[number].uid, config.splits) == "train"].append(labeled)
    if not (parts[True] and parts[False]):
        count = len(parts[True]) + len(parts[False])
        raise ValueError(
            f"{', '.join(paths)}: {count} episodes are too few to train on some and measure on others"
        )
    return _joined(parts[True]), _joined(parts[False])


def load_batches(
    dataset: LocatorBatch, batches: Iterable[list[int]], num_workers: int, pin_memory: bool
) -> Iterator[LocatorBatch]:
    """Batches of frames in memory, so no workers are needed."""
    return (dataset.take(rows) for rows in batches)


def locator_step(model: Locator, batch: LocatorBatch, generator: torch.Generator) -> Losses:
    """Cross-entropy of the heat maps against Gaussians, plus that of visibility."""
    heat, seen = model(spoiled(to_unit_range(batch.frames), generator))
    target = target_map(batch.points, model.config.height, model.config.width)
    cross = -(target * heat.flatten(2).log_softmax(2).unflatten(2, heat.shape[2:])).sum((2, 3))
    place = (cross * batch.is_visible).sum() / batch.is_visible.sum().clamp_min(1)
    wrong = F.binary_cross_entropy_with_logits(seen, batch.is_visible.float(), reduction="none")
    visibility = (wrong * batch.is_known).sum() / batch.is_known.sum().clamp_min(1)
    return Losses(place + visibility, {"place": place.detach(), "visibility": visibility.detach()})


def spoiled(frames: Float[Tensor, "n 3 H W"], generator: torch.Generator) -> Float[Tensor, "n 3 H W"]:
    """Augment frames to resemble generated ones: blurred, noisy, a little brighter or darker."""
    count = len(frames)

    def uniform() -> Float[Tensor, "n 1 1 1"]:
        return torch.rand(count, 1, 1, 1, generator=generator).to(frames)

    sigma = MAX_BLUR * uniform()
    sigma = torch.where(uniform() < 0.5, 0.05, sigma)
    offsets = torch.arange(-4, 5, device=frames.device)
    window = torch.exp(-0.5 * (offsets / sigma[:, :, 0]) ** 2)
    window = (window / window.sum(-1, keepdim=True)).repeat_interleave(3, 0)
    planes = F.pad(frames.flatten(0, 1)[None], (4, 4, 4, 4), mode="replicate")
    soft = F.conv2d(planes, window[:, :, None, :], groups=3 * count)
    soft = F.conv2d(soft, window[:, :, :, None], groups=3 * count)[0].unflatten(0, (count, 3))
    noise = torch.randn(frames.shape, generator=generator).to(frames)
    amount = MAX_NOISE * uniform()
    gain = 0.9 + 0.2 * uniform()
    return (gain * soft + amount * noise).clamp(0, 1)


def measure(locator: Locator, frames: LocatorBatch) -> dict[str, float]:
    """Median error in pixels per robot and point, and the accuracy of visibility."""
    located = [locator.locate(to_unit_range(part)) for part in frames.frames.split(64)]
    points = torch.cat([one.points for one in located])
    seen = torch.cat([one.is_visible for one in located])
    distance = (points - frames.points).norm(dim=-1)
    errors = {"visibility_accuracy": (seen == frames.is_visible)[frames.is_known].float().mean().item()}
    for robot in sorted(set(frames.embodiments)):
        own = torch.tensor([name == robot for name in frames.embodiments])
        for number, name in enumerate(POINTS):
            judged = distance[own & frames.is_visible[:, number], number]
            if len(judged):
                errors[f"{robot} {name} median px"] = judged.median().item()
                errors[f"{robot} {name} 90 % px"] = judged.quantile(0.9).item()
    return errors


def train(paths: Sequence[str], config: LocatorRunConfig, resume: bool) -> dict[str, float]:
    """Fit, measure on held-out episodes, save; returns an empty dict if a signal stopped it early."""
    check_apart(config.output, *paths)
    train_frames, held_out = load_frames(paths, config)
    torch.manual_seed(config.fit.seed)
    model = Locator(config.model)
    output = Path(config.output)
    result = fit(locator_step, model, train_frames, config.fit, output, load=load_batches, resume=resume)
    if not result.is_finished:
        return {}
    model = model.to("cpu").half().float().eval()  # measure the error of the weights as stored
    errors = measure(model, held_out)
    model.half().save_pretrained(output / "locator", errors)
    return errors


def _joined(parts: Sequence[Any]) -> LocatorBatch:
    frames, points, is_known, is_visible = (
        torch.from_numpy(np.concatenate([getattr(part, name) for part in parts]))
        for name in ("frames", "points", "is_known", "is_visible")
    )
    robots = tuple(part.embodiment for part in parts for _ in part.frames)
    return LocatorBatch(frames, points.float(), is_known, is_visible, robots)


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 finished, 143 stopped by a signal, 2 invalid data or config."""
    parser = config_parser(LocatorRunConfig, __doc__)
    parser.add_argument("words", nargs="+", metavar="DATA or key=value")
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_intermixed_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    paths = [word for word in arguments.words if "=" not in word or Path(word).exists()]
    if not paths:
        parser.error("DATA is missing: folders of episodes to train on")
    overrides = [word for word in arguments.words if word not in paths]
    errors = train(paths, load_config(LocatorRunConfig, None, overrides), arguments.resume)
    print("\n".join(f"{name:<40}{value:8.3f}" for name, value in errors.items()))
    return 0 if errors else 143
