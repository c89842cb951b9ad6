"""Generators with given, overlapping supports, and autoencoders trained on them with one criterion.

Three factors of two coordinates sit on a ring; each moves `SUPPORT` outputs, of which a share `overlap` is
shared with its two neighbors. Shared outputs add the effects of both factors (`additive`: Type H holds) or
mix them inside a nonlinearity (`mixed`: it does not). All seeds of a cell train at once, as one stack. Axes:
s seeds, b batch, m outputs, d latent coordinates, w width.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from worldmodel.diagnostics import compositional_contrast, support_graph
from worldmodel.diagnostics.mechanisms.higher_order import second_derivative
from worldmodel.diagnostics.mechanisms.jacobians import Blocks
from worldmodel.diagnostics.mechanisms.mechanistic import compositional_contrast_loss
from worldmodel.diagnostics.mechanisms.sparse_volume import sparse_volume_loss
from worldmodel.md_vae.stack import StackLoss, train_stack

BLOCKS = ((0, 1), (2, 3), (4, 5))
COORDINATES = tuple((i,) for i in range(6))
DIM, SUPPORT, FEATURES = 6, 40, 24  # latent coordinates; outputs of a factor; hidden units of a unit
TEST_POINTS = 450  # two thirds fit the kernel regression, the rest scores it
# "_coordinates": the criterion treats every coordinate as a factor; blocks are found afterwards.
Objective = Literal[
    "none",
    "contrast",
    "contrast_normalized",
    "contrast_coordinates",
    "sparse_volume",
    "sparse_coordinates",
    "hessian",
]


@dataclass(frozen=True)
class CellConfig:
    """One cell of the study."""

    overlap: float = 0.0  # share of a factor's outputs that it shares with neighbors
    interaction: Literal["additive", "mixed"] = "additive"  # how shared outputs combine two factors
    objective: Objective = "contrast"  # criterion that is added to the reconstruction loss
    weight: float = 0.1  # of the criterion
    first_seed: int = 0  # first of the seeds, which determine generator, weights and data
    num_seeds: int = 5  # trained in parallel
    steps: int = 900  # gradient steps
    batch_size: int = 64  # fresh points per step
    criterion_size: int = 32  # points for the criterion
    width: int = 64  # hidden units of encoder and decoder, two layers each
    lr: float = 3e-3  # Adam, cosine to 0
    trace_every: int = 150  # steps between evaluations

    @property
    def generator_name(self) -> str:
        """Type of the shared outputs, and their share in percent."""
        return f"{self.interaction}_{round(100 * self.overlap):02d}"

    @property
    def name(self) -> str:
        """Key of the result."""
        length = "" if self.steps == CellConfig.steps else f"_{self.steps}steps"
        return f"{self.generator_name}_{self.objective}_w{self.weight:g}_s{self.first_seed}{length}"

    @property
    def seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.num_seeds)


class RingGenerator:
    """x = g(z) for every seed of a stack; smooth, with exactly the supports of the config."""

    def __init__(self, config: CellConfig) -> None:
        shared = round(config.overlap * SUPPORT / 2)
        sizes: list[tuple[tuple[int, ...], int]] = [((i,), SUPPORT - 2 * shared) for i in range(3)]
        sizes += [(pair, shared) for pair in ((0, 1), (1, 2), (2, 0))]
        parts = [(owners, size) for owners, size in sizes if size]
        stacks = [[_unit(owners, size, config, seed) for owners, size in parts] for seed in config.seeds]
        self.inner = torch.stack([torch.cat([unit[0] for unit in units], 1) for units in stacks])
        self.bias = torch.stack([torch.cat([unit[1] for unit in units]) for units in stacks]).unsqueeze(1)
        self.outer = torch.stack([torch.block_diag(*(unit[2] for unit in units)) for units in stacks])

    @property
    def num_outputs(self) -> int:
        return self.outer.shape[2]

    def __call__(self, z: Tensor) -> Tensor:
        """Points [s b d] to outputs [s b m]."""
        return torch.tanh(z @ self.inner.to(z) + self.bias.to(z)) @ self.outer.to(z)

    def of_seed(self, index: int) -> "SeedGenerator":
        return SeedGenerator(self.inner[index], self.bias[index], self.outer[index])


@dataclass(frozen=True)
class SeedGenerator:
    """One seed's generator, [n d] -> [n m], for the diagnostics."""

    inner: Tensor
    bias: Tensor
    outer: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        return torch.tanh(z @ self.inner.to(z) + self.bias.to(z)) @ self.outer.to(z)


