"""Time 30 seeds of a identifiability cell trained at once against the same steps run one seed after another.

python eval/bench/identifiability.py [--latent-dims 20 10 5] [--rounds 15]

The base is what one would write first: nn.Linear modules, torch.optim.Adam, batches indexed from tensors in
memory, one seed after another, with whichever of 1 and 2 torch threads is faster. Rounds alternate, so
that other load on the machine meets both sides, and medians count; best rounds and CPU time stand beside.
Ours also pays its share of drawing an epoch's order and noise, which is timed apart.
"""

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from worldmodel.cli_errors import one_way_out
from worldmodel.mcl.config import MclConfig
from worldmodel.md_vae.model import VaeConfig
from worldmodel.md_vae.simulation import (
    IdentifiabilityDataConfig,
    draw_identifiability_data,
)
from worldmodel.md_vae.stack import train_stack
from worldmodel.md_vae.stacked import OptimizationConfig, SeedStack, split_seeds

NUM_SEEDS, NUM_THREADS, BATCH = 30, 2, 256
BASE_STEPS, STACK_STEPS = 120, 20  # steps of a round: some 300 ms for either side


class Clock:
    """Milliseconds per seed-step of every round."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def time(self, work: Callable[[], object], seed_steps: int) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        self.wall.append(1e3 * (time.perf_counter() - wall) / seed_steps)
        self.cpu.append(1e3 * (time.process_time() - cpu) / seed_steps)

    def __str__(self) -> str:
        wall, cpu = statistics.median(self.wall), statistics.median(self.cpu)
        return f"{self.name:40s} best {min(self.wall):6.3f}, median {wall:6.3f} wall; {cpu:6.3f} CPU"


class PlainVae(nn.Module):
    """The concat MD-VAE of one seed, written the usual way."""

    def __init__(self, data: IdentifiabilityDataConfig) -> None:
        super().__init__()
        d, x, a, width = data.latent_dim, data.width, data.condition_dim, data.width
        self.encoder = three_layers(x + a, width, 2 * d)
        self.decoder = three_layers(d + a, width, x)

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        mean, log_std = self.encoder(torch.cat([x, u], dim=-1)).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * log_std.exp()
        error = (self.decoder(torch.cat([z, u], dim=-1)) - x).square().sum(-1) / (2 * 0.1**2)
        kl = 0.5 * (mean.square() + (2 * log_std).exp() - 1 - 2 * log_std).sum(-1)
        return (error + kl).mean()


def three_layers(in_dim: int, width: int, out_dim: int) -> nn.Sequential:
    layers = [nn.Linear(in_dim, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(width, out_dim))


def plain_steps(data: IdentifiabilityDataConfig) -> Iterator[None]:
    """The base: each `next` is one step of one seed."""
    sample = draw_identifiability_data(data, [0])
    x, u = sample.x[0, : sample.num_train].clone(), sample.u[0, : sample.num_train].clone()
    model = PlainVae(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    while True:
        for rows in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
            loss = model(x[rows], u[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield


def stacked_steps(stack: SeedStack) -> Iterator[None]:
    """Ours: each `next` is one step of every seed of the stack."""
    for epoch in itertools.count(1):
        for rows, noise in stack.batches(epoch):
            next(train_stack([(rows, noise, 0)], stack.loss, stack.optimizer))
            yield


def advance(steps: Iterator[None], count: int) -> float:
    """Take some steps; CPU seconds of this thread."""
    start = time.thread_time()
    for _ in range(count):
        next(steps)
    return time.thread_time() - start


def flops_per_seed_step(data: IdentifiabilityDataConfig) -> float:
    """Multiplications and additions of all matrix products, forward and backward."""
    d, x, a, width = data.latent_dim, data.width, data.condition_dim, data.width
    first = (x + a) * width  # its input needs no gradient
    rest = width * width + width * 2 * d + (d + a) * width + width * width + width * x
    return 2.0 * BATCH * (2 * first + 3 * rest)


def matmul_peak(pool: ThreadPoolExecutor, rounds: int) -> float:
    """Floating-point operations per second of large products, one per thread at the same time."""
    size, best = 768, 0.0
    left, right = torch.randn(2, size, size)
    for _ in range(rounds):
        start = time.perf_counter()
        list(pool.map(lambda _: [left @ right for _ in range(4)], range(NUM_THREADS)))
        best = max(best, NUM_THREADS * 4 * 2 * size**3 / (time.perf_counter() - start))
    return best


def bench(latent_dim: int, rounds: int, pool: ThreadPoolExecutor) -> float:
    data = IdentifiabilityDataConfig(latent_dim=latent_dim)
    print(f"d_z {latent_dim}, |U| 8, N {data.num_samples}, batch {BATCH}; milliseconds per seed-step")
    torch.set_num_threads(1)
    settings = (data, VaeConfig(), MclConfig(), OptimizationConfig(batch_size=BATCH))
    parts = split_seeds(range(NUM_SEEDS), NUM_THREADS)
    stacks = list(pool.map(lambda part: SeedStack(*settings, part), parts))
    streams = [stacked_steps(stack) for stack in stacks]
    base = plain_steps(data)
    plain = {count: Clock(f"one seed after another, {count} torch threads") for count in (1, NUM_THREADS)}
    stacked = Clock(f"{NUM_SEEDS} seeds at once, {NUM_THREADS} threads")
    drawing = Clock("order and noise, per epoch of all seeds")

    slower: list[float] = []

    def stacked_round() -> None:
        slower.append(max(pool.map(lambda steps: advance(steps, STACK_STEPS), streams)))

    for _ in range(rounds):
        for count, clock in plain.items():
            torch.set_num_threads(count)
            clock.time(lambda: advance(base, BASE_STEPS), BASE_STEPS)
        torch.set_num_threads(1)
        stacked.time(stacked_round, STACK_STEPS * NUM_SEEDS)
        drawing.time(lambda: list(pool.map(lambda stack: next(stack.batches(1)), stacks)), 1)
    seed_steps = NUM_SEEDS * stacks[0].steps_per_epoch
    ours = statistics.median(stacked.wall) + statistics.median(drawing.wall) / seed_steps
    reached, peak = flops_per_seed_step(data) / (ours * 1e-3), matmul_peak(pool, rounds)
    for clock in (*plain.values(), stacked, drawing):
        print(f"  {clock}")
    print(f"  {reached / 1e9:.1f} of {peak / 1e9:.1f} GFLOP/s of large matmuls ({reached / peak:.0%})")
    base_cpu, free_cores = statistics.median(plain[1].cpu), 1e3 * statistics.median(slower)
    print(f"  CPU time per seed-step: {base_cpu / statistics.median(stacked.cpu):.1f}x less")
    # The threads share nothing, so with both cores free a round lasts as long as the slower one computes.
    ratio = base_cpu * STACK_STEPS * NUM_SEEDS / free_cores
    print(f"  CPU time of the base over that of the slower thread: {ratio:.1f}x", flush=True)
    return min(statistics.median(clock.wall) for clock in plain.values()) / ours


@one_way_out
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latent-dims", type=int, nargs="+", default=[20, 10, 5], help="values of d_z")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        ratios = {dim: bench(dim, arguments.rounds, pool) for dim in arguments.latent_dims}
    for dim, ratio in ratios.items():
        print(f"all seeds at once over one seed after another, wall, d_z {dim}: {ratio:.1f}x")


if __name__ == "__main__":
    main()
