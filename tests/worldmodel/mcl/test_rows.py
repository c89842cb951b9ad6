"""A contrast over the rows of all micro-batches and processes equals that of one batch."""

import multiprocessing
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from worldmodel.files import read_tensors, write_tensors
from worldmodel.mcl.config import MclConfig
from worldmodel.mcl.contrast import MechanisticContrast
from worldmodel.mcl.critics import ProjectionHead, VectorCritic
from worldmodel.mcl.rows import RowCache
from worldmodel.training.loop.fit import FitConfig, fit
from worldmodel.training.loop.optim import OptimConfig
from worldmodel.types import Losses

LATENT, OUTPUT, CONDITION, ROWS = 3, 5, 2, 32
READINGS = {
    "finite_difference": {"mode": "finite_difference", "step": 0.1},
    "jvp": {"mode": "jvp"},
    "exact": {"mode": "exact"},
    "jacobian_vjp": {"mode": "exact", "variant": "jacobian_vjp"},
    "first_order": {"mode": "first_order", "difference": "central", "step": 1e-2},
}


class Host(nn.Module):
    """A generator with its contrast."""

    def __init__(self, **settings) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = MclConfig(**{"rows": ROWS, "clip_norm": 0.0, **settings})
        self.decoder = nn.Sequential(nn.Linear(LATENT + CONDITION, 16), nn.Tanh(), nn.Linear(16, OUTPUT))
        width = config.feature_dim(LATENT, OUTPUT)
        critic = VectorCritic(LATENT, OUTPUT, CONDITION, 32)
        self.mcl = MechanisticContrast(
            config, critic, ProjectionHead(width, 16), ProjectionHead(CONDITION, 16)
        )

    def generate(self, z: Tensor, u: Tensor) -> Tensor:
        return self.decoder(torch.cat([z, u], -1))

    def loss(self, rows: Tensor) -> Tensor:
        # Every fifth row takes no part; conditions repeat.
        z, u, mask = rows[:, :LATENT], rows[:, LATENT:-1], rows[:, -1] > 0
        return self.mcl(self.generate, z, u, mask=mask).loss


def data() -> Tensor:
    rng = torch.Generator().manual_seed(1)
    u = torch.randn(8, CONDITION, generator=rng)[torch.arange(ROWS) % 8]
    mask = (torch.arange(ROWS) % 5 > 0).float().unsqueeze(1)
    return torch.cat([torch.randn(ROWS, LATENT, generator=rng), u, mask], 1)


def gradients(host: Host, rows: Tensor, num_parts: int) -> dict[str, Tensor]:
    """As `fit` computes them: the mean over this process's micro-batches."""
    cache, parts = RowCache(), rows.chunk(num_parts)
    for part in parts:
        with cache.fill():
            host.loss(part)
    for index, part in enumerate(parts):
        with cache.read(index):
            (host.loss(part) / num_parts).backward()
    return {name: p.grad for name, p in host.named_parameters() if p.grad is not None}


def one_batch(settings: dict) -> dict[str, Tensor]:
    host = Host(**settings, rows=0)
    host.loss(data()).backward()
    return {name: p.grad for name, p in host.named_parameters() if p.grad is not None}


def check(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Relative difference of all gradients together."""
    assert found.keys() == expected.keys()
    first, second = (torch.cat([part[name].flatten() for name in expected]) for part in (found, expected))
    return ((first - second).norm() / second.norm()).item()


@pytest.mark.parametrize("reading", list(READINGS))
@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_micro_batches_have_the_gradients_of_one_batch(reading: str, num_parts: int) -> None:
    settings = READINGS[reading]
    error = check(gradients(Host(**settings), data(), num_parts), one_batch(settings))
    assert error < 1e-5


def test_micro_batches_that_are_contrasted_apart_have_other_gradients() -> None:
    host = Host(rows=0)
    for part in data().chunk(4):
        (host.loss(part) / 4).backward()
    apart = {name: p.grad for name, p in host.named_parameters() if p.grad is not None}
    assert check(apart, one_batch({})) > 0.1


def test_fewer_rows_than_asked_are_refused() -> None:
    with pytest.raises(ValueError, match=r"mcl.rows=33 rows .* has 32: raise fit.global_batch"):
        gradients(Host(rows=33), data(), 2)
    with pytest.raises(ValueError, match="direction fixed"):
        MclConfig(rows=8, direction="redrawn")
    with pytest.raises(ValueError, match="works with variant infonce"):
        MclConfig(mode="exact", variant="nce", rows=8)


def run_rank(rank: int, port: int, reading: str, num_parts: int, file: Path) -> None:
    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)})
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = gradients(Host(**READINGS[reading]), data().chunk(2)[rank], num_parts)
    for gradient in found.values():
        dist.all_reduce(gradient)
    if rank == 0:
        write_tensors(file, {name: gradient / 2 for name, gradient in found.items()})
    dist.barrier()
    os._exit(0)


@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_two_processes_have_the_gradients_of_one_batch(num_parts: int, tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    context, reading = multiprocessing.get_context("forkserver"), "finite_difference"
    context.set_forkserver_preload(["worldmodel.training.loop.fit"])
    file = tmp_path / "two.safetensors"
    ranks = [
        context.Process(target=run_rank, args=(rank, port, reading, num_parts, file)) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
    assert [process.exitcode for process in ranks] == [0, 0]
    assert check(read_tensors(file), one_batch(READINGS[reading])) < 1e-5


def test_a_run_learns_the_same_however_its_step_is_cut(tmp_path: Path) -> None:
    weights = {}
    for micro_batch in (32, 8):
        host = Host()
        config = FitConfig(
            steps=2,
            global_batch=ROWS,
            micro_batch=micro_batch,
            trackers=(),
            optim=OptimConfig(lr=0.01, warmup_steps=0),
        )

        def step(model: Host, rows: Tensor, _: torch.Generator) -> Losses:
            loss = model.loss(rows)
            return Losses(loss, {"mcl": loss.detach()})

        def load(dataset: Tensor, indices, num_workers: int, pin_memory: bool):
            return (dataset[numbers] for numbers in indices)

        fit(step, host, data(), config, tmp_path / str(micro_batch), load=load)
        weights[micro_batch] = {name: p.detach() for name, p in host.named_parameters()}
    assert check(weights[8], weights[32]) < 1e-3
