"""Appearance of the scene: light, table and colors; one fixed clean style, or one drawn from a seed."""

import colorsys
from collections.abc import Mapping
from dataclasses import dataclass, field

import mujoco
import numpy as np
from jaxtyping import Float32

from robotwin_adapters.tabletop.cameras import Vector

Color = tuple[float, float, float]  # RGB in 0..1

TABLE, WALL, FLOOR = "table", "wall", "floor"  # names of the static geoms
MAX_CLUTTER = 4  # extra objects in a randomized episode


@dataclass(frozen=True)
class Look:
    """Lighting and colors for the renderer; the defaults are the clean style."""

    light: Vector = (0.3, 0.1, 1.0)  # direction towards the light, any length
    ambient: float = 0.68  # light that reaches every surface
    diffuse: float = 0.4  # light of the directional lamp on a surface that faces it
    underside: float = 0.25  # share of the ambient light that a surface facing down loses
    shadow: float = 0.35  # how much darker the table is in a cast shadow; 0 turns shadows off
    sky: Color = (0.80, 0.87, 0.94)
    table: tuple[Color, Color] = ((0.80, 0.79, 0.77),) * 2  # checker squares; two equal ones are plain
    checker: float = 0.1  # m, edge of a checker square
    colors: Mapping[int, Color] = field(default_factory=dict)  # geom id -> color instead of the model's


def random_look(model: mujoco.MjModel, rng: np.random.Generator) -> Look:
    """Random colors, light and table texture; each robot keeps its own colors up to a tint."""
    azimuth, height = rng.uniform(-np.pi, np.pi), rng.uniform(0.8, 2.5)
    table = _pastel(rng)
    colors = {
        geom: _pastel(rng) for name in (WALL, FLOOR) if (geom := _geom_id(model, name)) >= 0
    } | _random_tints(model, rng)
    return Look(
        light=(float(np.cos(azimuth)), float(np.sin(azimuth)), float(height)),
        ambient=float(rng.uniform(0.55, 0.72)),
        diffuse=float(rng.uniform(0.3, 0.5)),
        shadow=float(rng.uniform(0.2, 0.45)),
        sky=_pastel(rng),
        table=(table, _pastel(rng) if rng.random() < 0.5 else table),
        checker=float(rng.uniform(0.05, 0.15)),
        colors=colors,
    )


def geom_colors(model: mujoco.MjModel, look: Look) -> Float32[np.ndarray, "geom 3"]:
    """The color of every geom in 0..255: from `look`, else from its material, else its own."""
    colors = 255 * model.geom_rgba[:, :3].astype(np.float32)
    has_material = model.geom_matid >= 0
    colors[has_material] = 255 * model.mat_rgba[model.geom_matid[has_material], :3]
    for geom, color in look.colors.items():
        if not 0 <= geom < model.ngeom:
            raise ValueError(f"the look colors geom {geom}, but the scene has {model.ngeom} geoms")
        colors[geom] = 255 * np.asarray(color, np.float32)
    return colors


def _random_tints(model: mujoco.MjModel, rng: np.random.Generator) -> dict[int, Color]:
    """A hue shift per free object, and a slight one for everything else except table, wall and floor."""
    still = {_geom_id(model, name) for name in (TABLE, WALL, FLOOR)}
    robot_turn, robot_gain = rng.uniform(-0.04, 0.04), rng.uniform(0.85, 1.1)
    object_turns = rng.uniform(0.0, 1.0, model.nbody)
    tints = {}
    for geom in range(model.ngeom):
        body = model.geom_bodyid[geom]
        turn, gain = (object_turns[body], 1.0) if _is_free(model, body) else (robot_turn, robot_gain)
        if geom not in still:
            tints[geom] = _turned(model.geom_rgba[geom, :3], turn, gain)
    return tints


def _is_free(model: mujoco.MjModel, body: int) -> bool:
    joint = model.body_jntadr[body]
    return joint >= 0 and model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE


def _turned(rgb: np.ndarray, hue_turn: float, gain: float) -> Color:
    hue, saturation, value = colorsys.rgb_to_hsv(*rgb.tolist())
    return colorsys.hsv_to_rgb((hue + float(hue_turn)) % 1.0, saturation, min(1.0, value * float(gain)))


def _pastel(rng: np.random.Generator) -> Color:
    """A light and pale color, against which robots and objects are clearly visible."""
    return colorsys.hsv_to_rgb(rng.uniform(), rng.uniform(0.0, 0.3), rng.uniform(0.7, 0.98))


def _geom_id(model: mujoco.MjModel, name: str) -> int:
    return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, name)
