"""Which readings of MCL need the generator: the table of docs/mcl.md.

python eval/bench/mcl_readings.py            all readings, five minutes of one core
python eval/bench/mcl_readings.py --steps 50 jvp finite_difference

Every generator is fixed, so that critic and heads alone solve the contrast, or do not. `constant` and `blind`
ignore u. `shift` moves x by a vector of u: its mechanism J does not depend on u. `gmd` scales the latents by
u before it bends them, so that J does. Guessing one of 16 conditions scores 0.06.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from worldmodel.cli_errors import one_way_out
from worldmodel.mcl.config import MclConfig
from worldmodel.mcl.contrast import MechanisticContrast
from worldmodel.mcl.critics import ProjectionHead, VectorCritic
from worldmodel.mcl.rows import MclOutput

Kind = Literal["constant", "blind", "shift", "gmd"]
KINDS: tuple[Kind, ...] = ("constant", "blind", "shift", "gmd")
NUM_CONDITIONS, LATENT, OUTPUT, CONDITION, ROWS = 16, 3, 16, 8, 128
READINGS = {
    "the paper's letter": MclConfig(mode="exact"),
    "critic of x_hat and u": MclConfig(mode="exact", critic_sees="output_and_u"),
    "critic of x_hat": MclConfig(mode="exact", critic_sees="output"),
    "critic as drawn": MclConfig(mode="exact", critic="fixed"),
    "critic as drawn, of x_hat": MclConfig(mode="exact", critic="fixed", critic_sees="output"),
    "critic score_matched": MclConfig(mode="exact", critic="score_matched"),
    "first_order, the paper's letter": MclConfig(mode="first_order"),
    "jacobian_vjp": MclConfig(mode="exact", variant="jacobian_vjp"),
    "jvp": MclConfig(mode="jvp"),
    "finite_difference": MclConfig(mode="finite_difference"),
    "finite_difference, redrawn": MclConfig(mode="finite_difference", direction="redrawn"),
    "finite_difference, given": MclConfig(mode="finite_difference", direction="given"),
}


class Generator(nn.Module):
    """A smooth map of latents that uses the condition as its kind says."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.scale, self.move = nn.Linear(CONDITION, LATENT), nn.Linear(CONDITION, OUTPUT)
        self.net = nn.Sequential(nn.Linear(LATENT, 32), nn.Tanh(), nn.Linear(32, OUTPUT))
        self.requires_grad_(False)

    def forward(self, z: Float[Tensor, "n d"], u: Float[Tensor, "n a"]) -> Float[Tensor, "n x"]:
        """x_hat = G(z, u)."""
        x: Tensor = self.net(z * self.scale(u).exp() if self.kind == "gmd" else z)
        if self.kind == "constant":
            return 0 * x + 1
        return x + self.move(u) if self.kind == "shift" else x


@dataclass(frozen=True)
class Reading:
    """What one reading reached on one generator."""

    accuracy: float  # of new rows after training, mean of ten batches
    output: MclOutput  # of the last of them
    milliseconds: float  # CPU time of a training step


def conditions(seed: int = 0) -> Float[Tensor, "k a"]:
    """The 16 conditions."""
    return torch.randn(NUM_CONDITIONS, CONDITION, generator=torch.Generator().manual_seed(seed))


def learn(config: MclConfig, kind: Kind, *, steps: int = 400, seed: int = 0) -> Reading:
    """Train critic and heads on rows of one generator, and score them on new rows."""
    torch.manual_seed(seed)
    generator, alphabet = Generator(kind), conditions(seed)
    mcl = MechanisticContrast(
        config,
        VectorCritic(LATENT, OUTPUT, CONDITION, 64),
        ProjectionHead(config.feature_dim(LATENT, OUTPUT), 64),
        ProjectionHead(CONDITION, 64),
    )
    optimizer = torch.optim.Adam(mcl.parameters(), lr=3e-3)
    rng = torch.Generator().manual_seed(seed)

    def output() -> MclOutput:
        u = alphabet[torch.randint(NUM_CONDITIONS, (ROWS,), generator=rng)]
        found: MclOutput = mcl(generator, torch.randn(ROWS, LATENT, generator=rng), u, rng=rng)
        return found

    start = time.process_time()
    for _ in range(steps):
        loss = output().loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = time.process_time() - start
    with torch.no_grad():
        mcl.eval()
        found = [output() for _ in range(10)]
    accuracy = torch.stack([one.accuracy for one in found]).mean().item()
    return Reading(accuracy, found[-1], 1000 * seconds / steps)


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"readings, all by default: {', '.join(READINGS)}")
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(f"| reading | {' | '.join(KINDS)} | ms a step |\n|---|{'---|' * (len(KINDS) + 1)}")
    for name in arguments.names or READINGS:
        found = [learn(READINGS[name], kind, steps=arguments.steps) for kind in KINDS]
        scores = " | ".join(f"{one.accuracy:.2f}" for one in found)
        print(f"| {name} | {scores} | {min(one.milliseconds for one in found):.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
