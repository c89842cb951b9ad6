import os
import subprocess
import sys

import mujoco
import pytest

from robotwin_adapters.tabletop.cameras import HEAD
from robotwin_adapters.tabletop.render_gl import GlRenderer

NO_GL = 77
# In a process of its own: MuJoCo chooses its GL platform when it is imported.
COMPARE = f"""
import sys
import numpy as np
from robotwin_adapters.tabletop.cameras import DESK
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.look import Look
from robotwin_adapters.tabletop.render import Renderer
from robotwin_adapters.tabletop.render_gl import GlRenderer
from robotwin_adapters.tabletop.scene import build_scene
from robotwin_adapters.tabletop.tasks import sample_setup
scene = build_scene(sample_setup("place_a2b_left", EMBODIMENTS["wren"], np.random.default_rng(0)))
look = Look(shadow=0.0, ambient=0.5, diffuse=0.4, underside=0.0)
try:
    gl = GlRenderer(scene.model, DESK, 160, 96, look=look)
except ValueError:
    sys.exit({NO_GL})
by_rays = Renderer(scene.model, DESK, 160, 96, look=look).render(scene.data)
print(np.mean(np.abs(gl.render(scene.data).astype(int) - by_rays) > 25))
gl.close()
"""


def test_gl_and_rays_draw_the_same_scene() -> None:
    environment = os.environ | {"MUJOCO_GL": "egl", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", COMPARE], env=environment, capture_output=True, text=True)
    if run.returncode == NO_GL or "OpenGL" in run.stderr:
        pytest.skip("no EGL on this machine")
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 0.04  # edges only


def test_a_machine_without_gl_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no display")

    monkeypatch.setattr(mujoco, "Renderer", fail)
    model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
    with pytest.raises(ValueError, match=r"no OpenGL on this machine \(no display\); set MUJOCO_GL=egl"):
        GlRenderer(model, HEAD, 64, 64)
