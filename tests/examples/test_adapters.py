"""Written from the published interfaces of the other projects, none of which is installed here."""

import numpy as np
import pytest
import torch

pytest.importorskip("mujoco")

from gymnasium.vector import VectorEnv

from examples.lerobot_env import make_env
from examples.planning import PlanningModel
from examples.session_backend import SessionBackend
from worldmodel.environments.spaces import WorldSpec
from worldmodel.environments.tabletop import TabletopScenes
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline


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
    assert dreamed["predicted_emb"].shape[:3] == (1, 3, 1 + 8)  # given frames first, then one for each step
    assert torch.equal(dreamed["predicted_emb"][0, 2, 0], info["emb"][0, 0])
    for sample in range(3):
        goal = dreamed["predicted_pixels"][:, sample, -1]
        cost = planner.get_cost({"pixels": pixels, "goal": goal[:, None]}, moved)
        assert cost.shape == (1, 3)
        assert int(cost.argmin()) == sample
    blocks = moved.unflatten(2, (2, 4)).flatten(3)  # four actions a step, as with action_block=4
    again = planner.rollout(info, blocks)
    assert again["predicted_emb"].shape[:3] == (1, 3, 1 + 2)
    assert torch.equal(again["predicted_pixels"], dreamed["predicted_pixels"][:, :, 3::4])
    repeated = pixels[:, None].expand(-1, 3, -1, -1, -1, -1)  # as solvers give them: one copy a candidate
    assert torch.equal(planner.rollout({"pixels": repeated}, blocks)["predicted_emb"], again["predicted_emb"])
    with pytest.raises(ValueError, match="expected candidates"):
        planner.rollout(info, moved[..., :-1])


def test_a_backend_takes_the_calls_of_rlinfs_environment(desk: WorldModel, scenes: TabletopScenes) -> None:
    starts = [scenes(seed) for seed in (0, 1)]
    backend = SessionBackend(desk, camera=starts[0].camera, chunk=8)
    assert (backend.chunk, backend.condition_frame_length, backend.image_size) == (8, 1, (64, 64))
    frames = [[torch.from_numpy(start.frames[0]).permute(2, 0, 1)[:, None] / 127.5 - 1] for start in starts]
    states = torch.stack([torch.from_numpy(start.state) for start in starts])
    given = {"init_frames": frames, "init_actions": states[:, None], "task_ids": [4, 5], "seeds": [0, 1]}
    backend.close_session([3, 8])  # nothing is open yet
    backend.open_session(env_ids=[3, 8], **given)
    actions = states[:, None].expand(-1, 8, -1)
    backend.offload()
    backend.onload()
    made = backend.generate(env_ids=[3, 8], actions=actions)
    assert made.shape == (2, 3, 8, 64, 64)
    assert -1 <= made.min() < 0 < made.max() <= 1
    # The first frame in [-1, 1] is the start's own, and a trajectory does not depend on the others.
    own = RolloutPipeline(desk).open(
        torch.from_numpy(starts[1].frames).permute(0, 3, 1, 2)[None],
        embodiment=starts[1].embodiment,
        num_inference_steps=1,
        generator=[torch.Generator().manual_seed(1)],
        camera=starts[1].camera,
    )
    expected = torch.cat([own.step(actions[1:, part : part + 4]) for part in (0, 4)], 1)[0]
    assert (made[1].transpose(0, 1) - (2 * expected - 1)).abs().max() < 1e-3
    backend.close_session([3])
    with pytest.raises(ValueError, match="no session 3"):
        backend.generate([3], actions[:1])
    with pytest.raises(ValueError, match="multiple of 4"):
        SessionBackend(desk, chunk=6)
