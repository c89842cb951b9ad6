"""Renders the scene by ray casting on the CPU: no GPU, GL or system library, and always the same pixels.

Static geoms (table, wall, floor) are cast and shaded once per camera pose and cached. Each frame then casts
only through pixels that the bounding boxes of the moving geoms can touch: the result equals a full cast.
Samples are stored sub-sample first, (s*s, H*W), so that the average over a pixel is a sum over one axis.
"""

import copy
from dataclasses import dataclass

import mujoco
import numpy as np
from jaxtyping import Bool, Float32, Float64, Int, UInt8

from robotwin_adapters.tabletop.cameras import Camera, CameraPose, camera_pose, focal_length
from robotwin_adapters.tabletop.look import TABLE, Look, geom_colors

MIN_SIZE, MAX_SIZE = 16, 4096  # pixels; smaller ones are not recognizable, larger ones need minutes
VISIBLE_GROUPS = np.array([1, 1, 1, 0, 0, 0], np.uint8)  # MuJoCo's habit: 3-5 are collision shapes
HIDDEN_GROUP = 5
NEAR, FAR = 0.01, 100.0  # m
LIGHT_DISTANCE = 20.0  # m; far enough for the shadow rays, which share one origin, to be nearly parallel
LIGHT_GRID = 64  # cells along each side of the grid that sorts shadow receivers
SHADOW_GAP = 2e-3  # m; an occluder this close to the surface is the surface itself


@dataclass(frozen=True)
class _Hits:
    """The nearest surface along each ray."""

    geom: Int[np.ndarray, " n"]  # -1 for rays that hit nothing
    distance: Float64[np.ndarray, " n"]  # m; -1 for rays that hit nothing
    normal: Float64[np.ndarray, "n 3"]


@dataclass(frozen=True)
class _LightView:
    """The shadow receivers in view of the light, sorted into a grid across their extent."""

    rays: Float64[np.ndarray, "k 3"]  # unit directions from the light
    distance: Float64[np.ndarray, " k"]  # m
    cells: Int[np.ndarray, " k"]  # flat index into the grid
    low: Float64[np.ndarray, " 2"]  # corner of the grid, as slopes x / -z and y / -z from the light
    scale: Float64[np.ndarray, " 2"]  # grid cells per unit of slope

    @classmethod
    def of(cls, offsets: Float64[np.ndarray, "k 3"]) -> "_LightView":
        slopes = offsets[:, :2] / -offsets[:, 2:]
        low, high = (slopes.min(0), slopes.max(0)) if len(slopes) else (np.zeros(2), np.ones(2))
        scale = LIGHT_GRID / np.maximum(high - low, 1e-9)
        column, row = np.minimum((slopes - low) * scale, LIGHT_GRID - 1).astype(np.int64).T
        distance = np.linalg.norm(offsets, axis=1)
        rays = offsets / distance[:, None]
        return cls(rays, distance - SHADOW_GAP, row * LIGHT_GRID + column, low, scale)

    def under(self, offsets: Float64[np.ndarray, "geom 8 3"]) -> Int[np.ndarray, " n"]:
        """The receivers that may be in the shadow of one of these boxes."""
        corners = (offsets[..., :2] / -offsets[..., 2:] - self.low) * self.scale
        return np.flatnonzero(_rectangles(corners, LIGHT_GRID, LIGHT_GRID).reshape(-1)[self.cells])


@dataclass(frozen=True)
class _Background:
    """The rendered static geoms for a camera pose."""

    pose: CameraPose
    rays: Float64[np.ndarray, "n 3"]  # unit directions in the world, sub-sample first
    distance: Float64[np.ndarray, " n"]  # m; infinite for the sky
    lit: Float32[np.ndarray, "n 3"]  # shaded colors in 0..255
    receivers: Int[np.ndarray, " k"]  # pixels whose center can take a shadow
    light_view: _LightView


