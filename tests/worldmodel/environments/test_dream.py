import doctest

import numpy as np
import pytest
import torch

pytest.importorskip("mujoco")

import subprocess
import sys
from pathlib import Path

import gymnasium
from gymnasium.utils.env_checker import check_env

from robotwin_adapters.tabletop.drive import expert_commands
from worldmodel.data.synthetic import synthetic_source
from worldmodel.environments import (
    RandomPolicy,
    ScriptedPolicy,
    TabletopEnv,
    TabletopVectorEnv,
    WorldModelEnv,
    WorldModelVectorEnv,
    run_policy,
)
from worldmodel.environments.initial_states import episode_start, open_session
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import to_uint8


@pytest.fixture(scope="module")
def desk() -> WorldModel:
    return WorldModel.from_pretrained("desk")


@pytest.mark.parametrize("before", ["import worldmodel.environments", "pass"])
def test_the_ids_are_found_as_the_page_says(before: str) -> None:
    """With the import, or with the module before the id; gymnasium 1.x loads no plugins."""
    prefix = "" if before != "pass" else "worldmodel.environments:"
    code = f"{before}\nfrom gymnasium.envs.registration import _find_spec\n"
    code += f"print(_find_spec('{prefix}worldmodel/Dream-v0').entry_point)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "worldmodel.environments.dream:WorldModelEnv\n"
    page = (Path(__file__).parents[3] / "docs/environments.md").read_text()
    assert f"{before}  #" in page or f'gymnasium.make("{prefix}worldmodel/Dream-v0")' in page
    assert "gymnasium.envs" not in (Path(__file__).parents[3] / "pyproject.toml").read_text()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["worldmodel/Tabletop-v0", "worldmodel/Dream-v0"])
def test_both_ids_need_no_arguments_and_gymnasium_approves(name: str) -> None:
    check_env(gymnasium.make(name).unwrapped)
    rows = gymnasium.make_vec(name, num_envs=2)
    observation, _ = rows.reset(seed=0)
    assert rows.observation_space.contains(observation)
    assert rows.step(rows.action_space.sample())[1].shape == (2,)


def test_the_same_lines_run_a_policy_in_the_dream_and_in_the_simulator(desk: WorldModel) -> None:
    robot = desk.normalizer.embodiments[0]
    script = expert_commands("place_a2b_left", robot, 0)
    seen = []
    for env in (TabletopEnv(embodiment=robot), WorldModelEnv(desk, embodiment=robot)):
        policies = (ScriptedPolicy(script[:8]), RandomPolicy(env.action_space))
        env.rows.max_episode_steps = 2
        seen.append([run_policy(env, policy, seed=0) for policy in policies])
    for simulated, dreamed in zip(*seen, strict=True):
        assert simulated.frames.shape == dreamed.frames.shape
        np.testing.assert_array_equal(simulated.actions, dreamed.actions)


def test_a_step_is_bit_for_bit_that_of_the_pipelines_session(desk: WorldModel) -> None:
    env = WorldModelVectorEnv(desk, 2)
    env.reset(seed=5)
    actions = [env.action_space.sample() for _ in range(3)]
    made = [env.step(action)[4]["frames"] for action in actions]
    for row in range(2):
        start = env.world.starts(5 + row)
        frames = torch.from_numpy(start.frames).permute(0, 3, 1, 2)[None]
        session = RolloutPipeline(desk).open(
            frames,
            embodiment=start.embodiment,
            generator=[torch.Generator().manual_seed(5 + row)],
            start_action=start.state[None, None],
            camera=start.camera,
        )
        for action, seen in zip(actions, made, strict=True):
            expected = to_uint8(session.step(action[row : row + 1].astype(np.float64)))
            close = np.abs(expected[0].permute(0, 2, 3, 1).numpy().astype(int) - seen[row])
            assert close.max() <= 1  # another batch size may round a pixel the other way
    alone = WorldModelVectorEnv(desk, 1)
    alone.reset(seed=5)
    first = alone.step(actions[0][:1])[4]["frames"]
    session = open_session(RolloutPipeline(desk), [env.world.starts(5)], [5])
    expected = to_uint8(session.step(actions[0][:1].astype(np.float64))).permute(0, 1, 3, 4, 2)
    np.testing.assert_array_equal(first, expected.numpy())


