"""Cost of conditioning and MCL relative to a bare Wan step: python eval/bench/world_model.py

A step is forward and backward on cached latents, without the optimizer, whose share would make the ratios
look better. The bare step is the original diffusers backbone, with the per-token timesteps that clean history
frames need, and the same flow-matching loss. All cases alternate in one process; the CPU time of a case is
its best round, since noise only adds. MCL through second derivatives needs math attention: the bare step is
timed with both kernels, and each case is compared with the bare step of its own kernel. MCL with first-order
derivatives is compared with the ACG step: the ratio is the cost of MCL.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from worldmodel.cli_errors import one_way_out
from worldmodel.data.normalize import ActionNormalizer, ActionStats
from worldmodel.diffusion.flow import (
    TIMESTEPS,
    add_noise,
    sample_sigma,
    sigma_per_frame,
    velocity_loss,
)
from worldmodel.mcl.config import ActionMclConfig
from worldmodel.mcl.features import math_attention
from worldmodel.models.backbone import WanConfig, build_wan
from worldmodel.models.config import InputSpec, ObjectiveConfig, WorldModelConfig
from worldmodel.models.idm import IdmConfig
from worldmodel.models.model import WorldModel
from worldmodel.objectives.training_step import world_model_step
from worldmodel.report.page import Table, markdown_table
from worldmodel.types import ClipBatch

ACTION_DIM = 14
LIMITS = {
    "acg": 1.05,
    "mcl detached": 1.4,
    "mcl finite_difference": 2.2,
    "mcl exact": 2.6,
    "mcl first_order": 2.6,
    "mcl first_order, a quarter": 1.6,
}
# Baseline of each case; the bare step if not listed.
BASE = {
    "mcl exact": "bare, math attention",
    "mcl first_order": "acg",
    "mcl first_order, central": "acg",
    "mcl first_order, a quarter": "acg",
    "mcl first_order, a quarter, central": "acg",
}
CONTRASTS = {
    "mcl detached": ActionMclConfig(mode="detached"),
    "mcl finite_difference": ActionMclConfig(mode="finite_difference"),
    "mcl exact": ActionMclConfig(mode="exact"),
    "mcl first_order": ActionMclConfig(mode="first_order"),
    "mcl first_order, central": ActionMclConfig(mode="first_order", difference="central"),
    "mcl first_order, a quarter": ActionMclConfig(mode="first_order", share=0.25),
    "mcl first_order, a quarter, central": ActionMclConfig(
        mode="first_order", share=0.25, difference="central"
    ),
}
DESK = WanConfig(
    num_layers=5, num_heads=6, head_dim=32, ffn_dim=768, patch_size=(1, 4, 4), text_dim=32, freq_dim=256
)
WIDE = WanConfig(num_layers=2)
Step = Callable[[], None]


def normalizer() -> ActionNormalizer:
    names = tuple(f"joint{i}" for i in range(ACTION_DIM))
    low, high = (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM
    return ActionNormalizer({"bench": ActionStats(names, low, high, low, high, num_samples=100)})


def make_batch(contract: InputSpec, batch_size: int) -> ClipBatch:
    generator = torch.Generator().manual_seed(0)
    transitions = contract.num_frames - 1
    size = (contract.height, contract.width)
    return ClipBatch(
        robot_actions=torch.rand(batch_size, transitions, ACTION_DIM, generator=generator) * 2 - 1,
        action_mask=torch.ones(batch_size, ACTION_DIM, dtype=torch.bool),
        embodiment=torch.zeros(batch_size, dtype=torch.long),
        sources=("bench",) * batch_size,
        frames=torch.randint(
            0, 256, (batch_size, contract.num_frames, 3, *size), dtype=torch.uint8, generator=generator
        ),
        latents=torch.randn(batch_size, 16, *contract.latent_grid, generator=generator),
    )


def bare_step(shape: WanConfig, batch: ClipBatch, *, with_math_attention: bool) -> Step:
    backbone = build_wan(shape)
    data = batch.latents
    assert data is not None
    patches = data.shape[3] * data.shape[4] // (shape.patch_size[1] * shape.patch_size[2])
    text = torch.zeros(len(data), 1, shape.text_dim)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        sigma = sample_sigma(len(data), shift=3.0, generator=generator)
        sigma = sigma_per_frame(sigma, data.shape[2], num_history=1)
        noise = torch.randn(data.shape, generator=generator)
        timestep = (TIMESTEPS * sigma).repeat_interleave(patches, 1)
        with math_attention() if with_math_attention else nullcontext():
            velocity = backbone(add_noise(data, noise, sigma), timestep, text, return_dict=False)[0]
        velocity_loss(velocity, data, noise, num_history=1).mean().backward()
        backbone.zero_grad()

    return step


def model_step(config: WorldModelConfig, contract: InputSpec, batch: ClipBatch) -> Step:
    model = WorldModel.build(config, contract, normalizer())
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        world_model_step(model, batch, generator).total.backward()
        model.zero_grad()

    return step


def cases(
    shape: WanConfig, contract: InputSpec, batch: ClipBatch, only: Sequence[str] = ()
) -> dict[str, Step]:
    """All steps, or the named ones with their baselines."""
    plain = WorldModelConfig(backbone=shape, objective=ObjectiveConfig(idm_weight=0.0))
    idm = IdmConfig(image_height=contract.height, image_width=contract.width)
    configs = {"acg": plain, "acg with IDM judge": WorldModelConfig(backbone=shape, idm=idm)}
    configs |= {name: replace(plain, mcl=mcl) for name, mcl in CONTRASTS.items()}
    bases = {BASE.get(name, "bare") for name in only}
    bases |= {BASE.get(name, "bare") for name in bases}
    steps = {}
    for name in ("bare", "bare, math attention", *configs):
        if only and name not in bases.union(only):
            continue
        if name in configs:
            steps[name] = model_step(configs[name], contract, batch)
        else:
            steps[name] = bare_step(shape, batch, with_math_attention=name != "bare")
    return steps


def measure(steps: dict[str, Step], rounds: int) -> dict[str, dict[str, float]]:
    """CPU milliseconds, and ratios to each step's baseline."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_number in range(rounds + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if round_number:  # the first round warms up
                times[name].append(1000 * (time.process_time() - start))
    best = {name: min(values) for name, values in times.items()}
    results = {}
    for name, fastest in best.items():
        results[name] = {"ms": fastest, "ratio": fastest / best[BASE.get(name, "bare")]}
    return results


