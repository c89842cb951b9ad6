import numpy as np
import pytest

pytest.importorskip("mujoco")

from gymnasium.utils.env_checker import check_env

from robotwin_adapters.tabletop.drive import expert_commands
from worldmodel.environments import RandomPolicy, ScriptedPolicy, TabletopEnv, TabletopVectorEnv, run_policy

CAMERA = "image_desk_camera"


@pytest.mark.filterwarnings("ignore")
def test_gymnasium_approves() -> None:
    check_env(TabletopEnv())


def test_rows_are_the_single_environments_of_their_seeds() -> None:
    rows = TabletopVectorEnv(2, embodiment="heron")
    first, _ = rows.reset(seed=7)
    action = rows.action_space.sample()
    stepped, *_ = rows.step(action)
    for row in range(2):
        single = TabletopEnv(embodiment="heron")
        alone, _ = single.reset(seed=7 + row)
        np.testing.assert_array_equal(alone[CAMERA], first[CAMERA][row])
        after, *_ = single.step(action[row])
        np.testing.assert_array_equal(after[CAMERA], stepped[CAMERA][row])
        np.testing.assert_array_equal(after["state"], action[row, -1])


def test_the_expert_ends_its_episode_with_a_reward_and_a_random_policy_does_not() -> None:
    env = TabletopEnv(embodiment="heron", max_episode_steps=20)
    done = run_policy(env, ScriptedPolicy(expert_commands("place_a2b_left", "heron", 0)), seed=0)
    assert (done.is_success, done.total_reward) == (True, 1.0)
    assert len(done.frames) == len(done.actions) == 4 * done.steps < 80
    short = TabletopEnv(embodiment="heron", max_episode_steps=3)
    lost = run_policy(short, RandomPolicy(short.action_space), seed=0)
    assert (lost.is_success, lost.total_reward, lost.steps) == (False, 0.0, 3)


def test_an_ended_row_starts_anew_in_the_same_step() -> None:
    env = TabletopVectorEnv(2, max_episode_steps=2)
    first, _ = env.reset(seed=0)
    held = np.repeat(first["state"][:, None], 4, axis=1)
    env.step(held)
    observation, _, terminated, truncated, info = env.step(held)
    assert truncated.all()
    assert not terminated.any()
    assert info["_final_obs"].all()
    np.testing.assert_array_equal(info["final_obs"][0][CAMERA], info["frames"][0, -1])
    assert (observation[CAMERA] != info["frames"][:, -1]).any()  # another scene
    again = TabletopVectorEnv(2, max_episode_steps=2)
    again.reset(seed=0)
    again.step(held)
    np.testing.assert_array_equal(again.step(held)[0][CAMERA], observation[CAMERA])


def test_a_mask_resets_some_rows_only() -> None:
    env = TabletopVectorEnv(2)
    first, _ = env.reset(seed=0)
    moved, *_ = env.step(env.action_space.sample())
    mask = np.array([True, False])
    after, _ = env.reset(seed=0, options={"reset_mask": mask})
    np.testing.assert_array_equal(after[CAMERA][0], first[CAMERA][0])
    np.testing.assert_array_equal(after[CAMERA][1], moved[CAMERA][1])


def test_refusals_say_what_was_expected() -> None:
    env = TabletopVectorEnv(2)
    with pytest.raises(ValueError, match="reset"):
        env.step(env.action_space.sample())
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"expected actions \[2, 4, 16\], got \[2, 3, 16\]"):
        env.step(np.zeros((2, 3, 16)))
    with pytest.raises(ValueError, match="unknown embodiment 'finch'"):
        TabletopVectorEnv(1, embodiment="finch")
    with pytest.raises(ValueError, match="from a seed"):
        env.reset(options={"frames": np.zeros((64, 64, 3), np.uint8)})
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(options={"reset_mask": np.zeros(2, bool)})
