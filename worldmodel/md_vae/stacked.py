"""Several seeds of a identifiability cell as one stack of models: the steps of each seed, in batched kernels.

All that is random depends on (seed, epoch) only: a stack, a part of it and a resumed run draw the same.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from worldmodel.diagnostics.identifiability.joint_diagonalization import ConditionAlignment
from worldmodel.diagnostics.identifiability.latent_recovery import latent_recovery
from worldmodel.mcl.config import MclConfig
from worldmodel.mcl.contrast import MechanisticContrast
from worldmodel.mcl.critics import ProjectionHead, VectorCritic
from worldmodel.mcl.gradient_flow import flow_report, gradient_flow
from worldmodel.md_vae.model import StackedVae, VaeConfig
from worldmodel.md_vae.penalties import Penalty, penalty_of
from worldmodel.md_vae.simulation import (
    IdentifiabilityData,
    IdentifiabilityDataConfig,
    draw_identifiability_data,
    random_stream,
)
from worldmodel.md_vae.stack import StackLoss, train_stack
from worldmodel.md_vae.stacked_linear import StackedLinear

(MODEL, CONTRAST, ORDER, POSTERIOR, DIRECTION, TEST) = range(
    100, 106
)  # random streams of a seed, beside the data's
Batch = tuple[Tensor, Tensor, int]  # rows [x, u], posterior noise, number of the step
CPU = torch.device("cpu")
CONTRAST_SAMPLES = 512  # test samples that the contrast is scored on
ALIGNMENT_SAMPLES = 10_000  # training samples that find the axes after training


@dataclass(frozen=True)
class OptimizationConfig:
    """How a cell is trained."""

    epochs: int = 200  # passes over the training split
    batch_size: int = 256  # samples per seed and step
    lr: float = 1e-3  # Adam
    schedule: Literal["constant", "cosine"] = "constant"  # cosine: to 0 at the last epoch
    precision: Literal["float32", "bfloat16"] = "float32"  # of a step's products; weights stay in float32
    mcl_weight: float = 0.0  # lambda_MCL; 0 leaves MCL out
    penalty: Penalty = "none"  # on the generator, to compare MCL with
    penalty_weight: float = 1.0  # of the penalty
    restart: int = 0  # another number, other initial weights on the same data

    def lr_at(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 1."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / self.epochs))


class SeedStack:
    """Models, optimizer and data of some seeds."""

    def __init__(
        self,
        data: IdentifiabilityDataConfig,
        model: VaeConfig,
        mcl: MclConfig,
        optimization: OptimizationConfig,
        seeds: Sequence[int],
        device: torch.device = CPU,
    ) -> None:
        self.seeds, self.data, self.optimization = tuple(seeds), data, optimization
        self.device = device
        self._load(draw_identifiability_data(data, seeds))
        self.model = StackedVae(
            model,
            latent_dim=data.latent_dim,
            output_dim=self.row_dims[0],
            condition_dim=data.condition_dim,
            streams=[random_stream(seed, MODEL, optimization.restart) for seed in seeds],
        ).to(device)
        self.mcl = self._contrast(mcl).to(device) if optimization.mcl_weight else None
        self.parameters = [*self.model.parameters(), *(self.mcl.parameters() if self.mcl else ())]
        groups = [{"params": list(self.model.parameters())}]
        if self.mcl is not None:
            groups.append(self.mcl.optimizer_group(optimization.lr))
        self.optimizer = torch.optim.Adam(groups, lr=optimization.lr, fused=True)
        self.initial_lrs = [group["lr"] for group in self.optimizer.param_groups]

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of the training split."""
        return self.num_train // self.optimization.batch_size

    def train_epoch(self, epoch: int) -> dict[str, list[float]]:
        """One pass over the training split, epochs counted from 1; mean losses per seed."""
        factor = self.optimization.lr_at(epoch) / self.optimization.lr
        for group, lr in zip(self.optimizer.param_groups, self.initial_lrs, strict=True):
            group["lr"] = lr * factor
        sums: dict[str, Tensor] = {}
        for values in train_stack(self._numbered(epoch), self.loss, self.optimizer):
            for name, value in values.items():
                sums[name] = sums[name] + value if name in sums else value
        return {name: (value / self.steps_per_epoch).tolist() for name, value in sums.items()}

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows [x, u] and posterior noise of every step of an epoch, [s b ...]."""
        size = self.optimization.batch_size
        order, noise = self._order(epoch), self._noise(POSTERIOR, self.steps_per_epoch * size, epoch)
        for start in range(0, self.steps_per_epoch * size, size):
            part = slice(start, start + size)
            rows = self.train_rows.index_select(0, order[:, part].reshape(-1))
            yield rows.unflatten(0, (-1, size)), noise[:, part]

    def _numbered(self, epoch: int) -> Iterator[Batch]:
        for count, (rows, noise) in enumerate(self.batches(epoch), epoch * self.steps_per_epoch):
            yield rows, noise, count

    def loss(self, batch: Batch) -> StackLoss:
        """Of all seeds on one batch; the number of the step seeds MCL's random directions."""
        rows, noise, count = batch
        is_half = self.optimization.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=is_half):
            x, u = rows.split(self.row_dims, dim=-1)
            return self._loss(x, u, noise, count)

    def _loss(self, x: Tensor, u: Tensor, noise: Tensor, count: int) -> StackLoss:
        loss = self.model.loss(x, u, noise)
        values = {"reconstruction": loss.reconstruction, "kl": loss.kl}
        total = loss.reconstruction + self.model.config.beta * loss.kl
        if self.mcl is not None:
            contrast = self.mcl(self.model.generate, loss.z, u, rng=self._draws(count))
            total = total + self.optimization.mcl_weight * contrast.loss
            values |= {"mcl": contrast.loss, "mcl_accuracy": contrast.accuracy}
        if self.optimization.penalty != "none":
            kind, rng = self.optimization.penalty, random_stream(DIRECTION, count)
            penalty = penalty_of(kind, lambda z: self.model.generate(z, u), loss.z, rng)
            total = total + self.optimization.penalty_weight * penalty
            values["penalty"] = penalty
        return StackLoss(total, values)

    def evaluate(self) -> dict[str, list[float]]:
        """Scores and parts of the bound on the test split, one value per seed."""
        x, u = self.test_rows.split(self.row_dims, dim=-1)
        with torch.no_grad():
            latents = self.model.latents(x, u)
            latents |= self._aligned(latents)
            loss = self.model.loss(x, u, self._noise(TEST, x.shape[1]))
            modulated = self.truth.modulate(self.test_z, u.cpu())
        scores = self._contrast_scores(loss.z, u)
        for name, estimate in latents.items():
            estimate = estimate.cpu()
            target = modulated if name == "modulated" else self.test_z
            prefix = "" if name == "latent" else f"{name}_"
            # The latents of a seed that diverged become constants, which correlate with nothing.
            found = latent_recovery(target, estimate.nan_to_num(0.0, 0.0, 0.0), self.test_condition)
            scores.update({prefix + key: value.tolist() for key, value in found.items()})
        bound = {"reconstruction": loss.reconstruction, "kl": loss.kl, "elbo": -loss.negative_elbo}
        return scores | {name: value.tolist() for name, value in bound.items()}

    def _aligned(self, latents: dict[str, Tensor]) -> dict[str, Tensor]:
        """Latents of the test split, unmixed by what training samples tell about the conditions.

        For models whose encoder has a latent in the modulated space; the others have the same N(0, I) under
        every condition, so there is nothing to tell axes apart.
        """
        name = {"beta_vae": "latent"}.get(self.model.config.family, "modulated")
        if name not in latents:
            return {}
        rows = self.train_rows.unflatten(0, (len(self.seeds), -1))[:, :ALIGNMENT_SAMPLES]
        fitted = self.model.latents(*rows.split(self.row_dims, dim=-1))[name].nan_to_num(0.0, 0.0, 0.0)
        alignment = ConditionAlignment().fit(fitted.cpu(), self.train_condition)
        return {"aligned": alignment.transform(latents[name].cpu(), self.test_condition)}

    def _contrast_scores(self, z: Tensor, u: Tensor) -> dict[str, list[float]]:
        """What the contrast reaches on test samples, by which path."""
        if self.mcl is None:
            return {}
        part = slice(CONTRAST_SAMPLES)
        with torch.no_grad():
            found = self.mcl.eval()(self.model.generate, z[:, part], u[:, part], rng=self._draws(0))
        self.mcl.train()
        names = ("accuracy", "accuracy_direct", "accuracy_generator", "generator_share", "chance")
        return {f"mcl_{name}": getattr(found, name).tolist() for name in names}

    def _draws(self, count: int) -> torch.Generator:
        """The source of MCL's random directions at a step."""
        return random_stream(DIRECTION, count)

    def mcl_statement(self) -> str:
        """Which parts of the models MCL trains, found on one batch."""
        assert self.mcl is not None, "no MCL in this cell"
        rows, noise = next(self.batches(1))
        x, u = rows.split(self.row_dims, dim=-1)
        loss = self.model.loss(x, u, noise)
        contrast = self.mcl(self.model.generate, loss.z, u, rng=self._draws(0))
        modules = {"encoder": self.model.encoder, "decoder": self.model.decoder} | dict(
            self.mcl.named_children()
        )
        if self.model.condition_net is not None:
            modules["condition_net"] = self.model.condition_net
        groups = {name: module.parameters() for name, module in modules.items()}
        return flow_report(self.mcl.config, gradient_flow(contrast.loss, groups))

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint holds."""
        slots = {
            f"{index:02d}/{key}": value
            for index, parameter in enumerate(self.parameters)
            for key, value in self.optimizer.state[parameter].items()
        }
        weights = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        if self.mcl is not None:
            weights |= {f"mcl.{name}": value for name, value in self.mcl.state_dict().items()}
        return {"weights": weights, "optimizer": slots}

    def restore(self, weights: dict[str, Tensor], slots: dict[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        modules = nn.ModuleDict({"model": self.model} | ({"mcl": self.mcl} if self.mcl is not None else {}))
        modules.load_state_dict(weights)
        for name, value in slots.items():
            index, key = name.split("/")
            self.optimizer.state[self.parameters[int(index)]][key] = value

    def _load(self, drawn: IdentifiabilityData) -> None:
        rows = torch.cat([drawn.x, drawn.u], dim=-1)
        self.row_dims = [drawn.x.shape[-1], drawn.u.shape[-1]]
        self.num_train = cut = drawn.num_train
        self.train_rows = rows[:, :cut].reshape(-1, rows.shape[-1]).to(self.device)
        self.test_rows = rows[:, cut:].clone().to(self.device)
        self.test_z = drawn.z[:, cut:].clone()
        self.test_condition = drawn.condition[:, cut:].clone()
        self.train_condition = drawn.condition[:, : min(cut, ALIGNMENT_SAMPLES)].clone()
        self.truth, self.alphabet = drawn.truth, drawn.alphabet

    def _contrast(self, config: MclConfig) -> MechanisticContrast:
        restart = self.optimization.restart
        # The first start keeps the key it had before there were others.
        key = (CONTRAST, restart) if restart else (CONTRAST,)
        linear = partial(StackedLinear, streams=[random_stream(seed, *key) for seed in self.seeds])
        d, (x, a) = self.data.latent_dim, self.row_dims
        head = ProjectionHead(config.feature_dim(d, x), config.embedding_dim, linear=linear)
        critic = VectorCritic(d, x, a, config.critic_hidden, linear=linear)
        return MechanisticContrast(
            config, critic, head, ProjectionHead(a, config.embedding_dim, linear=linear)
        )

    def _order(self, epoch: int) -> Tensor:
        """Positions of each seed's shuffled samples among the stacked training rows."""
        size = self.num_train
        draws = [torch.randperm(size, generator=random_stream(seed, ORDER, epoch)) for seed in self.seeds]
        positions = torch.stack(draws) + torch.arange(len(self.seeds)).unsqueeze(1) * size
        return positions.to(self.device)

    def _noise(self, purpose: int, num_rows: int, *key: int) -> Tensor:
        shape = num_rows, self.data.latent_dim
        return torch.stack(
            [torch.randn(shape, generator=random_stream(seed, purpose, *key)) for seed in self.seeds]
        ).to(self.device)


def split_seeds(seeds: Sequence[int], num_parts: int) -> list[list[int]]:
    """Consecutive parts of nearly equal size, none empty."""
    parts = np.array_split(np.asarray(seeds), min(num_parts, len(seeds)))
    return [part.tolist() for part in parts]
