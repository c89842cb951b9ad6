"""Camera motion against plain projections, and beside pose maps on a wrist camera of the tabletop."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.tiny_wan import tiny_wan
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import build_clip_dataset, collate_clips
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.models.actions.camera_motion import CameraMotion, CameraMotionConfig
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.pose_maps import PoseMapsConfig
from worldmodel.models.actions.protocol import PathShape
from worldmodel.models.config import InputSpec, ObjectiveConfig, WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.objectives.training_step import world_model_step
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import Actions, Transitions

SHAPE = PathShape(action_dim=2, width=8, num_layers=1, num_heads=1, patch=(2, 2), grid=(4, 6))


def turned(degrees: tuple[float, float, float]) -> Tensor:
    x, y, z = torch.tensor(degrees).deg2rad().double()
    skew = torch.zeros(3, 3).double()
    skew[0, 1], skew[0, 2], skew[1, 2] = -z, y, -x
    return torch.linalg.matrix_exp(skew - skew.T)


def views() -> Tensor:
    """World -> (u d, v d, d) of nine frames of a camera that turns and moves."""
    intrinsics = torch.tensor([[1.2, 0, 0.5], [0, 1.6, 0.5], [0, 0, 1]]).double()
    found = []
    for frame in range(9):
        rotation = turned((2.0 * frame, -1.0 * frame, 3.0 * frame))
        center = torch.tensor([0.02 * frame, -0.01 * frame, 0.03 * frame]).double()
        found.append(intrinsics @ torch.cat([rotation, -(rotation @ center)[:, None]], 1))
    return torch.stack(found).float()


def transitions(seen: Tensor) -> Transitions:
    actions = torch.zeros(len(seen) - 1, 2)
    return Transitions(actions, torch.zeros(2, 2), ("a", "b"), views=seen, source="clip")


def test_a_point_is_found_where_the_frame_before_shows_it() -> None:
    seen = views()
    rows = CameraMotionConfig().read(transitions(seen))["camera_motion"]
    point = torch.tensor([0.1, -0.2, 1.5, 1.0])
    before, now = seen[:-1] @ point, seen[1:] @ point
    change = torch.einsum("nij,nj->ni", rows, torch.cat([now, torch.ones(8, 1)], 1))
    torch.testing.assert_close(now + change, before)


def test_the_maps_are_the_way_of_points_far_away_and_the_shift() -> None:
    path, seen = CameraMotion(SHAPE, scale=2.0), views()
    rows = CameraMotionConfig().read(transitions(seen))["camera_motion"]
    maps = path.draw(rows[None])
    assert maps.shape == (1, 3, 20, 4, 6)
    assert not maps[:, 0].any()
    # The ray of latent (1, 4) of frame 6, which transition 5 leads to, followed for a kilometre.
    frame, u, v = 6, 4.5 / 6, 1.5 / 4
    matrix, shift = seen[frame, :, :3].double(), seen[frame, :, 3].double()
    far = torch.linalg.solve(matrix, 1e3 * torch.tensor([u, v, 1]).double() - shift)
    before = seen[frame - 1].double() @ torch.cat([far, torch.ones(1)])
    drawn = maps[0, 2, 5:10, 1, 4]  # the second transition of latent frame 2
    moved = (before[:2] / before[2]).float() - torch.tensor([u, v])
    torch.testing.assert_close(drawn[:2], moved, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(drawn[2:], 2.0 * rows[5, :, 3])


def test_a_camera_that_stands_still_gives_exactly_zero() -> None:
    seen = views()[5:6].expand(9, 3, 4)
    rows = CameraMotionConfig().read(transitions(seen))["camera_motion"]
    assert not rows.any()
    assert not CameraMotion(SHAPE, scale=1.0).draw(rows[None]).any()


def test_unknown_or_broken_cameras_are_refused() -> None:
    unknown = replace(transitions(views()), views=None, why_no_views="none")
    with pytest.raises(ValueError, match=r"clip: camera motion needs .*: none; set model\.actions\.camera"):
        CameraMotionConfig().read(unknown)
    with pytest.raises(ValueError, match="clip: a camera matrix has no inverse"):
        CameraMotionConfig().read(transitions(0 * views()))


def test_two_paths_that_read_work_together_on_a_camera_that_rides_on_a_hand(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    from robotwin_adapters.robotwin.dataset import RobotwinDataset
    from robotwin_adapters.tabletop.collect import collect_all
    from robotwin_adapters.tabletop.record import RecordingConfig

    wanted = RecordingConfig(
        "babble", "wren", ("left_wrist",), width=32, height=32, supersample=False, hold="right"
    )
    collect_all(tmp_path, [wanted], episodes=1, seed=0, workers=1)
    paths = ActionConfig(camera_motion=CameraMotionConfig(), pose_maps=PoseMapsConfig())
    data = RobotwinDataset(tmp_path, action_space="pose_commands")
    config = ClipConfig(num_frames=9, height=32, width=32, stride=2)
    clips = build_clip_dataset([data], config=config, reader=paths)
    batch = collate_clips([clips[0], clips[len(clips) // 2]])
    assert batch.extras.keys() == {"camera_motion", "poses", "projections"}
    assert batch.extras["camera_motion"].abs().amax((1, 2, 3)).min() > 1e-3  # it moves
    model = WorldModel.build(
        WorldModelConfig(backbone=tiny_wan(), actions=paths, objective=ObjectiveConfig(idm_weight=0.0)),
        InputSpec(9, 32, 32, 10.0, camera="left_camera", latent_scale=4),
        clips.normalizer,
        vae=CausalAutoencoder(height=32, width=32, hidden=16, num_blocks=1),
    )
    world_model_step(model, batch, torch.Generator().manual_seed(0)).total.backward()
    for path in (model.interface["camera_motion"], model.interface["pose_maps"]):
        gradient = path.project.weight.grad
        assert gradient is not None
        assert gradient.any()
    torch.nn.init.normal_(model.interface["camera_motion"].project.weight, std=0.1)
    assert batch.frames is not None

    def video(extras: dict[str, Tensor]) -> Tensor:
        actions = Actions(batch.robot_actions, extras=extras)
        generator = torch.Generator().manual_seed(0)
        call = RolloutPipeline(model).rollout
        return call(batch.frames[:, :1], actions, num_inference_steps=1, generator=generator).frames

    still = {**batch.extras, "camera_motion": 0 * batch.extras["camera_motion"]}
    assert (video(batch.extras) - video(still)).abs().max() > 1e-3
