import dataclasses

import numpy as np
import pytest
import torch
from worldmodel.data.pose_tracks import (
    AXIS_LENGTH,
    HALF_OPENING,
    HAND_POINTS,
    TOOL_OFFSET,
    UNIT_DEPTH,
    carried_places,
    clip_pose_track,
    clip_projections,
    hand_points,
    pose_columns,
    settled_track,
)

from robotwin_adapters.actions import POSE_NAMES
from tests.support.pose_sets import HEAD, HEAD_EXTRINSICS, HEAD_INTRINSICS, NAMES, HandPoses, moving_poses
from worldmodel.data.clips import ClipConfig, cut_clip, resize_frames
from worldmodel.data.dataset import ClipDataset, build_clip_dataset, check_pose_tracks, collate_clips
from worldmodel.data.index import index_episodes
from worldmodel.data.latents import LatentCache
from worldmodel.types import CameraMatrices, PoseTrack

CLIP = ClipConfig(num_frames=9, height=48, width=64)
# Looks along the world's y axis from the origin: x to the right, z up.
AHEAD = np.array([[1.0, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0]])
PINHOLE = CameraMatrices(np.array([[100.0, 0, 50], [0, 100, 40], [0, 0, 1]]), AHEAD, (80, 100))


def row(x, y, z, quaternion=(1, 0, 0, 0), opening=1.0):
    """The left hand at this pose; there is no right one."""
    return torch.tensor([[x, y, z, *quaternion, opening, *[0.0] * 8]], dtype=torch.float32)


def seen(pose, camera=PINHOLE, size=(80, 100), aspect="stretch"):
    points = hand_points(PoseTrack(pose, clip_projections(camera, [0] * len(pose), size, aspect)))
    return dict(zip(HAND_POINTS, points[0, : len(HAND_POINTS)].tolist(), strict=True)), points


def test_points_of_a_hand_in_closed_form():
    points, every = seen(row(0.2, 2.0, 0.1, opening=0.5))
    # Pixel = focal * (x, -z) / y + center, over the size of the picture.
    places = {
        "wrist": (0.2, 0.1, 2.0),
        "tool": (0.2 + TOOL_OFFSET, 0.1, 2.0),
        "finger": (0.2 + TOOL_OFFSET, 0.1, 2.0 + HALF_OPENING / 2),
        "other finger": (0.2 + TOOL_OFFSET, 0.1, 2.0 - HALF_OPENING / 2),
        "axis": (0.2 + TOOL_OFFSET, 0.1 + AXIS_LENGTH, 2.0),
        "opening": (0.2 + TOOL_OFFSET, 0.1, 2.0),
    }
    for name, (x, z, depth) in places.items():
        expected = [(100 * x / depth + 50) / 100, (-100 * z / depth + 40) / 80, UNIT_DEPTH / depth]
        assert points[name][:3] == pytest.approx(expected, abs=1e-5), name
    weights = [points[name][3] for name in HAND_POINTS]
    assert weights == pytest.approx([1, 1, 1, 1, 1, 0.5])
    assert not every[0, len(HAND_POINTS) :, 2:].any()  # no right hand


def test_a_turned_hand_points_where_it_is_turned():
    half = 0.5**0.5
    points, _ = seen(row(0, 2, 0, quaternion=(half, 0, half, 0)))  # pitched: x goes down, z forward
    assert points["tool"][:2] == pytest.approx([0.5, (100 * TOOL_OFFSET / 2 + 40) / 80], abs=1e-5)
    flipped, _ = seen(row(0, 2, 0, quaternion=(-2 * half, 0, -2 * half, 0)))
    for name, values in flipped.items():  # neither sign nor length of a quaternion matter
        assert values == pytest.approx(points[name], abs=1e-5)


