"""Frames per second of the environments, and the error rate of the success detector.

    python eval/bench/environments.py [--model desk] [--blocks 12] [--scenes 24] [--out FILE]

Speed is the number of frames of all rows per CPU second of one core, best of three rounds, since noise only
adds. The success detector gets the simulator's own pictures, so its error is that of locator and camera
alone. A third of its episodes are the expert's, the others the expert's with the hands shifted on the way to
the goal.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from robotwin_adapters.tabletop.drive import expert_commands
from worldmodel.cli_errors import one_way_out
from worldmodel.environments.dream import WorldModelVectorEnv
from worldmodel.environments.success_detector import PlacementJudge, judge_error
from worldmodel.environments.tabletop import TabletopVectorEnv
from worldmodel.environments.vector import WorldVectorEnv
from worldmodel.files import write_json
from worldmodel.models.model import WorldModel

ROUNDS = 3
SHIFTS = (0.0, 0.0, 0.02, 0.04, 0.06, 0.10)  # m along x, of the hands and so of the object's final position


def frames_per_second(env: WorldVectorEnv, blocks: int) -> float:
    env.reset(seed=0)
    held = np.repeat(env.reset(seed=0)[0]["state"][:, None], env.action_block, axis=1)
    best = np.inf
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(blocks):
            env.step(held)
        best = min(best, time.process_time() - began)
    return env.num_envs * env.action_block * blocks / best


def measure_speed(model: WorldModel, blocks: int) -> dict[str, float]:
    rows: dict[str, float] = {}
    for count in (1, 8):
        common: dict[str, Any] = {"max_episode_steps": 10**6}
        rows[f"dream, {count} rows"] = frames_per_second(WorldModelVectorEnv(model, count, **common), blocks)
        rows[f"simulator, {count} rows"] = frames_per_second(TabletopVectorEnv(count, **common), blocks)
    return rows


def measure_judge(model: WorldModel, scenes: int) -> dict[str, float]:
    robots = model.normalizer.embodiments
    judged, truth = [], []
    for number in range(scenes):
        task = ("place_a2b_left", "place_a2b_right")[number % 2]
        robot, shift = robots[number % len(robots)], SHIFTS[number % len(SHIFTS)]
        env = TabletopVectorEnv(1, embodiment=robot, task=task, autoreset=False, max_episode_steps=10**6)
        judge = PlacementJudge.shipped(env.world.spec)
        env.reset(seed=1000 + number)
        commands = expert_commands(task, robot, 1000 + number)
        late = np.arange(len(commands)) > 0.6 * len(commands)
        for column in (0, 8):
            commands[late, column] += shift
        rest = np.repeat(commands[-1:], 8 - len(commands) % 4, axis=0)
        for block in np.concatenate([commands, rest])[: 4 * (len(commands) // 4 + 1)].reshape(-1, 4, 16):
            *_, info = env.step(block[None])
        verdict = judge(env._starts, _block(info), block[None])
        judged.append(bool(verdict.success[0]))
        truth.append(bool(info["is_success"][0]))
    return judge_error(np.array(judged), np.array(truth)) | {"real successes": float(np.sum(truth))}


def _block(info: dict[str, Any]) -> Any:
    from worldmodel.environments.world import Block

    return Block(info["frames"])


@one_way_out
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="desk")
    parser.add_argument("--blocks", type=int, default=12, help="blocks of four actions in a round")
    parser.add_argument("--scenes", type=int, default=24, help="episodes for the judge")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    model = WorldModel.from_pretrained(arguments.model)
    figures = {
        "frames per second of one core": measure_speed(model, arguments.blocks),
        "judge": measure_judge(model, arguments.scenes),
    }
    print(json.dumps(figures, indent=2))
    if arguments.out:
        write_json(arguments.out, figures)


if __name__ == "__main__":
    main()
