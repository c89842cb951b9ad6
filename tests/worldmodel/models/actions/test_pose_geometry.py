"""Where parts of a hand are in the picture, and how far an arm is behind its command, in closed form."""

import numpy as np
import pytest
import torch

from robotwin_adapters.actions import POSE_NAMES
from tests.support.pose_sets import HEAD, NAMES, PINHOLE, moving_poses
from worldmodel.data.clips import resize_frames
from worldmodel.data.transitions import clip_projections
from worldmodel.models.actions.pose_maps import (
    AXIS_LENGTH,
    HALF_OPENING,
    HAND_POINTS,
    TOOL_OFFSET,
    UNIT_DEPTH,
    apply_command_lag,
    hand_points,
    pose_columns,
)
from worldmodel.models.pose_track import PoseTrack, carried_places, track_of


def row(x, y, z, quaternion=(1, 0, 0, 0), opening=1.0):
    """The left hand at this pose; there is no right one."""
    return torch.tensor([[x, y, z, *quaternion, opening, *[0.0] * 8]], dtype=torch.float32)


def seen(pose, camera=PINHOLE, size=(80, 100), aspect="stretch"):
    points = hand_points(pose, clip_projections(camera, [0] * len(pose), size, aspect))
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


def test_columns_are_found_by_name():
    assert NAMES == POSE_NAMES
    actions = torch.from_numpy(moving_poses(3))
    order = np.random.default_rng(0).permutation(16)
    np.testing.assert_array_equal(pose_columns(actions[:, order], [NAMES[i] for i in order]), actions)
    right = pose_columns(actions[:, 8:], NAMES[8:])
    np.testing.assert_array_equal(right[:, 8:], actions[:, 8:])
    assert not right[:, :8].any()
    with pytest.raises(ValueError, match=r"set data\.action_space=pose_commands"):
        pose_columns(torch.zeros(3, 2), ("left_joint1", "left_gripper"))


def test_gradients_reach_the_poses():
    poses = torch.from_numpy(moving_poses(4)).requires_grad_()
    hand_points(poses, clip_projections(HEAD, range(4), (64, 64))).sum().backward()
    assert (poses.grad != 0).any(0).all()


def line(*xs, quaternion=(1, 0, 0, 0)):
    """Poses of a left hand at these places along x."""
    return torch.cat([row(x, 2.0, 0.0, quaternion) for x in xs])


def camera_rows(count):
    return clip_projections(PINHOLE, [0] * count, (80, 100))


def rows_of(commands):
    """Rows of `pose_maps`: all but the first two commands are those of the transitions."""
    poses = torch.stack([commands[:-2], commands[1:-1], commands[2:]], 1)
    return {"poses": poses, "projections": camera_rows(len(poses))}


def test_arms_are_behind_their_commands_by_a_share_of_the_last_motion():
    extras = rows_of(line(0.1, 0.2, 0.4, 0.4, 0.5))
    hands = track_of(extras, 0.25)
    # 0.2 -> 0.4 still lacks a quarter of 0.2, then nothing, then a quarter of 0.1; before it, 0.1 -> 0.2.
    torch.testing.assert_close(hands.poses[:, 0], torch.tensor([0.175, 0.35, 0.4, 0.475]))
    assert hands.projections.shape == (4, 3, 4)
    torch.testing.assert_close(track_of(extras, 0.0).poses, line(0.2, 0.4, 0.4, 0.5), atol=0, rtol=0)
    unknown = track_of(rows_of(line(0.4, 0.4, 0.4, 0.4, 0.5)), 0.25)
    torch.testing.assert_close(unknown.poses[:, 0], torch.tensor([0.4, 0.4, 0.4, 0.475]))


def test_the_shorter_of_two_turns_is_followed():
    half = 0.5**0.5
    turned = torch.cat([row(0, 2, 0), -row(0, 2, 0, (half, 0, 0, half))])
    turned[1, [0, 1, 2, 7]] *= -1
    hands = apply_command_lag(turned[1], turned[0], 0.5)
    # Half way to a quarter turn is an eighth, whichever sign the quaternion was written with.
    quaternion = hands[3:7] / hands[3:7].norm()
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
    points = {
        name: hand_points(track.poses, track.projections)[0, :6, :2]
        for name, track in (("now", now), ("then", then))
    }
    for name in ("tool", "wrist"):  # both lie in the plane that faces the camera
        at = HAND_POINTS.index(name)
        column, line_ = (points["now"][at] * torch.tensor([100.0, 80.0])).long().tolist()
        nearby = (grid[line_ - 1 : line_ + 2, column - 1 : column + 2] + 1) / 2
        assert (nearby - points["then"][at]).norm(dim=-1).min() < 0.02, name