class Renderer:
    """Renders one MuJoCo scene from one camera at one size."""

    def __init__(
        self,
        model: mujoco.MjModel,
        camera: Camera,
        width: int,
        height: int,
        *,
        look: Look | None = None,
        supersample: bool = True,
        shadows: bool = True,
    ) -> None:
        if min(width, height) < MIN_SIZE:
            raise ValueError(f"pictures are at least {MIN_SIZE}x{MIN_SIZE} pixels, got {width}x{height}")
        self.model, self.camera, self.width, self.height = model, camera, width, height
        self.look = look or Look()
        self.shadows = shadows and self.look.shadow > 0
        self.samples = 2 if supersample else 1
        self._colors = geom_colors(model, self.look)
        self._light = np.asarray(self.look.light, np.float64) / np.linalg.norm(self.look.light)
        self._camera_rays = _pixel_rays(camera.fovy, width, height, self.samples)
        self._center_rays = _pixel_rays(camera.fovy, width, height, 1)
        self._static_model = _without_moving_geoms(model)
        self._moving = np.flatnonzero(~_is_static(model) & (VISIBLE_GROUPS[model.geom_group] == 1))
        self._corners = _box_corners(model)[self._moving]
        self._table = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, TABLE)
        self._background: _Background | None = None

    def render(self, data: mujoco.MjData) -> UInt8[np.ndarray, "H W 3"]:
        """Render the current state as an RGB picture."""
        pose = camera_pose(self.camera, self.model, data)
        background = self._background_at(pose, data)
        picture = background.lit.copy()
        if self.shadows:
            self._darken(picture, background, data)
        self._draw_moving(picture, background, data)
        pixels = picture.reshape(self.samples**2, -1).sum(0)
        pixels *= 1.0 / self.samples**2
        pixels += 0.5
        return pixels.astype(np.uint8).reshape(self.height, self.width, 3)

    def _background_at(self, pose: CameraPose, data: mujoco.MjData) -> _Background:
        kept = self._background
        if (
            kept is not None
            and np.array_equal(kept.pose.position, pose.position)
            and np.array_equal(kept.pose.rotation, pose.rotation)
        ):
            return kept
        self._background = self._cast_background(pose, data)
        return self._background

    def _cast_background(self, pose: CameraPose, data: mujoco.MjData) -> _Background:
        rays = self._camera_rays @ pose.rotation.T
        hits = _cast(self._static_model, data, pose.position, rays, static=True)
        receivers, offsets = self._shadow_receivers(pose, data)
        return _Background(
            pose,
            rays,
            np.where(hits.geom < 0, np.inf, hits.distance),
            self._shade_static(hits, rays, pose),
            receivers,
            _LightView.of(offsets),
        )

    def _shadow_receivers(self, pose: CameraPose, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
        """Pixels that show a static surface facing up, and the vectors to them from the light."""
        if not self.shadows:
            return np.empty(0, np.int64), np.empty((0, 3))
        rays = self._center_rays @ pose.rotation.T
        hits = _cast(self._static_model, data, pose.position, rays, static=True)
        receivers = np.flatnonzero((hits.geom >= 0) & (hits.normal[:, 2] > 0.9))
        points = pose.position + rays[receivers] * hits.distance[receivers, None]
        return receivers, points - self._light * LIGHT_DISTANCE

    def _shade_static(self, hits: _Hits, rays: np.ndarray, pose: CameraPose) -> Float32[np.ndarray, "n 3"]:
        lit = self._shade(hits.geom, hits.normal)
        sky = hits.geom < 0
        lit[sky] = 255 * np.asarray(self.look.sky, np.float32)
        on_table = np.flatnonzero((hits.geom == self._table) & (hits.normal[:, 2] > 0.9))
        points = pose.position[:2] + rays[on_table, :2] * hits.distance[on_table, None]
        odd = np.floor(points / self.look.checker).astype(np.int64).sum(1) % 2
        squares = 255 * np.asarray(self.look.table, np.float32)
        lit[on_table] = squares[odd] * self._brightness(hits.normal[on_table])[:, None]
        return lit

    def _darken(self, picture: np.ndarray, background: _Background, data: mujoco.MjData) -> None:
        """Add the shadows of the moving geoms, one ray per pixel, with edges one pixel soft."""
        lamp, view = self._light * LIGHT_DISTANCE, background.light_view
        under = view.under(self._moving_corners(data) - lamp)
        hits = _cast(self.model, data, lamp, view.rays[under], static=False)
        dark = (hits.geom >= 0) & (hits.distance < view.distance[under])
        mask = np.zeros(self.height * self.width, np.float32)
        mask[background.receivers[under]] = dark
        soft = _blur(mask.reshape(self.height, self.width)).reshape(-1)
        lit = 1.0 - self.look.shadow * soft[background.receivers]
        picture.reshape(self.samples**2, -1, 3)[:, background.receivers] *= lit[:, None]

    def _draw_moving(self, picture: np.ndarray, background: _Background, data: mujoco.MjData) -> None:
        pixels = np.flatnonzero(self._touched(background.pose, data))
        samples = (pixels + np.arange(self.samples**2)[:, None] * (self.width * self.height)).reshape(-1)
        hits = _cast(self.model, data, background.pose.position, background.rays[samples], static=False)
        front = np.flatnonzero((hits.geom >= 0) & (hits.distance < background.distance[samples]))
        picture[samples[front]] = self._shade(hits.geom[front], hits.normal[front])

    def _touched(self, pose: CameraPose, data: mujoco.MjData) -> Bool[np.ndarray, "H W"]:
        """Pixels inside the screen rectangle of the bounding box of some moving geom."""
        seen = (self._moving_corners(data) - pose.position) @ pose.rotation
        if seen.size and seen[..., 2].min() < NEAR:
            return np.ones((self.height, self.width), bool)
        middle = np.array([self.width, self.height]) / 2
        corners = seen[..., :2] / seen[..., 2:] * focal_length(self.camera.fovy, self.height) + middle
        return _rectangles(corners, self.width, self.height)

    def _moving_corners(self, data: mujoco.MjData) -> Float64[np.ndarray, "geom 8 3"]:
        turns = data.geom_xmat[self._moving].reshape(-1, 3, 3)
        return self._corners @ turns.transpose(0, 2, 1) + data.geom_xpos[self._moving, None]

    def _shade(self, geom: np.ndarray, normal: np.ndarray) -> Float32[np.ndarray, "n 3"]:
        return self._colors[geom] * self._brightness(normal)[:, None]

    def _brightness(self, normal: np.ndarray) -> Float32[np.ndarray, " n"]:
        """Lambert's law plus ambient light that decreases from above to below."""
        look = self.look
        facing = np.maximum(normal @ self._light, 0.0)
        ambient = look.ambient * (1.0 - look.underside * (0.5 - 0.5 * normal[:, 2]))
        return np.minimum(ambient + look.diffuse * facing, 1.0).astype(np.float32)


def _cast(
    model: mujoco.MjModel, data: mujoco.MjData, origin: np.ndarray, rays: np.ndarray, *, static: bool
) -> _Hits:
    count = len(rays)
    hits = _Hits(np.full(count, -1, np.int32), np.full(count, -1.0), np.zeros((count, 3)))
    if count:
        mujoco.mj_multiRay(
            model,
            data,
            origin,
            rays.reshape(-1),
            VISIBLE_GROUPS,
            static,
            -1,
            hits.geom,
            hits.distance,
            hits.normal.reshape(-1),
            count,
            FAR,
        )
    return hits


def _pixel_rays(fovy: float, width: int, height: int, samples: int) -> Float64[np.ndarray, "n 3"]:
    """Unit directions in camera axes through the sub-sample centers, sub-sample first, then row by row."""
    offsets = (np.arange(samples) + 0.5) / samples
    v, u, y, x = np.meshgrid(offsets, offsets, np.arange(height), np.arange(width), indexing="ij")
    focal = focal_length(fovy, height)
    rays = np.stack([(x + u - width / 2) / focal, (y + v - height / 2) / focal, np.ones(x.shape)], axis=-1)
    return (rays / np.linalg.norm(rays, axis=-1, keepdims=True)).reshape(-1, 3)


def _box_corners(model: mujoco.MjModel) -> Float64[np.ndarray, "geom 8 3"]:
    """Corners of the bounding box of each geom, in the frame of the geom."""
    signs = np.stack(np.meshgrid([-1, 1], [-1, 1], [-1, 1]), axis=-1).reshape(1, 8, 3)
    return model.geom_aabb[:, None, :3] + signs * model.geom_aabb[:, None, 3:]


def _rectangles(corners: np.ndarray, width: int, height: int) -> Bool[np.ndarray, "H W"]:
    """Cells covered by the bounding rectangle of any row of corners (x, y)."""
    covered = np.zeros((height, width), bool)
    size = np.array([width, height])
    start = np.clip(np.floor(corners.min(1)), 0, size).astype(np.int64)
    stop = np.clip(np.floor(corners.max(1)) + 1, 0, size).astype(np.int64)
    for (left, top), (right, bottom) in zip(start.tolist(), stop.tolist(), strict=True):
        covered[top:bottom, left:right] = True
    return covered


def _is_static(model: mujoco.MjModel) -> Bool[np.ndarray, " geom"]:
    """Whether the body is welded to the world, as MuJoCo itself decides it."""
    return model.body_weldid[model.geom_bodyid] == 0


def _without_moving_geoms(model: mujoco.MjModel) -> mujoco.MjModel:
    still = copy.copy(model)
    still.geom_group[~_is_static(model)] = HIDDEN_GROUP
    return still


def _blur(mask: Float32[np.ndarray, "H W"]) -> Float32[np.ndarray, "H W"]:
    """A 3x3 binomial blur with edge padding."""
    rows = np.pad(mask, ((1, 1), (0, 0)), mode="edge")
    rows = rows[:-2] + 2 * rows[1:-1] + rows[2:]
    columns = np.pad(rows, ((0, 0), (1, 1)), mode="edge")
    return (columns[:, :-2] + 2 * columns[:, 1:-1] + columns[:, 2:]) / 16
