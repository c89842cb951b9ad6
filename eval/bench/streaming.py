"""Speed of interactive video: frames per second of a session, delay from action to frame, memory.

    python eval/bench/streaming.py [key=value ...]        --help lists the keys

A step has 4 actions and returns 4 frames at once: the delay from the first action of a step to its first
frame is the time of a step. Variants: `causal`, one latent frame per step with a KV cache; `clips`, the same
network on whole clips, of which a step keeps 4 frames; `clips of 16`, the same for steps of 16 actions. Times
are CPU seconds of one thread, the median over steps. Without `model` the backbone has the shape of the desk
model with random weights: only cost is measured, not quality. `out=FILE` saves the results as JSON.
"""

import dataclasses
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from worldmodel.cli_errors import one_way_out
from worldmodel.config import describe_config, load_config
from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.files import write_json
from worldmodel.models.actions.protocol import blank_extras
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.pipelines.session import Session
from worldmodel.types import FRAMES_PER_LATENT, Actions

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script's path contains only its own folder
from bench.rollout import DESK, BenchConfig, build_model


@dataclass(frozen=True)
class StreamBenchConfig:
    """What is measured."""

    model: str = ""  # world model folder or name; empty: the shape of the desk model
    batches: tuple[int, ...] = (1, 8)  # videos at once
    steps: int = 1  # Euler steps
    rounds: int = 40  # timed steps of a session
    lengths: tuple[int, ...] = (100, 5000)  # frames after which memory and the time of a step are measured
    out: str = ""  # JSON file for the figures; empty: printed only


def load_model(config: StreamBenchConfig) -> WorldModel:
    """The named model, or one of the desk model's shape with a refiner."""
    if config.model:
        return WorldModel.from_pretrained(config.model)
    return build_model(BenchConfig(backbone=DESK), 1, SmallNetConfig(scene=False, refiner_width=64))


def as_causal(model: WorldModel, *, causal: bool) -> WorldModel:
    """The same weights in the other mode: the cost of a step does not depend on training."""
    objective = dataclasses.replace(model.config.objective, sink_jump=0.0)  # a setting of causal training
    model.config = dataclasses.replace(model.config, causal=causal, objective=objective)
    model.fdm.causal = causal
    return model


def open_session(model: WorldModel, batch: int, steps: int) -> Session:
    """A session that starts from random first frames."""
    size, given = model.contract, model.config.num_given
    frames = torch.rand(batch, given, 3, size.height, size.width, generator=torch.Generator().manual_seed(0))
    return RolloutPipeline(model).open(frames, num_inference_steps=steps)


def actions_of(model: WorldModel, batch: int, count: int) -> Actions:
    """Constant actions, and the rows of action paths that read more."""
    if model.config.regime == "no_action":
        return Actions()
    extras = blank_extras(model.config.actions.row_shapes, batch, count)
    if model.compositor is not None:  # hands at rest before a camera: a compositor inverts its matrix
        extras["poses"][..., [3, 11]] = 1.0
        extras["projections"][:] = torch.eye(3, 4)
    return Actions(torch.zeros(batch, count, model.normalizer.width), extras=extras)


def time_steps(session: Session, actions: Actions, count: int, rounds: int) -> list[float]:
    """CPU seconds of each step."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        session.advance(actions, count)
        seconds.append(time.process_time() - start)
    return seconds


def measure_speed(config: StreamBenchConfig, model: WorldModel) -> list[dict[str, Any]]:
    """Frames per CPU second and seconds per step, for every variant and batch size."""
    rows = []
    ways = (
        ("causal", True, FRAMES_PER_LATENT),
        ("clips", False, FRAMES_PER_LATENT),
        ("clips of 16", False, 16),
    )
    for batch in config.batches:
        for name, causal, count in ways:
            session = open_session(as_causal(model, causal=causal), batch, config.steps)
            rounds = config.rounds if causal else max(3, config.rounds // 4)
            # The first steps fill the KV cache and the allocator's caches.
            seconds = time_steps(session, actions_of(model, batch, count), count, rounds + 5)[5:]
            step = median(seconds)
            rows.append({"way": name, "batch": batch, "step_seconds": step, "fps": batch * count / step})
    return rows


def measure_lengths(config: StreamBenchConfig, model: WorldModel) -> list[dict[str, float]]:
    """Resident memory and the time per step at these lengths of a causal session."""
    session = open_session(as_causal(model, causal=True), 1, config.steps)
    actions, rows = actions_of(model, 1, FRAMES_PER_LATENT), []
    for length in config.lengths:
        missing = max(1, (length - session.num_frames) // FRAMES_PER_LATENT)
        seconds = time_steps(session, actions, FRAMES_PER_LATENT, missing)
        memory = psutil.Process().memory_info().rss / 2**20
        rows.append({"frames": session.num_frames, "step_seconds": median(seconds[-20:]), "mb": memory})
    return rows


def show(result: dict[str, Any]) -> str:
    """Format the results as text."""
    lines = ["way          batch  ms a step  frames a CPU second"]
    lines += [
        f"{row['way']:<13}{row['batch']:>5}{1e3 * row['step_seconds']:>11.1f}{row['fps']:>21.0f}"
        for row in result["speed"]
    ]
    lines += ["", "frames  ms a step       MB"]
    lines += [
        f"{row['frames']:>6}{1e3 * row['step_seconds']:>11.1f}{row['mb']:>9.1f}" for row in result["lengths"]
    ]
    return "\n".join(lines)


@one_way_out
def main() -> None:
    """Run all measurements, print and save them."""
    torch.set_num_threads(1)
    if "--help" in sys.argv[1:]:
        print(__doc__, *describe_config(StreamBenchConfig), sep="\n")
        return
    config = load_config(StreamBenchConfig, None, sys.argv[1:])
    model = load_model(config)
    result = {
        "config": asdict(config),
        "speed": measure_speed(config, model),
        "lengths": measure_lengths(config, model),
    }
    print(show(result))
    if config.out:
        write_json(Path(config.out), result)


if __name__ == "__main__":
    main()
