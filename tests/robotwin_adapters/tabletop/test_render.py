import time
from dataclasses import replace

import mujoco
import numpy as np
import pytest

from robotwin_adapters.tabletop.cameras import DESK, HEAD, Camera, camera_pose, extrinsic_cv, intrinsic_cv
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.look import Look
from robotwin_adapters.tabletop.render import Renderer, _LightView
from robotwin_adapters.tabletop.scene import build_scene
from robotwin_adapters.tabletop.tasks import sample_setup

SCENE = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 0.1" rgba="0.6 0.6 0.6 1"/>
    <geom name="table" type="box" size="0.6 0.35 0.025" pos="0 0 0.715" rgba="1 1 1 1"/>
    <body name="arm" pos="-0.1 -0.3 0.75">
      <joint name="turn" type="hinge" axis="0 0 1"/>
      <geom name="link" type="capsule" fromto="0 0 0.1 0 0.2 0.1" size="0.025" rgba="0 0 1 1"/>
      <geom name="finger" type="box" size="0.01 0.02 0.04" pos="0 0.2 0.06" rgba="0 1 1 1"/>
      <geom name="bulk" type="box" size="0.3 0.3 0.3" group="3"/>
      <site name="hand" pos="0 0.2 0.1" euler="-90 0 0"/>
    </body>
    <body name="ball" pos="0.12 -0.05 0.77">
      <freejoint/>
      <geom name="ball" size="0.03" rgba="1 0 0 1"/>
    </body>
    <body name="can" pos="0.0 -0.12 0.78">
      <freejoint/>
      <geom name="can" type="cylinder" size="0.03 0.04" rgba="0 1 0 1"/>
    </body>
  </worldbody>
