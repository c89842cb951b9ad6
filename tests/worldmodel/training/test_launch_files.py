"""Every launch file, started as two processes on a CPU: what is loaded is what the files hold."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import Dinov2Config, Dinov2Model

from tests.support.debug_run import CONFIG, ROOT
from worldmodel.hub import load_encoder
from worldmodel.models.model import WorldModel

LAUNCH_FILES = sorted((ROOT / "configs/accelerate").glob("*.yaml"))


def write_hub_cache(cache: Path, name: str) -> Path:
    """An image encoder as a download leaves it."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("0" * 40)
    snapshot = folder / "snapshots" / ("0" * 40)
    torch.manual_seed(0)
    shape = Dinov2Config(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28)
    Dinov2Model(shape).save_pretrained(snapshot)
    return snapshot


def two_processes(launch_file: Path) -> list[str]:
    """The command that starts two CPU processes with this launch file."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(launch_file)]
    command += ["--num_processes", "2", "--num_machines", "1", "--machine_rank", "0"]
    # A file of one process says that nothing is distributed.
    is_alone = 'distributed_type: "NO"' in launch_file.read_text()
    multi = ["--multi_gpu", "--gpu_ids", "all"] if is_alone else []
    return [*command, "--main_process_port", str(port), *multi]


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["", "true"])
@pytest.mark.parametrize("launch_file", LAUNCH_FILES, ids=lambda path: path.stem)
def test_loaded_parts_are_those_of_the_files(
    launch_file: Path, asked: str, overrides: list[str], tmp_path: Path
) -> None:
    if asked and "fsdp_config" not in launch_file.read_text():
        pytest.skip("only FSDP asks for it")
    snapshot = write_hub_cache(tmp_path / "hub", "someone/dino")
    mine = tmp_path / launch_file.name
    shutil.copy(launch_file, mine)
    if asked:
        mine.write_text(mine.read_text().replace("_loading: false", "_loading: true"))
    settings = ["model.regime=lacg", "model.idm.pretrained=someone/dino", "allow_external=true"]
    settings += ["fit.optim.lr_multipliers={'idm.encoder*': 0.0}", "fit.steps=1", "fit.micro_batch=2"]
    settings += ["validation.num_clips=0", "first_batch=0", f"output={tmp_path / 'run'}"]
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*two_processes(mine), "-m", "worldmodel", "train", CONFIG, *overrides, *settings],
        cwd=ROOT,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    parallel = "fsdp2" if "fsdp" in launch_file.name else "ddp"
    assert f"2 process(es), MULTI_CPU, parallel {parallel}" in done.stderr.replace("FSDP", "MULTI_CPU")
    model = WorldModel.from_pretrained(tmp_path / "run/model")
    stored = load_encoder(Dinov2Model, str(snapshot)).state_dict()  # checked against its file
    assert model.idm is not None
    assert len(stored) > 20
    for name, tensor in model.idm.encoder.state_dict().items():
        assert torch.equal(tensor, stored[name]), name
    backbone = load_file(tmp_path / "run/model/transformer/diffusion_pytorch_model.safetensors")
    assert all(tensor.isfinite().all() for tensor in backbone.values())