def test_what_is_behind_the_camera_is_not_drawn():
    points, every = seen(row(0.1, -1.0, 0.3))
    assert all(values[2:] == [0, 0] for values in points.values())
    assert every.isfinite().all()
    mixed, _ = seen(row(0.0, 0.05, 0.0, quaternion=(0.5**0.5, 0, 0, -(0.5**0.5))))  # reaches backwards
    assert (mixed["wrist"][3], mixed["tool"][3]) == (1, 0)


def test_robotwins_workspace_is_where_its_head_camera_shows_it():
    # The area of place_a2b at table height spans these pixels of the recorded pictures.
    corners = [row(x, y, 0.74) for x in (-0.22, 0.22) for y in (-0.2, 0.0)]
    pixels = np.array([seen(corner, HEAD)[0]["wrist"][:2] for corner in corners]) * [320, 240]
    assert pixels.min(0) == pytest.approx([54, 123], abs=0.6)
    assert pixels.max(0) == pytest.approx([302, 213], abs=0.6)


@pytest.mark.parametrize("aspect", ["stretch", "crop"])
@pytest.mark.parametrize("size", [(64, 64), (30, 80)])
def test_points_move_with_the_picture_when_it_is_cut_and_resized(aspect, size):
    pose = row(0.05, -0.1, 0.8)
    point, _ = seen(pose, HEAD, size, aspect)
    recorded, _ = seen(pose, HEAD, (240, 320))
    rows, columns = np.mgrid[0.5:240, 0.5:320]
    u, v = np.array(recorded["wrist"][:2]) * [320, 240]
    spot = 255 * np.exp(-((columns - u) ** 2 + (rows - v) ** 2) / (2 * 8.0**2))
    picture = resize_frames(np.repeat(spot[None, ..., None], 3, -1).astype(np.uint8), *size, aspect)[
        0, 0
    ].double()
    across = (torch.arange(size[1]) + 0.5) / size[1]
    along = (torch.arange(size[0]) + 0.5) / size[0]
    center = [
        (picture.sum(0) @ across.double()) / picture.sum(),
        (picture.sum(1) @ along.double()) / picture.sum(),
    ]
    assert [float(value) for value in center] == pytest.approx(point["wrist"][:2], abs=2e-3)


def test_the_camera_of_a_transition_is_that_of_the_frame_it_leads_to():
    count = 21
    moving = np.repeat(AHEAD[None], count, 0)
    moving[:, 0, 3] = 0.1 * np.arange(count)
    camera = CameraMatrices(np.repeat(PINHOLE.intrinsics[None], count, 0), moving, PINHOLE.size)
    source = HandPoses(1, camera, num_frames=count, size=(80, 100))
    config = dataclasses.replace(CLIP, stride=2)
    _, actions = cut_clip(source[0], 3, config)
    track = clip_pose_track(source[0], 3, actions, config)
    assert track.projections.shape == (8, 3, 4)
    expected = 100 * 0.1 * np.arange(5, 21, 2) / 100  # frames 5, 7, ... of the recording
    assert track.projections[:, 0, 3].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    np.testing.assert_array_equal(track.poses, source[0].robot_actions[4:20:2])
    with pytest.raises(ValueError, match="matrices of frame 30, got those of 21 frames"):
        clip_projections(camera, [2, 30], (8, 8))


def test_columns_are_found_by_name():
    assert NAMES == POSE_NAMES
    actions = moving_poses(3)
    order = np.random.default_rng(0).permutation(16)
    np.testing.assert_array_equal(pose_columns(actions[:, order], [NAMES[i] for i in order]), actions)
    right = pose_columns(actions[:, 8:], NAMES[8:])
    np.testing.assert_array_equal(right[:, 8:], actions[:, 8:])
    assert not right[:, :8].any()
    with pytest.raises(ValueError, match=r"set data\.action_space=pose_commands"):
        pose_columns(np.zeros((3, 2)), ("left_joint1", "left_gripper"))


