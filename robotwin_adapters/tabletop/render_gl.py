"""Renders the same scene through OpenGL where available: faster than ray casting from about 320x240 on.

GL is optional: its pixels differ between drivers, so only ray casting gives the same dataset everywhere.
"""

import copy

import mujoco
import numpy as np
from jaxtyping import UInt8

from robotwin_adapters.tabletop.cameras import Camera, CameraPose, camera_pose
from robotwin_adapters.tabletop.look import TABLE, Look, geom_colors
from robotwin_adapters.tabletop.render import FAR

NEAR = 0.01  # m


class GlRenderer:
    """Renders one MuJoCo scene from one camera at one size; no shadows, table in its first color only."""

    def __init__(
        self, model: mujoco.MjModel, camera: Camera, width: int, height: int, *, look: Look | None = None
    ) -> None:
        self.camera, self.width, self.height = camera, width, height
        self.look = look or Look()
        self._model = _dressed(model, self.look, width, height)
        self._option = mujoco.MjvOption()
        self._option.sitegroup[:] = 0
        try:
            self._renderer = mujoco.Renderer(self._model, height, width)
        # Each GL platform fails with an exception type of its own when its library or display is missing.
        except Exception as error:
            raise ValueError(
                f"no OpenGL on this machine ({error}); set MUJOCO_GL=egl or osmesa, or use the ray renderer"
            ) from error

    def render(self, data: mujoco.MjData) -> UInt8[np.ndarray, "H W 3"]:
        """Render the current state as an RGB picture."""
        self._renderer.update_scene(data, scene_option=self._option)
        scene = self._renderer.scene
        _aim(scene, camera_pose(self.camera, self._model, data), self.camera.fovy, self.width / self.height)
        _light(scene, self.look)
        return self._renderer.render().copy()

    def close(self) -> None:
        """Release the GL context."""
        self._renderer.close()


def _dressed(model: mujoco.MjModel, look: Look, width: int, height: int) -> mujoco.MjModel:
    dressed = copy.copy(model)
    dressed.geom_matid[:] = -1
    dressed.geom_rgba[:, :3] = geom_colors(model, look) / 255
    table = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, TABLE)
    if table >= 0:
        dressed.geom_rgba[table, :3] = look.table[0]
    dressed.vis.global_.offwidth = max(width, dressed.vis.global_.offwidth)
    dressed.vis.global_.offheight = max(height, dressed.vis.global_.offheight)
    dressed.vis.headlight.active = 0
    return dressed


def _aim(scene: mujoco.MjvScene, pose: CameraPose, fovy: float, aspect: float) -> None:
    half_height = NEAR * np.tan(np.radians(fovy) / 2)
    for eye in scene.camera:  # both cameras of the stereo pair, at the same position
        eye.pos[:] = pose.position
        eye.forward[:] = pose.rotation[:, 2]
        eye.up[:] = -pose.rotation[:, 1]
        eye.frustum_near, eye.frustum_far = NEAR, FAR
        eye.frustum_bottom, eye.frustum_top = -half_height, half_height
        eye.frustum_center, eye.frustum_width = 0.0, half_height * aspect


def _light(scene: mujoco.MjvScene, look: Look) -> None:
    towards = np.asarray(look.light) / np.linalg.norm(look.light)
    scene.nlight = 1
    lamp = scene.lights[0]
    lamp.type = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    lamp.headlight = lamp.castshadow = 0
    lamp.pos[:], lamp.dir[:] = 3.0 * towards, -towards
    lamp.ambient[:], lamp.diffuse[:], lamp.specular[:] = look.ambient, look.diffuse, 0.0
