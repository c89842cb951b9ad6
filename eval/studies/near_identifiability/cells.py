"""Data and autoencoders of the near-identifiability study: every cell trains all its seeds at once."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.diagnostics import bi_lipschitz
from worldmodel.md_vae.stack import StackLoss, train_stack
from worldmodel.md_vae.stacked_linear import StackedLinear

DATA, MODEL, BATCHES = 0, 1, 2  # random streams of a seed


@dataclass(frozen=True)
class StudyConfig:
    """The cells and how they are trained."""

    sources: tuple[str, ...] = ("uniform", "laplace", "normal")  # distributions of the synthetic factors
    bends: tuple[float, ...] = (0.3, 0.9)  # of the generator: 0 is linear, at 1 its slope vanishes in places
    latent_dim: int = 5  # synthetic factors, and size of the representation
    output_dim: int = 32  # of the synthetic data
    num_rows: int = 20_000  # synthetic samples
    dsprites: str = "data/dsprites_downsampled.npz"  # empty: left out
    dsprites_dims: tuple[int, ...] = (5, 10)  # sizes of the representation on dSprites
    seeds: int = 5  # autoencoders of each cell
    width: int = 128  # hidden units of the autoencoders, two layers on each side
    steps: int = 2000  # of the synthetic cells
    dsprites_steps: int = 1200  # of the dSprites cells
    batch_size: int = 256  # rows per step
    lr: float = 2e-3  # Adam, cosine to 0
    restarts: int = 4  # of the independent component analysis
    max_iter: int = 500  # of each restart


@dataclass(frozen=True)
class Cell:
    """One dataset with its factors, and the autoencoders trained on it."""

    name: str
    rows: Float[Tensor, "n x"]
    factors: Float[np.ndarray, "n k"]
    latent_dim: int
    steps: int
    facts: dict[str, float]  # about the data


class StackedAutoencoder(nn.Module):
    """One MLP autoencoder per seed, all trained at once."""

    def __init__(self, in_dim: int, latent_dim: int, width: int, seeds: int) -> None:
        super().__init__()
        self.seeds = seeds
        streams = [stream(seed, MODEL) for seed in range(seeds)]
        self.encoder = _mlp((in_dim, width, width, latent_dim), streams)
        self.decoder = _mlp((latent_dim, width, width, in_dim), streams)

    def forward(self, rows: Float[Tensor, "s n x"]) -> Float[Tensor, "s n x"]:
        return self.decoder(self.encoder(rows))


def _mlp(dims: tuple[int, ...], streams: Sequence[torch.Generator]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(dims):
        layers += [StackedLinear(before, after, streams), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def stream(seed: int, purpose: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + purpose)


def synthetic_cells(config: StudyConfig) -> Iterator[Cell]:
    """x = A (h + bend sin(3 h) / 3), h = B z; A, B have orthonormal columns: slopes 1 - bend to 1 + bend."""
    generator = stream(12345, DATA)
    wide = torch.linalg.qr(torch.randn(config.output_dim, config.latent_dim, generator=generator))[0]
    turn = torch.linalg.qr(torch.randn(config.output_dim, config.output_dim, generator=generator))[0]
    rng = np.random.default_rng(0)
    shape = (config.num_rows, config.latent_dim)
    draws = {
        "uniform": rng.uniform(-(3**0.5), 3**0.5, shape),
        "laplace": rng.laplace(scale=0.5**0.5, size=shape),
        "normal": rng.normal(size=shape),
    }
    for source in config.sources:
        for bend in config.bends:

            def generate(z: Tensor, bend: float = bend) -> Tensor:
                hidden = z @ wide.T.to(z)
                return (hidden + bend * torch.sin(3 * hidden) / 3) @ turn.T.to(z)

            z = torch.from_numpy(draws[source])
            ratio = bi_lipschitz(generate, z[:500])
            facts = {"generator_ratio_median": ratio.ratio_median, "generator_ratio_95": ratio.ratio_95}
            name = f"{source} bend {bend:g}"
            yield Cell(name, generate(z).float(), draws[source], config.latent_dim, config.steps, facts)


def dsprites_cells(config: StudyConfig) -> Iterator[Cell]:
    """All 46,080 images of the grid, averaged to 32 x 32."""
    with np.load(config.dsprites) as file:
        images, classes = torch.from_numpy(file["imgs"]), file["latents_classes"]
    small = images.unflatten(2, (32, 2)).unflatten(1, (32, 2)).float().mean((2, 4)).flatten(1)
    for latent_dim in config.dsprites_dims:
        name = f"dsprites d {latent_dim}"
        yield Cell(name, small, classes.astype(np.float64), latent_dim, config.dsprites_steps, {})


def train(cell: Cell, config: StudyConfig) -> tuple[StackedAutoencoder, Tensor]:
    """Train all seeds at once.

    Returns the model and each seed's mean squared error over the variance of the data.
    """
    model = StackedAutoencoder(cell.rows.shape[1], cell.latent_dim, config.width, config.seeds)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cell.steps)
    streams = [stream(seed, BATCHES) for seed in range(config.seeds)]
    shape = (config.batch_size,)
    batches = (
        cell.rows[torch.stack([torch.randint(len(cell.rows), shape, generator=part) for part in streams])]
        for _ in range(cell.steps)
    )

    def loss(batch: Tensor) -> StackLoss:
        return StackLoss((model(batch) - batch).square().mean((1, 2)))

    for _ in train_stack(batches, loss, optimizer, schedule=schedule):
        pass
    with torch.no_grad():
        some = cell.rows[:: max(1, len(cell.rows) // 5000)].expand(config.seeds, -1, -1)
        return model, (model(some) - some).square().mean((1, 2)) / cell.rows.var(0).mean()


def encode(model: StackedAutoencoder, rows: Float[Tensor, "n x"]) -> list[Float[np.ndarray, "n d"]]:
    """Every seed's representation of every row."""
    with torch.no_grad():
        parts = [model.encoder(part.expand(model.seeds, -1, -1)) for part in rows.split(2000)]
    return list(torch.cat(parts, dim=1).double().numpy())


def decoder(model: StackedAutoencoder, seed: int) -> Callable[[Tensor], Tensor]:
    """The decoder of one seed, as a function of its latents [n d]."""

    def decode(z: Tensor) -> Tensor:
        for layer in model.decoder:
            if isinstance(layer, StackedLinear):
                z = z @ layer.weight[seed].to(z) + layer.bias[seed].to(z)
            else:
                z = layer(z)
        return z

    return decode