def test_single_actions_end_where_the_block_ends(desk: WorldModel) -> None:
    block, single = WorldModelEnv(desk), WorldModelEnv(desk, action_block=1)
    block.reset(seed=3)
    single.reset(seed=3)
    action = block.action_space.sample()
    whole = block.step(action)[4]["frames"]
    pieces = [single.step(action[number : number + 1])[4]["frames"] for number in range(4)]
    np.testing.assert_array_equal(np.concatenate(pieces)[-1], whole[-1])


def test_rows_that_restart_do_not_disturb_the_others(desk: WorldModel) -> None:
    env, calm = WorldModelVectorEnv(desk, 2), WorldModelVectorEnv(desk, 2)
    for one in (env, calm):
        one.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(2)]
    env.step(actions[0])
    env.reset(seed=9, options={"reset_mask": np.array([False, True])})
    calm.step(actions[0])
    mixed, undisturbed = (one.step(actions[1])[4]["frames"] for one in (env, calm))
    np.testing.assert_array_equal(mixed[0], undisturbed[0])
    fresh = WorldModelVectorEnv(desk, 1)
    fresh.reset(seed=10)
    expected = fresh.step(actions[1][1:])[4]["frames"][0]
    assert np.abs(mixed[1].astype(int) - expected).max() <= 1


def test_starts_from_pictures_and_episodes(desk: WorldModel) -> None:
    env = WorldModelEnv(desk)
    picture = np.random.default_rng(0).integers(0, 256, (48, 80, 3), np.uint8)
    camera = env.rows.world.starts(0).camera
    first, _ = env.reset(seed=0, options={"frames": picture, "camera": camera})
    assert first["image_desk_camera"].shape == (64, 64, 3)
    env.step(env.action_space.sample())
    with pytest.raises(ValueError, match="uint8"):
        env.reset(options={"frames": picture.astype(float)})
    episode = synthetic_source(num_episodes=1, num_frames=30, size=(64, 64), fps=25 / 3)[0]
    start = episode_start(episode, 4, desk.contract.__class__(17, 32, 32, 25 / 3))
    assert start.frames.shape == (1, 32, 32, 3)
    np.testing.assert_array_equal(start.state, episode.robot_actions[3])
    np.testing.assert_array_equal(start.measured, episode.robot_states[4])


def test_distrust_rises_where_the_dream_has_nothing_to_go_by(desk: WorldModel) -> None:
    env = WorldModelEnv(desk, distrust=True)
    env.reset(seed=0)
    held = np.repeat(env.rows.world.starts(0).state[None], 4, axis=0)
    calm = env.step(held.astype(np.float32))[4]
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    env.reset(seed=0, options={"frames": noise, "camera": env.rows.world.starts(0).camera})
    wild = env.step(held.astype(np.float32))[4]
    assert wild["round_trip"] > 2 * calm["round_trip"]


@pytest.mark.parametrize("example", [WorldModelVectorEnv, TabletopVectorEnv])
def test_the_examples_run(example: type) -> None:
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder(recurse=False).find(example, globs={}):
        runner.run(test)
    assert runner.summarize(verbose=False).attempted > 3
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.filterwarnings("ignore")
def test_stable_baselines_takes_a_hundred_steps(desk: WorldModel) -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3 import PPO

    from examples.stable_baselines import StableBaselinesEnv

    rows = StableBaselinesEnv(WorldModelVectorEnv(desk, 4, max_episode_steps=5))
    learner = PPO("MultiInputPolicy", rows, n_steps=5, batch_size=10, n_epochs=1, device="cpu")
    learner.learn(100)
    assert learner.num_timesteps == 100