def test_gradients_reach_the_poses():
    poses = torch.from_numpy(moving_poses(4)).requires_grad_()
    hand_points(PoseTrack(poses, clip_projections(HEAD, range(4), (64, 64)))).sum().backward()
    assert (poses.grad != 0).any(0).all()


def test_clips_bring_their_tracks_with_and_without_a_cache(tmp_path):
    source = HandPoses(3, num_frames=25, size=(48, 64))
    index = index_episodes([source], CLIP)
    fresh = build_clip_dataset([source], config=CLIP, with_poses=True)
    plain = build_clip_dataset([source], config=CLIP)
    assert plain[0].pose_track is None
    check_pose_tracks(index, index.records)

    def encode(video):
        return video.new_zeros(len(video), 4, 3, 6, 8)

    without, cache = (LatentCache(str(tmp_path), "vae", with_poses=kept) for kept in (False, True))
    assert without.build(index, encode).built == cache.build(index, encode).built == len(index.records)
    assert cache.build(index, encode).built == without.build(index, encode).built == 0
    cached = ClipDataset(index, "train", fresh.normalizer, cache.build(index, encode), with_poses=True)
    assert cached[1].frames is None
    for number in range(len(fresh)):
        one, other = fresh[number].pose_track, cached[number].pose_track
        assert torch.equal(one.poses, other.poses)
        assert torch.equal(one.projections, other.projections)
    batch = collate_clips([cached[0], cached[1]]).to("cpu")
    assert batch.pose_track.poses.shape == (2, 8, 16)
    assert batch.pose_track.projections.shape == (2, 8, 3, 4)


def test_data_without_camera_or_poses_is_refused():
    options = {"num_frames": 25, "size": (48, 64)}
    blind = index_episodes([HandPoses(2, None, **options)], CLIP)
    with pytest.raises(
        ValueError, match="intrinsics and extrinsics of camera 'head', the data describe no camera"
    ):
        check_pose_tracks(blind, blind.records)
    sums = index_episodes([HandPoses(2, **options)], dataclasses.replace(CLIP, merge="sum"))
    with pytest.raises(ValueError, match=r"draw absolute poses, got changes \(data\.clip\.merge=sum\)"):
        check_pose_tracks(sums, sums.records)
    episode = HandPoses(1, **options)[0]
    two = dataclasses.replace(episode, frames={**episode.frames, "wrist": episode.frames["head"]})
    both = dataclasses.replace(CLIP, camera=("head", "wrist"))
    with pytest.raises(ValueError, match="into the picture of one camera, got head"):
        clip_pose_track(two, 0, episode.robot_actions[:8], both)
    episode = dataclasses.replace(episode, delta_actions=("left_x",))
    with pytest.raises(ValueError, match=r"got changes \(left_x\)"):
        clip_pose_track(episode, 0, episode.robot_actions[:8], CLIP)


def test_an_intrinsic_matrix_scales_with_its_picture():
    doubled = CameraMatrices(HEAD_INTRINSICS * [[2], [2], [1]], HEAD_EXTRINSICS, (480, 640))
    one, other = (clip_projections(camera, range(2), (64, 64)) for camera in (HEAD, doubled))
    torch.testing.assert_close(one, other)


def line(*xs, quaternion=(1, 0, 0, 0)):
    """Poses of a left hand at these places along x."""
    return torch.cat([row(x, 2.0, 0.0, quaternion) for x in xs])


def camera_rows(count):
    return clip_projections(PINHOLE, [0] * count, (80, 100))


def test_arms_are_behind_their_commands_by_a_share_of_the_last_motion():
    start = PoseTrack(line(0.1, 0.2), camera_rows(2))
    track = PoseTrack(line(0.4, 0.4, 0.5), camera_rows(3), start)
    hands = settled_track(track, 0.25)
    # 0.2 -> 0.4 still lacks a quarter of 0.2, then nothing, then a quarter of 0.1.
    torch.testing.assert_close(hands.poses[:, 0], torch.tensor([0.35, 0.4, 0.475]))
    torch.testing.assert_close(hands.known_start().poses[1, 0], torch.tensor(0.175))
    assert settled_track(track, 0.0) is track
    unknown = settled_track(dataclasses.replace(track, start=None), 0.25)
    torch.testing.assert_close(unknown.poses[:, 0], torch.tensor([0.4, 0.4, 0.475]))


