"""The first ten minutes on a GPU: the presets of Wan 1.3B with random weights, on synthetic clips.

pytest -m gpu tests/gpu                             writes outputs/first_ten_minutes.md, a table to send back
WORLDMODEL_GPU_SUITE=cpu pytest -m gpu tests/gpu    the same code with tiny models, where there is no GPU
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState

from tests.support.debug_run import ROOT
from worldmodel.config import load_config
from worldmodel.data.dataset import collate_clips
from worldmodel.estimate.cost import DEVICES, GIB, Device, estimate
from worldmodel.estimate.run_shape import run_shape
from worldmodel.files import write_tensors, write_text
from worldmodel.models.backbone import PROMPT_KEY
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.training.autoencoder import AutoencoderConfig
from worldmodel.training.autoencoder import train as train_autoencoder
from worldmodel.training.datasets import open_clips, open_index
from worldmodel.training.world_model import TrainConfig, train
from worldmodel.types import Actions

IS_TINY = os.environ.get("WORLDMODEL_GPU_SUITE") == "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not IS_TINY and not torch.cuda.is_available(), reason="torch finds no GPU"),
]
# name: preset, processes, settings
RUNS = {
    "no_action": ("full", 1, ["model.regime=no_action"]),
    "acg": ("full", 1, []),
    "lacg": ("lacg", 1, []),
    "acg, MCL": ("full_mcl", 1, []),
    "lacg, MCL": ("lacg_mcl", 1, []),
    "lacg, MCL of the paper": ("paper_mcl", 1, []),
    "acg, MCL, compiled": ("full_mcl", 1, ["fit.compile=true"]),
    "LoRA, MCL": ("lora_mcl", 1, []),
    "lacg, LoRA": ("lacg_lora", 1, []),
    "acg, MCL, ddp": ("full_mcl", 2, ["fit.machine.parallel=ddp"]),
    "acg, MCL, fsdp2": ("full_mcl", 2, ["fit.machine.parallel=fsdp2"]),
}
FRAMES, SIZE = (9, (32, 32)) if IS_TINY else (17, (240, 320))
CLIP = [f"data.clip.num_frames={FRAMES}", f"data.clip.height={SIZE[0]}", f"data.clip.width={SIZE[1]}"]
DATA = ["data.synthetic_episodes=4", "data.synthetic_embodiments=2", *CLIP]
TINY = [
    *("model.backbone.num_layers=2", "model.backbone.num_heads=2", "model.backbone.head_dim=24"),
    *("model.backbone.ffn_dim=96", "model.backbone.text_dim=32", "model.backbone.freq_dim=32"),
    *("model.idm.image_height=32", "model.idm.image_width=32", "model.idm.encoder_width=24"),
    *("model.idm.encoder_layers=1", "model.idm.encoder_heads=2", "model.actions.adaln.hidden=32"),
    *("fit.num_workers=0", "fit.compile=false", "fit.machine.device=cpu"),
    *("fit.global_batch=4", "fit.micro_batch=2"),
]
# dinov2-small with random weights.
LARGE = ["model.idm.encoder_width=384", "model.idm.encoder_layers=12", "model.idm.encoder_heads=6"]
STEPS = 3  # the last one is timed


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of all runs: an autoencoder and a prompt of the right shapes, latents, three steps."""
    folder = tmp_path_factory.mktemp("gpu")
    path = str(ROOT / "configs/debug/autoencoder.yaml")
    assert train_autoencoder(load_config(AutoencoderConfig, path, [*DATA, f"output={folder}"]), resume=False)
    AcceleratorState._reset_state(reset_partial_state=True)  # it is fixed to that run's device and precision
    write_tensors(folder / "prompt.safetensors", {PROMPT_KEY: torch.zeros(1, 512, 32 if IS_TINY else 4096)})
    return [
        *("model.pretrained=", "model.idm.pretrained=", f"model.vae={folder / 'vae'}"),
        *(f"model.prompt={folder / 'prompt.safetensors'}", "data.paths=[]", *DATA),
        *(f"data.latents={folder / 'latents'}", "data.splits.val=0", "data.splits.test=0"),
        *("validation.num_clips=0", "first_batch=0", "fit.trackers=[]", "fit.log_every=1"),
        *(
            "fit.compile=false",
            "fit.num_workers=2",
            "fit.machine.mixed_precision=bf16",
            "fit.optim.warmup_steps=1",
        ),
    ]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Lines of the table; the file is written anew after the last test."""
    name = "CPU" if IS_TINY else f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    lines = [
        f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}",
        "",
        "| run | processes | loss | peak GiB | estimated | s a step | estimated |",
        "|---|---|---|---|---|---|---|",
    ]
    yield lines
    folder = tmp_path_factory.getbasetemp() if IS_TINY else ROOT / "outputs"
    write_text(folder / "first_ten_minutes.md", "\n".join(lines) + "\n")
    print(f"\n{folder / 'first_ten_minutes.md'}\n" + "\n".join(lines))


def this_device() -> Device:
    """The line of the data sheet that fits this machine; an unknown GPU counts as an H100."""
    if IS_TINY:
        return DEVICES["CPU"]
    name = torch.cuda.get_device_name().replace(" ", "")
    return next((device for key, device in DEVICES.items() if key in name), DEVICES["H100"])


def settings_of(name: str, shared: list[str], folder: Path, steps: int = STEPS) -> tuple[str, list[str]]:
    preset, _, own = RUNS[name]
    settings = [*shared, *own, *(TINY if IS_TINY else LARGE), f"fit.steps={steps}", f"output={folder}"]
    return str(ROOT / f"configs/wan/{preset}.yaml"), settings


def run(name: str, shared: list[str], folder: Path) -> None:
    path, settings = settings_of(name, shared, folder)
    if RUNS[name][1] == 1:
        if not IS_TINY:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        assert train(load_config(TrainConfig, path, settings), resume=False)
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*command, "-m", "worldmodel", "train", path, *settings],
        env={**os.environ, "OMP_NUM_THREADS": "1"} if IS_TINY else None,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def records(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["kind"] == "train"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp("run") for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
def test_a_step(name: str, shared: list[str], folders: dict[str, Path], table: list[str]) -> None:
    processes, device = RUNS[name][1], this_device()
    if not IS_TINY and torch.cuda.device_count() < processes:
        pytest.skip(f"{processes} GPUs are needed")
    run(name, shared, folders[name])
    steps = records(folders[name])
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert all(step["num_skipped"] == 0 for step in steps)
    path, settings = settings_of(name, shared, folders[name])
    found = estimate(
        run_shape(load_config(TrainConfig, path, settings), processes, device, 14),
        *(processes, device),
        with_other=False,
    )
    peak = f"{steps[-1]['peak_gib']:.1f}" if "peak_gib" in steps[-1] else "not measured"
    table.append(
        f"| {name} | {processes} | {steps[-1]['loss']:.4f} | {peak} | {found.total_bytes / GIB:.1f} | "
        f"{steps[-1]['seconds']:.2f} | {found.step_seconds[1]:.2f} |"
    )


def test_a_run_resumes(shared: list[str], folders: dict[str, Path], table: list[str]) -> None:
    folder = folders["acg, MCL"]
    path, settings = settings_of("acg, MCL", shared, folder, STEPS + 1)
    assert train(load_config(TrainConfig, path, settings), resume=True)
    assert [step["step"] for step in records(folder)] == list(range(1, STEPS + 2))
    table.append(f"\nResumed at step {STEPS}: loss {records(folder)[-1]['loss']:.4f}.")


def test_a_rollout_is_that_of_the_cpu(shared: list[str], folders: dict[str, Path], table: list[str]) -> None:
    path, settings = settings_of("acg", shared, folders["acg"])
    config = load_config(TrainConfig, path, settings)
    model = WorldModel.from_pretrained(folders["acg"] / "model").eval()
    clips = open_clips(config.data, open_index(config.data), "train", model.normalizer, None, True)
    batch = collate_clips([clips[0]])
    assert batch.frames is not None
    videos = []
    for device in ("cpu", "cpu" if IS_TINY else "cuda"):
        pipeline = RolloutPipeline(model, device, mixed_precision="no")
        given, actions = batch.frames[:, :1], Actions(batch.robot_actions)
        noise = torch.Generator().manual_seed(0)
        result = pipeline.rollout(given, actions, generator=noise, num_inference_steps=2)
        videos.append(result.frames.float().cpu())
    difference = (videos[0] - videos[1]).abs()
    assert difference.max() < 0.02, "of a range of 1; in float32 on both"
    table.append(f"\nRollout against the CPU: differs by {difference.max():.1e} at most, of a range of 1.")