</mujoco>
"""
WHITE = (1.0, 1.0, 1.0)
FLAT = Look(ambient=1.0, diffuse=0.0, underside=0.0, shadow=0.0, table=(WHITE, WHITE))  # pure colors only
WRIST = Camera("wrist", (0.0, 0.0, 0.0), (0, 0, 1), (-1, 0, 0), fovy=60, site="hand")


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE)


def state(model: mujoco.MjModel, turn: float = 0.0) -> mujoco.MjData:
    data = mujoco.MjData(model)
    data.qpos[0] = turn
    mujoco.mj_forward(model, data)
    return data


def ray_by_ray(
    model: mujoco.MjModel, data: mujoco.MjData, camera: Camera, width: int, height: int
) -> np.ndarray:
    """Flat colors by one mj_ray call a pixel, rays from the inverse of K: nothing of Renderer."""
    pose = camera_pose(camera, model, data)
    to_ray = pose.rotation @ np.linalg.inv(intrinsic_cv(camera.fovy, width, height).astype(np.float64))
    picture = np.empty((height, width, 3), np.uint8)
    groups, geom = np.array([1, 1, 1, 0, 0, 0], np.uint8), np.zeros(1, np.int32)
    for row in range(height):
        for column in range(width):
            ray = to_ray @ np.array([column + 0.5, row + 0.5, 1.0])
            mujoco.mj_ray(model, data, pose.position, ray / np.linalg.norm(ray), groups, True, -1, geom)
            color = model.geom_rgba[geom[0], :3] if geom[0] >= 0 else np.asarray(FLAT.sky)
            picture[row, column] = np.float32(255) * color + 0.5
    return picture


@pytest.mark.parametrize("camera", [HEAD, WRIST], ids=lambda camera: camera.name)
@pytest.mark.parametrize(("width", "height"), [(64, 64), (48, 36), (33, 50)])
def test_culling_and_the_kept_background_change_nothing(
    model: mujoco.MjModel, camera: Camera, width: int, height: int
) -> None:
    renderer = Renderer(model, camera, width, height, look=FLAT, supersample=False)
    for turn in (0.0, -0.7, 0.9):
        data = state(model, turn)
        expected = ray_by_ray(model, data, camera, width, height)
        np.testing.assert_array_equal(renderer.render(data), expected)


@pytest.mark.parametrize(("width", "height"), [(64, 64), (128, 96), (320, 240)])
def test_the_ball_is_where_the_matrices_say(model: mujoco.MjModel, width: int, height: int) -> None:
    data = state(model)
    picture = Renderer(model, HEAD, width, height, look=FLAT).render(data).astype(np.float64)
    assert picture.shape == (height, width, 3)
    red = np.clip((picture[..., 0] - picture[..., 1]) / 255, 0, 1)
    rows, columns = np.indices(red.shape) + 0.5
    seen = np.array([(red * columns).sum(), (red * rows).sum()]) / red.sum()
    center = extrinsic_cv(camera_pose(HEAD, model, data)) @ np.append(data.geom("ball").xpos, 1.0)
    u, v, w = intrinsic_cv(HEAD.fovy, width, height) @ center
    np.testing.assert_allclose(seen, [u / w, v / w], atol=0.02 * height / 2)
    radius = 0.03 * intrinsic_cv(HEAD.fovy, width, height)[0, 0] / center[2]
    assert red.sum() == pytest.approx(np.pi * radius**2, rel=0.08)


def test_supersampling_averages_four_rays(model: mujoco.MjModel) -> None:
    data = state(model, 0.3)
    smooth = Renderer(model, HEAD, 40, 32, look=FLAT).render(data).astype(np.float64)
    fine = Renderer(model, HEAD, 80, 64, look=FLAT, supersample=False).render(data).astype(np.float64)
    np.testing.assert_allclose(smooth, fine.reshape(32, 2, 40, 2, 3).mean((1, 3)), atol=1.0)


def test_same_state_same_pixels_whatever_was_drawn_before(model: mujoco.MjModel) -> None:
    renderer = Renderer(model, HEAD, 64, 64)
    first = renderer.render(state(model, 0.4))
    assert not np.array_equal(first, renderer.render(state(model, -0.4)))
    np.testing.assert_array_equal(first, renderer.render(state(model, 0.4)))
    np.testing.assert_array_equal(first, Renderer(model, HEAD, 64, 64).render(state(model, 0.4)))


def test_faces_towards_the_light_are_brighter(model: mujoco.MjModel) -> None:
    look = Look(light=(-1.0, 0.0, 0.3), shadow=0.0)
    picture = Renderer(model, HEAD, 320, 240, look=look, supersample=False).render(state(model))
    ball = (picture[..., 0] > 60) & (picture[..., 1] == 0) & (picture[..., 2] == 0)
    columns = np.flatnonzero(ball.any(0))
    row = int(np.median(np.flatnonzero(ball.any(1))))
    assert picture[row, columns[2], 0] > 1.5 * picture[row, columns[-3], 0]


def test_shadows_fall_away_from_the_light_and_only_on_the_table(model: mujoco.MjModel) -> None:
    light = (-1.0, 0.0, 1.0)  # from the left: the shadow of the ball, 3 cm above the table, lies to its right
    data = state(model, -2.0)
    bright, dark = (
        Renderer(model, HEAD, 320, 240, look=Look(light=light, shadow=depth)).render(data).astype(int)
        for depth in (0.0, 0.5)
    )
    change = (bright - dark).sum(-1)
    assert change.min() >= 0
    ground = np.append(data.geom("ball").xpos[:2] + np.array([0.04, 0.0]), [0.74, 1.0])
    u, v, w = intrinsic_cv(HEAD.fovy, 320, 240) @ extrinsic_cv(camera_pose(HEAD, model, data)) @ ground
    assert change[int(v / w), int(u / w)] > 200
    assert change[int(v / w), int(u / w) - 70] == 0


def test_no_shadow_is_lost_to_culling(model: mujoco.MjModel, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [state(model, turn) for turn in (0.0, -0.7, 0.9)]
    culled = [Renderer(model, HEAD, 96, 72).render(data) for data in states]
    monkeypatch.setattr(_LightView, "under", lambda view, _: np.arange(len(view.rays)))
    for data, picture in zip(states, culled, strict=True):
        np.testing.assert_array_equal(Renderer(model, HEAD, 96, 72).render(data), picture)


def test_table_can_be_checkered_or_plain(model: mujoco.MjModel) -> None:
    red, blue = (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)
    data = state(model)
    for table, colors in (((red, blue), 2), ((red, red), 1)):
        look = replace(FLAT, table=table)
        picture = Renderer(model, HEAD, 320, 240, look=look, supersample=False).render(data)
        top = picture[:60].reshape(-1, 3)
        assert len(np.unique(top[(top[:, 1] == 0)], axis=0)) == colors


def test_colors_of_the_look_replace_those_of_the_model(model: mujoco.MjModel) -> None:
    look = replace(FLAT, colors={model.geom("ball").id: (1.0, 1.0, 0.0)})
    picture = Renderer(model, HEAD, 64, 64, look=look, supersample=False).render(state(model))
    assert (picture == (255, 255, 0)).all(-1).sum() > 20
    assert not (picture == (255, 0, 0)).all(-1).any()
    with pytest.raises(ValueError, match="geom 99"):
        Renderer(model, HEAD, 64, 64, look=Look(colors={99: (1.0, 1.0, 0.0)}))


def test_tiny_pictures_are_refused(model: mujoco.MjModel) -> None:
    with pytest.raises(ValueError, match="at least 16x16 pixels, got 64x8"):
        Renderer(model, HEAD, 64, 8)


@pytest.mark.slow
def test_frame_times_on_one_core() -> None:
    # CPU time of a frame of the real scene, with cast shadows. The best of several keeps other load out.
    spec = sample_setup("place_a2b_left", EMBODIMENTS["crane"], np.random.default_rng(0))
    scene = build_scene(spec)
    for supersample, limit_ms in ((True, 8.0), (False, 2.0)):
        renderer = Renderer(scene.model, DESK, 64, 64, supersample=supersample)
        renderer.render(scene.data)
        assert min(_cpu_ms(renderer, scene.data) for _ in range(10)) < limit_ms


def _cpu_ms(renderer: Renderer, data: mujoco.MjData) -> float:
    start = time.process_time()
    for _ in range(10):
        renderer.render(data)
    return 100 * (time.process_time() - start)
