"""Written from the published interfaces of the other projects, none of which is installed here."""

import numpy as np
import pytest
import torch

pytest.importorskip("mujoco")

from gymnasium.vector import VectorEnv

from worldmodel.environments.adapters.envhub import make_env
from worldmodel.environments.adapters.planning import PlanningModel
from worldmodel.environments.adapters.sessions import SessionBackend
from worldmodel.environments.spaces import WorldSpec
from worldmodel.environments.tabletop import TabletopScenes
from worldmodel.models.world_model.model import WorldModel


@pytest.fixture(scope="module")
def desk() -> WorldModel:
    return WorldModel.from_pretrained("desk")


@pytest.fixture(scope="module")
def scenes(desk: WorldModel) -> TabletopScenes:
    return TabletopScenes(WorldSpec.of(desk.contract, desk.normalizer))


def test_envhub_gives_suites_of_vector_environments_with_lerobots_keys() -> None:
    suites = make_env(n_envs=2, use_async_envs=True)
    ((suite, tasks),) = suites.items()
    env = tasks[0]
    assert isinstance(suite, str)
    assert isinstance(env, VectorEnv)
    assert env.num_envs == 2
    observation, _ = env.reset(seed=[3, 4])
    assert env.observation_space.contains(observation)
    assert observation["pixels"]["desk_camera"].dtype == np.uint8
    assert env.call("_max_episode_steps") == (96, 96)
    assert env.call("task_description")[0] == "place a2b left"
    action = observation["agent_pos"]
    for _ in range(3):
        observation, reward, terminated, truncated, info = env.step(action)
    assert reward.shape == terminated.shape == truncated.shape == info["is_success"].shape == (2,)
    with pytest.raises(AttributeError, match="nothing"):
        env.call("nothing")


def test_planning_finds_the_candidate_that_leads_to_the_goal(
    desk: WorldModel, scenes: TabletopScenes
) -> None:
    start = scenes(0)
    planner = PlanningModel(desk, camera=start.camera)
    pixels = torch.from_numpy(start.frames).permute(0, 3, 1, 2)[None]
    held = torch.from_numpy(start.state).expand(1, 3, 8, -1).clone()
    moved = held.clone()
    for sample, step in enumerate((0.0, 0.012, 0.024)):
        moved[0, sample, :, 1] += step * torch.arange(1, 9)  # the left hand forwards
    info = planner.encode({"pixels": pixels})
    assert info["emb"].shape[:2] == (1, 1)
    dreamed = planner.rollout(info, moved)
    assert dreamed["predicted_emb"].shape[:3] == (1, 3, 2)
    for sample in range(3):
        goal = dreamed["predicted_pixels"][:, sample, -1]
        cost = planner.get_cost({"pixels": pixels, "goal": goal[:, None]}, moved)
        assert cost.shape == (1, 3)
        assert int(cost.argmin()) == sample
    blocks = moved.unflatten(2, (2, 4)).flatten(3)  # four actions a step, as with action_block=4
    again = planner.rollout(info, blocks)
    assert torch.equal(again["predicted_pixels"], dreamed["predicted_pixels"])
    with pytest.raises(ValueError, match="expected candidates"):
        planner.rollout(info, moved[..., :-1])


def test_sessions_are_opened_stepped_and_closed_by_number(desk: WorldModel, scenes: TabletopScenes) -> None:
    backend = SessionBackend(desk)
    starts = [scenes(seed) for seed in (0, 1)]
    numbers = [
        backend.open_session(
            torch.from_numpy(start.frames).permute(0, 3, 1, 2),
            embodiment=start.embodiment,
            camera=start.camera,
            seed=seed,
        )
        for seed, start in enumerate(starts)
    ]
    actions = torch.stack([torch.from_numpy(start.state).expand(4, -1) for start in starts])
    backend.offload()
    backend.onload()
    frames = backend.generate(numbers, actions)
    assert frames.shape == (2, 4, 3, 64, 64)
    other = backend.open_session(
        torch.from_numpy(starts[1].frames).permute(0, 3, 1, 2),
        embodiment=starts[1].embodiment,
        camera=starts[1].camera,
        seed=1,
    )
    assert torch.equal(backend.generate([other], actions[1:]), frames[1:])
    backend.close_session(numbers[0])
    with pytest.raises(ValueError, match="no session 0"):
        backend.generate(numbers[:1], actions[:1])
