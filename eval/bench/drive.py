"""A long scripted drive: how far the world model drifts from the simulator over time, and its cost.

    python eval/bench/drive.py [--model desk] [--seconds 60] [--drives 2] [--out FILE]

A random walk on the keys of both arms drives both the world model and the simulator. Reported are the
distance between the grippers that the locator finds in both (pixels of the picture), the mean difference of
the pictures (gray levels), the time per block, the growth of memory, and the rank correlation of the
uncertainty with the true error over all blocks.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from worldmodel.cli_errors import one_way_out
from worldmodel.files import write_json
from worldmodel.locator.model import Locator
from worldmodel.models.model import WorldModel
from worldmodel.serving.play.game import Game
from worldmodel.serving.play.teleop import Inputs

MARKS_S = (2, 10, 60, 600)  # seconds of driving at which errors are stated
WINDOW_S = 6.0  # seconds before such a mark that are averaged
HOLD = 3  # blocks for which a key is held


def drive(game: Game, seed: int, blocks: int) -> list[dict[str, Any]]:
    """Measurements of every block of one drive."""
    rng = np.random.default_rng(seed)
    game.reset(seed)
    readings, held = [], Inputs()
    for block in range(blocks):
        if block % HOLD == 0:
            held = Inputs({side: random_keys(rng) for side in game.teleop.sides})
        began = time.process_time()
        reading = game.step(held).reading | game.measure()
        memory = int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024
        readings.append({**reading, "cpu": time.process_time() - began, "memory": memory})
    return readings


def random_keys(rng: np.random.Generator) -> list[float]:
    """One or two keys of a hand; heights and openings less often."""
    return [
        float(rng.integers(-1, 2)),
        float(rng.integers(-1, 2)),
        *(rng.integers(-1, 2, 2) * (rng.random(2) < 0.3)),
    ]


def summary(drives: list[list[dict[str, Any]]], block_s: float) -> dict[str, Any]:
    every = [reading for one in drives for reading in one]
    errors = np.array([reading["error"] for reading in every])
    cpu = np.array([reading["cpu"] for reading in every])
    made = np.array([reading["seconds"] for reading in every])
    rows: dict[str, Any] = {
        "blocks": len(every),
        "CPU ms of a block, all in: median, 95 %": np.round(1000 * np.quantile(cpu, [0.5, 0.95]), 1).tolist(),
        "ms from input to dream: median, 95 %": np.round(1000 * np.quantile(made, [0.5, 0.95]), 1).tolist(),
        "memory MB, at every tenth of the first drive": [
            round(drives[0][number]["memory"])
            for number in range(0, len(drives[0]), max(1, len(drives[0]) // 10))
        ],
        "rank correlation of distrust and error": round(
            float(spearmanr([reading["distrust"] for reading in every], errors)[0]), 2
        ),
    }
    return rows | errors_at_marks(drives, block_s)


def errors_at_marks(drives: list[list[dict[str, Any]]], block_s: float) -> dict[str, Any]:
    """Errors in the seconds before each mark, over all drives that are long enough."""
    rows: dict[str, Any] = {}
    for mark in MARKS_S:
        last, span = round(mark / block_s), round(min(mark, WINDOW_S) / block_s)
        window = [one[last - span : last] for one in drives if len(one) >= last]
        taken = [reading for part in window for reading in part]
        if taken:
            gap = [g for reading in taken for g in reading["gap"] if g is not None]
            rows[f"at {mark} s"] = {
                "grippers in the picture": len(gap),
                "gripper px, median": round(float(np.median(gap)), 2) if gap else None,
                "gripper px, mean": round(float(np.mean(gap)), 2) if gap else None,
                "gray levels": round(float(np.mean([reading["error"] for reading in taken])), 2),
            }
    return rows


@one_way_out
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="desk")
    parser.add_argument("--embodiment")
    parser.add_argument("--seconds", type=float, default=60, help="length of a drive")
    parser.add_argument("--drives", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    model = WorldModel.from_pretrained(arguments.model)
    game = Game(model, embodiment=arguments.embodiment, locator=Locator.from_pretrained("locator"))
    block_s = 4 / model.contract.fps
    blocks = round(arguments.seconds / block_s)
    figures = summary([drive(game, seed, blocks) for seed in range(arguments.drives)], block_s)
    print(json.dumps(figures, indent=2))
    if arguments.out:
        write_json(arguments.out, figures)


if __name__ == "__main__":
    main()