def bench(rounds: int, only: Sequence[str] = ()) -> dict[str, dict[str, dict[str, float]]]:
    desk = InputSpec(num_frames=17, height=64, width=64, fps=10.0, latent_scale=4)
    wide = InputSpec(num_frames=9, height=64, width=64, fps=10.0, latent_scale=8)
    return {
        "desk (5 layers of 192, batch 16)": measure(cases(DESK, desk, make_batch(desk, 16), only), rounds),
        "1.3B width (2 layers of 1536, batch 4)": measure(
            cases(WIDE, wide, make_batch(wide, 4), only), rounds
        ),
    }


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = []
    for setting, rows in results.items():
        cells = tuple(
            (
                name,
                f"{row['ms']:.0f}",
                f"{row['ratio']:.2f}",
                f"{LIMITS[name]:.2f}" if name in LIMITS else "",
            )
            for name, row in rows.items()
        )
        lines += [
            f"### {setting}",
            "",
            markdown_table(Table(("step", "CPU ms", "ratio", "limit"), cells)),
            "",
        ]
    return "\n".join(lines)


@one_way_out
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="timed steps per case")
    parser.add_argument(
        "--cases", nargs="+", default=(), choices=("acg", "acg with IDM judge", *CONTRASTS), help="only these"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = bench(arguments.rounds, arguments.cases)
    print(table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
