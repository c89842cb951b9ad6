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
from worldmodel.models.vae import VideoAutoencoder
from worldmodel.training import model_data
from worldmodel.training.encode_latents import main as encode_latents
from worldmodel.training.encode_latents import parse_part

SETTINGS = [*MCL, "fit.steps=40", "fit.micro_batch=2", "fit.checkpoint_every=2", "validation.num_clips=0"]


def start_machine(rank: int, port: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    """One agent with one process, as `accelerate launch` starts it on each machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", str(rank)]
    command += ["--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", str(port)]
    command += [
        *("-m", "worldmodel", "train"),
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


def test_encoding_that_is_stopped_says_so_and_goes_on(
    overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = model_data._encode

    def encode_and_stop(vae: VideoAutoencoder, video: torch.Tensor) -> torch.Tensor:
        signal.raise_signal(signal.SIGTERM)
        return encode(vae, video)

    cache = [CONFIG, *overrides, f"data.latents={tmp_path}"]
    monkeypatch.setattr(model_data, "_encode", encode_and_stop)
    assert encode_latents(cache) == 143
    said = f"stopped by SIGTERM: what is encoded is in {tmp_path}, the same command goes on from there\n"
    assert capsys.readouterr().err.endswith(said)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1
    monkeypatch.setattr(model_data, "_encode", encode)
    assert encode_latents(cache) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 3 episodes encoded now\n"


def test_the_slurm_script_hands_signals_on_and_queues_again() -> None:
    script = ROOT / "training/slurm.sh"
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    text = script.read_text()
    assert re.search(r"#SBATCH --signal=B:USR1@\d+", text)
    (log,) = re.findall(r"#SBATCH --output=(.*)", text)
    assert "/" not in log  # SLURM makes no folder, and says nothing where there is none
    assert "--resume" in text


FAKES = {
    # A launcher as torch's: it hands SIGTERM on, and waits for its process.
    "accelerate": """
sh -c 'trap "echo saved >> saved; exit 143" USR1 TERM; echo up >> up; while :; do sleep 0.05; done' &
rank=$!
trap 'kill -TERM $rank' TERM
while kill -0 $rank 2>/dev/null; do wait $rank; done
exit 1""",
    "srun": 'shift; echo $$ > machine; exec "$@"',
    "scontrol": '[ "$1" = show ] && echo localhost || echo "$@" >> requeued',
    "scancel": "kill -USR1 $(cat machine)",
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_slurm_script_saves_and_queues_again(number: signal.Signals, tmp_path: Path) -> None:
    for name, script in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a", "SLURM_NODEID": "0"}
    job = subprocess.Popen(
        ["bash", ROOT / "training/slurm.sh", "launch.yaml", "config.yaml"],
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if number == signal.SIGTERM:
        os.killpg(job.pid, number)  # preemption: all processes at once
    else:
        os.kill(job.pid, number)  # `--signal=B:`: the script alone
    assert job.wait(30) != 0
    assert (tmp_path / "saved").read_text() == "saved\n"
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
