"""How the scene looks: light, table and colours; one fixed clean look, or one drawn from a seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import mujoco
import numpy as np
from jaxtyping import Float32

from robotwin_adapters.tabletop.cameras import Vector

Colour = tuple[float, float, float]  # RGB in 0..1


@dataclass(frozen=True)
class Look:
    """Everything the renderer needs beside the scene itself; the defaults are the clean look."""

    light: Vector = (-0.35, -0.45, 1.0)  # direction towards the light, any length
    ambient: float = 0.55  # light that reaches every surface
    diffuse: float = 0.55  # light of the directional lamp on a surface that faces it
    underside: float = 0.35  # share of the ambient light that a surface facing down loses
    shadow: float = 0.35  # how much darker the table is in a cast shadow; 0 turns shadows off
    sky: Colour = (0.80, 0.87, 0.94)
    colours: Mapping[str, Colour] = field(default_factory=dict)  # geom name -> colour instead of the model's
    table: tuple[Colour, Colour] | None = None  # two checker colours (equal: plain) instead of the model's
    checker_m: float = 0.1  # edge of one checker square
    table_geom: str = "table"


def geom_colours(model: mujoco.MjModel, look: Look) -> Float32[np.ndarray, "geom 3"]:
    """The colour of every geom in 0..255: the look's, else the material's, else its own."""
    colours = 255 * model.geom_rgba[:, :3].astype(np.float32)
    has_material = model.geom_matid >= 0
    colours[has_material] = 255 * model.mat_rgba[model.geom_matid[has_material], :3]
    for name, colour in look.colours.items():
        geom = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, name)
        if geom < 0:
            raise ValueError(f"the look colours geom {name!r}, which the scene does not have")
        colours[geom] = 255 * np.asarray(colour, np.float32)
    return colours
