"""Two launch agents that meet on loopback, as two machines would: one dies, the job is started again."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.support.debug_run import CONFIG, MCL, ROOT, losses
from worldmodel.models.model import WorldModel
from worldmodel.training.encode_latents import main as encode_latents
from worldmodel.training.encode_latents import parse_part

SETTINGS = [*MCL, "fit.steps=40", "fit.micro_batch=2", "fit.checkpoint_every=2", "validation.num_clips=0"]


def start_machine(rank: int, port: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    """One agent with one process, as `accelerate launch` starts it on each machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", str(rank)]
    command += ["--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", str(port)]
    command += [
        "training/train_world_model.py",
        CONFIG,
        *arguments,
        "fit.machine.num_processes=2",
        "--resume",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # A session of its own: the machine can be lost as a whole.
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def start_job(arguments: list[str]) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return [start_machine(rank, port, arguments) for rank in range(2)]


def lose(machine: subprocess.Popen[bytes]) -> None:
    """Everything on this machine is gone at once: the agent, and its process, which has its own session."""
    children = Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text().split()
    for pid in (machine.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_lost_machine_costs_the_steps_since_the_last_checkpoint(
    overrides: list[str], tmp_path: Path
) -> None:
    settings = [*overrides, *SETTINGS]
    for machine in start_job([*settings, f"output={tmp_path / 'straight'}"]):
        assert machine.wait(300) == 0
    arguments = [*settings, f"output={tmp_path / 'lost'}"]
    machines = start_job(arguments)
    log, deadline = tmp_path / "lost/log.jsonl", time.monotonic() + 200
    while not log.exists() or len(losses(tmp_path / "lost")) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lose(machines[1])
    assert machines[0].wait(120) != 0  # the other machine notices and ends
    machines[1].wait()
    assert len(losses(tmp_path / "lost")) < 40
    for machine in start_job(arguments):
        assert machine.wait(300) == 0
    assert losses(tmp_path / "lost") == losses(tmp_path / "straight")
    one, two = (WorldModel.from_pretrained(tmp_path / name / "model") for name in ("straight", "lost"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_machines_share_the_episodes_of_a_cache(
    overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = [CONFIG, *overrides, f"data.latents={tmp_path / 'latents'}"]
    counts = []
    for part in ("0/3", "1/3", "2/3"):
        assert encode_latents([*cache, "--part", part]) == 0
        counts.append(len(list((tmp_path / "latents").rglob("*.safetensors"))))
    assert counts == [2, 3, 4]  # four episodes
    assert encode_latents([*cache, "--part", "3/3"]) == 2
    assert "--part is I/N with I from 0 to N - 1" in capsys.readouterr().err
    assert range(10)[parse_part("1/4")] == range(1, 10, 4)


def test_the_slurm_script_hands_signals_on_and_queues_again() -> None:
    script = ROOT / "training/slurm.sh"
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    text = script.read_text()
    assert re.search(r"#SBATCH --signal=B:USR1@\d+", text)
    assert "pkill -USR1 --parent $launcher" in text
    assert 'scontrol requeue "$SLURM_JOB_ID"' in text
    assert "--resume" in text
