import mujoco
import numpy as np
import pytest

from robotwin_adapters.tabletop.cameras import (
    DESK,
    FRONT,
    HEAD,
    Camera,
    cam2world_gl,
    camera_pose,
    extrinsic_cv,
    focal_length,
    intrinsic_cv,
    jittered,
)
from robotwin_adapters.tabletop.objects import OBJECTS, ObjectSpec, Part

MODEL = mujoco.MjModel.from_xml_string(
    """<mujoco><worldbody><body pos="1 2 3" euler="0 0 90"><joint type="slide" axis="0 0 1"/>
    <geom size="0.1"/><site name="hand" pos="0 0 0.5"/></body></worldbody></mujoco>"""
)


def state(height: float = 0.0) -> mujoco.MjData:
    data = mujoco.MjData(MODEL)
    data.qpos[0] = height
    mujoco.mj_forward(MODEL, data)
    return data


def project(camera: Camera, points: np.ndarray, width: int, height: int) -> np.ndarray:
    extrinsic = extrinsic_cv(camera_pose(camera, MODEL, state()))
    image = (points @ extrinsic[:, :3].T + extrinsic[:, 3]) @ intrinsic_cv(camera.fovy, width, height).T
    return image[:, :2] / image[:, 2:]


def test_head_camera_has_the_recorded_extrinsics() -> None:
    expected = [[1, 0, 0, 0.032], [0, -0.8, -0.6, 0.45], [0, 0.6, -0.8, 1.35]]
    np.testing.assert_allclose(extrinsic_cv(camera_pose(HEAD, MODEL, state())), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("fovy", "width", "height", "focal"),
    [(37, 320, 240, 358.642), (37, 640, 480, 717.284), (45, 320, 180, 217.279), (93, 320, 240, 113.876)],
)
def test_intrinsics_of_the_known_sensors(fovy: float, width: int, height: int, focal: float) -> None:
    expected = [[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]]
    np.testing.assert_allclose(intrinsic_cv(fovy, width, height), expected, atol=6e-4)


def test_head_camera_sees_the_workspace_where_robotwin_does() -> None:
    corners = np.array([(x, y, 0.74) for x in (-0.22, 0.22) for y in (-0.2, 0.0)])
    u, v = project(HEAD, corners, 320, 240).T
    np.testing.assert_allclose([u.min(), u.max(), v.min(), v.max()], [54, 302, 123, 213], atol=1.0)


@pytest.mark.parametrize("camera", [HEAD, FRONT], ids=lambda camera: camera.name)
def test_extrinsic_is_the_inverse_of_cam2world(camera: Camera) -> None:
    pose = camera_pose(camera, MODEL, state())
    inverse = np.linalg.inv(cam2world_gl(pose) @ np.diag([1.0, -1.0, -1.0, 1.0]))
    np.testing.assert_allclose(extrinsic_cv(pose), inverse[:3], atol=1e-6)
    np.testing.assert_allclose(pose.rotation @ pose.rotation.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(pose.rotation) > 0


def test_other_aspect_ratios_keep_the_vertical_view() -> None:
    point = np.array([[0.05, -0.1, 0.74]])
    (square,), (wide,) = project(HEAD, point, 240, 240), project(HEAD, point, 320, 240)
    np.testing.assert_allclose(wide - square, [40, 0], atol=1e-4)
    assert focal_length(37, 64) == pytest.approx(focal_length(37, 240) * 64 / 240)


def test_a_mounted_camera_rides_on_its_site() -> None:
    camera = Camera("wrist", (0.1, 0.0, 0.0), (1, 0, 0), (0, 1, 0), site="hand")
    pose = camera_pose(camera, MODEL, state(height=0.25))
    np.testing.assert_allclose(pose.position, [1.0, 2.1, 3.75], atol=1e-12)
    np.testing.assert_allclose(pose.rotation[:, 2], [0, 1, 0], atol=1e-12)


def test_jitter_is_small_seeded_and_leaves_a_rotation() -> None:
    first, again = (jittered(HEAD, np.random.default_rng(7)) for _ in range(2))
    other = jittered(HEAD, np.random.default_rng(8))
    assert first == again != other
    pose, base = camera_pose(first, MODEL, state()), camera_pose(HEAD, MODEL, state())
    assert 0 < np.linalg.norm(pose.position - base.position) < 0.05
    angle = np.degrees(np.arccos((np.trace(pose.rotation.T @ base.rotation) - 1) / 2))
    assert 0.05 < angle < 5


def test_impossible_cameras_are_refused() -> None:
    with pytest.raises(ValueError, match="parallel"):
        Camera("bad", (0, 0, 1), (0, 0, 1), (0, 0, -2))
    with pytest.raises(ValueError, match="fovy"):
        Camera("bad", (0, 0, 1), (0, 0, 1), (1, 0, 0), fovy=180)
    with pytest.raises(ValueError, match="no site 'foot'"):
        camera_pose(Camera("bad", (0, 0, 1), (0, 0, 1), (1, 0, 0), site="foot"), MODEL, state())


def outline(part: Part) -> np.ndarray:
    """Points on a primitive that span its picture."""
    angle = np.linspace(0, 2 * np.pi, 32, endpoint=False)
    if part.shape == "box":
        points = np.array(np.meshgrid(*[(-half, half) for half in part.size])).reshape(3, -1).T
    elif part.shape == "cylinder":
        radius, half = part.size
        rings = [
            np.stack([radius * np.cos(angle), radius * np.sin(angle), 0 * angle + z]) for z in (-half, half)
        ]
        points = np.concatenate(rings, axis=1).T
    else:
        directions = np.random.default_rng(0).normal(size=(500, 3))
        points = part.size[0] * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return np.asarray(part.center) + points


@pytest.mark.parametrize("spec", OBJECTS, ids=lambda spec: spec.name)
def test_every_object_spans_eight_pixels_on_the_desk_camera(spec: ObjectSpec) -> None:
    points = np.concatenate([outline(part) for part in spec.parts])
    sizes = []
    for x, y, yaw in np.random.default_rng(1).uniform((-0.23, -0.2, -3.14), (0.23, 0.0, 3.14), (200, 3)):
        turn = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
        sizes.append(np.ptp(project(DESK, points @ turn.T + (x, y, 0.74), 64, 64), axis=0))
    assert np.min(sizes) >= 8
