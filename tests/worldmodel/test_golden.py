"""Recorded outputs of the shipped model and of tiny ones: what saved models compute must not change.

Inputs and the weights of tiny models are formulas: only numbers are stored. The tolerance is for other
CPUs, which round differently. To record a change that is meant: python -m tests.worldmodel.test_golden
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.tiny_wan import tiny_wan
from worldmodel.data.dataset import collate_clips
from worldmodel.data.normalize import ActionNormalizer, ActionStats
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.models.backbone import LoraConfig
from worldmodel.models.config import ActionMclConfig, InputSpec, WorldModelConfig
from worldmodel.models.idm import IdmConfig
from worldmodel.models.model import WorldModel
from worldmodel.objectives.training_step import world_model_step
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import Clip

RECORD = Path(__file__).with_name("golden.json")
# The largest difference of one block of 8 x 8 pixels: a tenth of a gray level. Two threads differ by 1e-5.
TOLERANCE = 4e-4
SIZE, NUM_FRAMES, NAMES = 32, 13, ("x", "y", "gripper")


def wave(*shape: int, speed: float, phase: float = 0.0) -> Tensor:
    """A smooth motion in [-1, 1]."""
    steps = torch.arange(int(np.prod(shape)), dtype=torch.float64)
    return (speed * steps + phase).sin().view(*shape).float()


def scattered(*shape: int, seed: int) -> Tensor:
    """Numbers in [-1, 1] without a pattern, the same on every machine."""
    steps = torch.arange(int(np.prod(shape)), dtype=torch.float64)
    return (2 * ((12.9898 * steps + 78.233 * seed).sin() * 43758.5453 % 1) - 1).view(*shape).float()


def pictures(count: int, size: int) -> Tensor:
    """Smooth pictures of two discs, [b 1 3 H W]."""
    y, x = torch.meshgrid(*(torch.linspace(-1, 1, size),) * 2, indexing="ij")
    made = []
    for number in range(count):
        first = torch.sigmoid(12 * (0.3 - torch.hypot(x - 0.3 + 0.2 * number, y + 0.2)))
        second = torch.sigmoid(12 * (0.25 - torch.hypot(x + 0.5, y - 0.4 + 0.1 * number)))
        made.append(torch.stack([0.5 + 0.3 * first, 0.4 + 0.2 * x + 0.3 * second, 0.6 - 0.2 * y]))
    return torch.stack(made)[:, None]


def seeded(count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in range(count)]


def blocks(frames: Tensor) -> list[float]:
    """Means of 8 x 8 pixels of the last frame of each sample."""
    means = nn.functional.avg_pool2d(frames[:, -1], 8)
    return [round(value, 5) for value in means.flatten().tolist()]


def shipped_frames() -> dict[str, list[float]]:
    """Three rollouts and a fork of the model in the package."""
    model = WorldModel.from_pretrained("desk")
    pipeline, robots = RolloutPipeline(model), model.normalizer.embodiments

    def commands(robot: str, count: int, phase: float) -> np.ndarray:
        stats = model.normalizer.stats[robot]
        low, high = (torch.tensor(bound).double() for bound in (stats.q01, stats.q99))
        moves = wave(count, len(low), speed=0.05, phase=phase).double()
        return ((low + high) / 2 + 0.4 * (high - low) * moves)[None].numpy()

    first, found = pictures(1, 64), {}
    for number, robot in enumerate(robots[:2]):
        rows = commands(robot, 16 + 3 * number, float(number))
        steps = {"num_inference_steps": 3 * number, "start_action": rows[:, :1] if number else None}
        made = pipeline(first, rows, embodiment=robot, generator=seeded(1), **steps)
        found[f"commands of {robot}"] = blocks(made.frames)
    found["no commands"] = blocks(pipeline(first, num_frames=9, generator=seeded(1)).frames)
    session = pipeline.open(first, embodiment=robots[0], generator=seeded(1))
    session.step(commands(robots[0], 8, 0.5))
    fork = session.fork()
    session.step(commands(robots[0], 4, 2.0))
    found["a fork"] = blocks(fork.step(commands(robots[0], 4, 4.0)))
    return found


def tiny_model(**options: object) -> WorldModel:
    """Of formulas alone; settings that are not named have their defaults."""
    low, high = (-1.0, -2.0, 0.0), (1.0, 1.0, 3.0)
    stats = {name: ActionStats(NAMES, low, high, low, high, 40) for name in ("a", "b")}
    idm = IdmConfig(
        image_height=SIZE,
        image_width=SIZE,
        patch_size=16,
        encoder_width=48,
        encoder_layers=1,
        encoder_heads=2,
        hidden=32,
    )
    contract = InputSpec(NUM_FRAMES, SIZE, SIZE, 12.5, camera="head", latent_scale=4)
    vae = CausalAutoencoder(height=SIZE, width=SIZE, hidden=16, num_blocks=1)
    config = WorldModelConfig(backbone=tiny_wan(), idm=idm, **options)  # type: ignore[arg-type]
    model = WorldModel.build(config, contract, ActionNormalizer(stats), vae=vae)
    for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
        scale = 1.0 if name.endswith(("norm.weight", "norm2.weight")) else 0.0
        width = max(1, parameter[0].numel() if parameter.ndim > 1 else 100)
        parameter.data.copy_(scale + 1.7 * scattered(*parameter.shape, seed=number) / width**0.5)
    return model.eval()


def tiny_frames() -> dict[str, list[float]]:
    """Rollouts of saved and loaded models: a latent-action model with adapters, driven by its controller."""
    found, actions = {}, 1.2 * wave(2, 20, len(NAMES), speed=0.4)
    given = torch.cat([pictures(2, SIZE)] * 5, 1)
    given[:, :, 0] *= 1 - 0.1 * torch.arange(5)[None, :, None, None]
    settings: dict[str, dict[str, object]] = {
        "lacg, lora, history 2": {"regime": "lacg", "lora": LoraConfig(rank=2), "history": 2},
        "acg, clean, causal": {"small": SmallNetConfig(refiner_width=4), "causal": True},
    }
    for name, options in settings.items():
        with tempfile.TemporaryDirectory() as folder:
            tiny_model(**options).save_pretrained(Path(folder) / "model")
            model = WorldModel.from_pretrained(Path(folder) / "model").eval()
        for steps in (1, 4):
            made = RolloutPipeline(model)(
                given, actions, embodiment=["a", "b"], num_inference_steps=steps, generator=seeded(2)
            )
            found[f"{name}, {steps} steps"] = blocks(made.frames)
    return found


def tiny_losses() -> dict[str, list[float]]:
    """The terms of one training step, with the default settings of every term."""
    clips = [
        Clip(
            robot_actions=wave(NUM_FRAMES - 1, len(NAMES), speed=0.5, phase=number),
            action_mask=torch.ones(len(NAMES), dtype=torch.bool),
            embodiment=number % 2,
            source=str(number),
            frames=(255 * pictures(6, SIZE)[number].expand(NUM_FRAMES, -1, -1, -1)).byte(),
            latents=scattered(16, 4, 8, 8, seed=number),
        )
        for number in range(6)
    ]
    settings: dict[str, dict[str, object]] = {
        "lacg and mcl": {"regime": "lacg", "mcl": ActionMclConfig()},
        "acg, clean": {"small": SmallNetConfig()},
    }
    found = {}
    for name, options in settings.items():
        torch.manual_seed(0)
        losses = world_model_step(
            tiny_model(**options), collate_clips(clips), torch.Generator().manual_seed(2)
        )
        parts = {"total": losses.total.detach(), **losses.parts}
        # Shares of rows jump where two scores are nearly equal.
        smooth = [part for part in parts if part == "mcl_gradient_norm" or not part.startswith("mcl_")]
        found |= {f"{name}: {part}": [parts[part].item()] for part in smooth if "accuracy" not in part}
    return found


RECORDED = json.loads(RECORD.read_text()) if RECORD.exists() else {}


@pytest.mark.parametrize("compute", [shipped_frames, tiny_frames])
def test_frames_are_those_recorded(compute: Callable[[], dict[str, list[float]]]) -> None:
    made, recorded = compute(), RECORDED[compute.__name__]
    assert made.keys() == recorded.keys()
    for name, values in made.items():
        np.testing.assert_allclose(values, recorded[name], rtol=0, atol=TOLERANCE, err_msg=name)


def test_losses_are_those_recorded() -> None:
    made, recorded = tiny_losses(), RECORDED["tiny_losses"]
    assert made.keys() == recorded.keys()
    for name, value in made.items():
        np.testing.assert_allclose(value, recorded[name], rtol=2e-3, atol=1e-6, err_msg=name)


if __name__ == "__main__":
    record = {compute.__name__: compute() for compute in (shipped_frames, tiny_frames, tiny_losses)}
    RECORD.write_text(json.dumps(record, separators=(",", ":")).replace("],", "],\n") + "\n")