class StackedAutoencoder(nn.Module):
    """Encoder and decoder of every seed; the decoder can also return its Jacobian."""

    def __init__(self, num_outputs: int, config: CellConfig) -> None:
        super().__init__()
        self.encoder = _layers((num_outputs, config.width, config.width, DIM), config.seeds)
        self.decoder = _layers((DIM, config.width, config.width, num_outputs), config.seeds)

    def encode(self, x: Tensor) -> Tensor:
        return _forward(self.encoder, x)

    def decode(self, z: Tensor) -> Tensor:
        return _forward(self.decoder, z)

    def decode_with_jacobian(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [s b m] and Jacobians [s b m d], one forward pass with d tangents."""
        seeds, batch, dim = z.shape
        tangents = torch.eye(dim).expand(seeds, batch, dim, dim).reshape(seeds, batch * dim, dim)
        weights, biases = list(self.decoder)[::2], list(self.decoder)[1::2]
        for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            z, tangents = torch.baddbmm(bias, z, weight), tangents @ weight
            if index < len(weights) - 1:
                z = torch.tanh(z)
                slopes = (1 - z.square()).unsqueeze(2)
                tangents = (tangents.unflatten(1, (batch, dim)) * slopes).flatten(1, 2)
        return z, tangents.unflatten(1, (batch, dim)).transpose(2, 3)


def train_cell(config: CellConfig) -> dict[str, Any]:
    """Train all seeds of a cell and score them at intervals."""
    start = time.process_time()
    generator = RingGenerator(config)
    model = StackedAutoencoder(generator.num_outputs, config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, foreach=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    draws = [torch.Generator().manual_seed(10_000 + seed) for seed in config.seeds]
    points = (
        torch.stack([torch.rand(config.batch_size, DIM, generator=one) for one in draws]) * 2 - 1
        for _ in range(config.steps)
    )
    steps = train_stack(
        points,
        lambda truth: StackLoss(_loss(model, generator(truth), config, draws[0])),
        optimizer,
        schedule=schedule,
        max_norm=1.0 * config.num_seeds,
    )
    trace = []
    for step, _ in enumerate(steps, 1):
        if step % config.trace_every == 0:
            trace.append({"step": step, **evaluate(model, generator, config)})
    return {"config": asdict(config), "trace": trace, "cpu_seconds": round(time.process_time() - start, 1)}


def _loss(model: StackedAutoencoder, x: Tensor, config: CellConfig, rng: torch.Generator) -> Tensor:
    """Sum over seeds of mean squared error + weight * criterion; seeds share no parameters."""
    z = model.encode(x)
    error = (model.decode(z) - x).square().mean((1, 2)).sum()
    if config.objective == "none":
        return error
    few = z[:, : config.criterion_size]
    if config.objective == "hessian":
        return error + config.weight * hessian_loss(model, few, rng)
    _, jacobian = model.decode_with_jacobian(few)
    blocks = COORDINATES if config.objective.endswith("coordinates") else BLOCKS
    measure: Callable[[Tensor, Blocks], Tensor] = sparse_volume_loss
    if config.objective.startswith("contrast"):
        normalized = config.objective == "contrast_normalized"
        measure = partial(compositional_contrast_loss, normalized=normalized)
    return error + config.weight * config.num_seeds * measure(jacobian, blocks)


def hessian_loss(model: StackedAutoencoder, z: Tensor, rng: torch.Generator) -> Tensor:
    """Share of squared second derivatives across factors, from one pair of probes per point."""
    block = BLOCKS[int(torch.randint(len(BLOCKS), (), generator=rng))]
    own = torch.zeros(DIM)
    own[list(block)] = 1
    u, v = (torch.randn(z.shape, generator=rng) for _ in range(2))
    across = second_derivative(model.decode, z, u * own, v * (1 - own)).square().sum((1, 2))
    within = second_derivative(model.decode, z, u * own, v * own).square().sum((1, 2))
    return (across / (across + within + 1e-12)).sum()


@torch.no_grad()
def evaluate(model: StackedAutoencoder, generator: RingGenerator, config: CellConfig) -> dict[str, Any]:
    """Scores of every seed on new points."""
    rng = torch.Generator().manual_seed(99)
    truth = (torch.rand(TEST_POINTS, DIM, generator=rng) * 2 - 1).expand(config.num_seeds, -1, -1)
    x = generator(truth)
    z = model.encode(x)
    jacobian = model.decode_with_jacobian(z[:, :64])[1].double()
    unexplained = (model.decode(z) - x).square().mean((1, 2)) / x.var((1, 2))
    graphs = [support_graph(one) for one in jacobian]
    orders = [best_pairing(graph.weights) for graph in graphs]
    regrouped = torch.stack([one[:, order] for one, order in zip(z, orders, strict=True)])
    found = slot_recovery(truth.double(), regrouped.double())
    return {
        "unexplained": unexplained.tolist(),
        **slot_recovery(truth.double(), z.double()),
        **{f"regrouped_{name}": values for name, values in found.items()},
        "contrast": [compositional_contrast(one, blocks=BLOCKS).normalized for one in jacobian],
        "sparse_volume": [sparse_volume_loss(one, BLOCKS).item() for one in jacobian],
        "sparse_coordinates": [sparse_volume_loss(one, COORDINATES).item() for one in jacobian],
        "merges": [graph.merges.tolist() for graph in graphs],
        "block_merges": [_block_merges(one) for one in jacobian],
        "regrouped_block_merges": [
            _block_merges(one[:, :, order]) for one, order in zip(jacobian, orders, strict=True)
        ],
    }


def best_pairing(weights: np.ndarray) -> list[int]:
    """Order of the coordinates that puts pairs joined by the heaviest edges side by side."""

    def pairings(left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if not left:
            yield ()
        for other in left[1:]:
            rest = tuple(i for i in left[1:] if i != other)
            yield from ((left[0], other, *tail) for tail in pairings(rest))

    def total(order: tuple[int, ...]) -> float:
        return sum(weights[order[i], order[i + 1]] for i in range(0, DIM, 2))

    heaviest = max(pairings(tuple(range(DIM))), key=total)
    return list(heaviest)


def _block_merges(jacobian: Tensor) -> list[float]:
    """Merge weights of the support graph with factors as vertices."""
    norms = torch.stack([jacobian[:, :, list(block)].norm(dim=2) for block in BLOCKS], 2)
    return support_graph(norms).merges.tolist()


def slot_recovery(truth: Tensor, estimate: Tensor) -> dict[str, list[float]]:
    """R^2 of true factors from matched and from the best other estimated factor, and their difference.

    RBF kernel ridge regression (alpha 1, gamma 1 / size) on two thirds of the points, scored on the rest, and
    the best one-to-one matching, as in the slot identifiability score of the compositional-contrast paper.
    """
    scores: dict[str, list[float]] = {"matched": [], "unmatched": [], "recovery": []}
    for true, estimated in zip(truth, estimate, strict=True):
        table = np.array([_kernel_r2(estimated[:, list(block)], true) for block in BLOCKS])
        rows, columns = linear_sum_assignment(table, maximize=True)
        others = table.copy()
        others[rows, columns] = -np.inf
        matched = float(table[rows, columns].mean())
        unmatched = float(np.maximum(others.max(0), 0).mean())
        scores["matched"].append(matched)
        scores["unmatched"].append(unmatched)
        scores["recovery"].append(matched - unmatched)
    return scores


def _kernel_r2(inputs: Tensor, truth: Tensor) -> np.ndarray:
    """R^2 of every true factor from one estimated factor."""
    inputs, targets = ((part - part.mean(0)) / (part.std(0) + 1e-12) for part in (inputs, truth))
    cut = 2 * len(inputs) // 3
    kernel = torch.exp(-torch.cdist(inputs, inputs[:cut]).square() / inputs.shape[1])
    solution = torch.linalg.solve(kernel[:cut] + torch.eye(cut).to(kernel), targets[:cut])
    error = (targets[cut:] - kernel[cut:] @ solution).square().mean(0)
    r2 = 1 - error / targets[cut:].var(0, correction=0)
    return np.array([r2[list(block)].mean().item() for block in BLOCKS])


def _unit(owners: tuple[int, ...], size: int, config: CellConfig, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of one group of outputs: into the hidden layer, its bias, out of it."""
    # The draw depends only on seed and position, so that cells of one seed share as much as possible.
    rng = torch.Generator().manual_seed(1000 * seed + 10 * len(owners) + owners[0])
    mask = torch.zeros(DIM, FEATURES)
    for number, owner in enumerate(owners):
        hears = slice(number, None, len(owners)) if config.interaction == "additive" else slice(None)
        mask[list(BLOCKS[owner]), hears] = 1
    inner = 1.5 * torch.randn(DIM, FEATURES, generator=rng) * mask
    bias = 0.5 * torch.randn(FEATURES, generator=rng)
    outer = torch.randn(SUPPORT, FEATURES, generator=rng)[:size].T / FEATURES**0.5
    return inner, bias, outer


def _layers(sizes: tuple[int, ...], seeds: range) -> nn.ParameterList:
    """Weights [s in out] and biases [s 1 out], alternating; each seed draws its own."""
    rngs = [torch.Generator().manual_seed(500 + 7919 * seed) for seed in seeds]
    parameters = []
    for inputs, outputs in pairwise(sizes):
        weights = [torch.randn(inputs, outputs, generator=rng) / inputs**0.5 for rng in rngs]
        parameters += [nn.Parameter(torch.stack(weights)), nn.Parameter(torch.zeros(len(rngs), 1, outputs))]
    return nn.ParameterList(parameters)


def _forward(layers: nn.ParameterList, x: Tensor) -> Tensor:
    weights, biases = list(layers)[::2], list(layers)[1::2]
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = torch.baddbmm(bias, x, weight)
        x = torch.tanh(x) if index < len(weights) - 1 else x
    return x