def test_the_shorter_of_two_turns_is_followed():
    half = 0.5**0.5
    turned = torch.cat([row(0, 2, 0), -row(0, 2, 0, (half, 0, 0, half))])
    turned[1, [0, 1, 2, 7]] *= -1
    hands = settled_track(PoseTrack(turned, camera_rows(2)), 0.5)
    # Half way to a quarter turn is an eighth, whichever sign the quaternion was written with.
    quaternion = hands.poses[1, 3:7] / hands.poses[1, 3:7].norm()
    eighth = torch.tensor([np.cos(np.pi / 8), 0, 0, np.sin(np.pi / 8)], dtype=torch.float32)
    torch.testing.assert_close(quaternion.abs(), eighth, atol=1e-5, rtol=0)


def test_what_a_hand_holds_is_found_where_the_hand_was():
    still = carried_places(
        PoseTrack(row(0.3, 2.0, 0.1), camera_rows(1)),
        PoseTrack(row(0.3, 2.0, 0.1), camera_rows(1)),
        (8, 10),
    )
    u, v = (torch.arange(10) + 0.5) / 10, (torch.arange(8) + 0.5) / 8
    torch.testing.assert_close(still[0, 0, :, :, 0], (2 * u - 1).expand(8, 10), atol=1e-5, rtol=0)
    torch.testing.assert_close(still[0, 0, :, :, 1], (2 * v - 1)[:, None].expand(8, 10), atol=1e-5, rtol=0)
    # 0.2 m to the right at a depth of 2 m are 10 of 100 pixels: each pixel was that much further left.
    moved = carried_places(
        PoseTrack(row(0.5, 2.0, 0.1), camera_rows(1)),
        PoseTrack(row(0.3, 2.0, 0.1), camera_rows(1)),
        (8, 10),
    )
    torch.testing.assert_close(still[0, 0] - moved[0, 0], torch.tensor([0.2, 0.0]).expand(8, 10, 2))


def test_what_turns_with_a_hand_turns_about_its_tool():
    half = 0.5**0.5
    # A quarter turn about the axis of sight, which is the world's y.
    now = PoseTrack(row(0, 2, 0, (half, 0, half, 0)), camera_rows(1))
    then = PoseTrack(row(0, 2, 0), camera_rows(1))
    grid = carried_places(now, then, (80, 100))[0, 0]
    points = {name: hand_points(track)[0, :6, :2] for name, track in (("now", now), ("then", then))}
    for name in ("tool", "wrist"):  # both lie in the plane that faces the camera
        at = HAND_POINTS.index(name)
        column, line_ = (points["now"][at] * torch.tensor([100.0, 80.0])).long().tolist()
        nearby = (grid[line_ - 1 : line_ + 2, column - 1 : column + 2] + 1) / 2
        assert (nearby - points["then"][at]).norm(dim=-1).min() < 0.02, name


def test_clips_know_the_commands_before_them():
    source = HandPoses(1, num_frames=40, size=(48, 64), embodiments=("a",))
    episode = source[0]
    poses = pose_columns(episode.robot_actions, episode.action_names)
    _, actions = cut_clip(episode, 5, dataclasses.replace(CLIP, stride=2))
    track = clip_pose_track(episode, 5, actions, dataclasses.replace(CLIP, stride=2))
    torch.testing.assert_close(track.start.poses, poses[[2, 4]])
    _, actions = cut_clip(episode, 0, CLIP)
    torch.testing.assert_close(clip_pose_track(episode, 0, actions, CLIP).start.poses, poses[[0, 0]])
