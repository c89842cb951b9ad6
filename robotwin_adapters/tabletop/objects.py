"""The things on the table: primitive shapes that a parallel gripper can close on."""

import math
from dataclasses import dataclass

from robotwin_adapters.tabletop.embodiments import Rgba

OBJECT_MASS = 0.05  # kg


@dataclass(frozen=True)
class Part:
    """One primitive of an object."""

    shape: str  # "box", "cylinder" (upright) or "sphere"
    size: tuple[float, ...]  # m: box half sizes x y z, cylinder radius and half height, sphere radius
    center: tuple[float, float, float]  # m, from the middle of the object's underside
    rgba: Rgba

    @property
    def volume(self) -> float:
        """Cubic metres."""
        if self.shape == "box":
            return 8 * math.prod(self.size)
        if self.shape == "cylinder":
            return 2 * math.pi * self.size[0] ** 2 * self.size[1]
        return 4 / 3 * math.pi * self.size[0] ** 3

    @property
    def reach(self) -> float:
        """Farthest planar distance from the object's middle (m)."""
        outline = math.hypot(*self.size[:2]) if self.shape == "box" else self.size[0]
        return outline + math.hypot(*self.center[:2])


@dataclass(frozen=True)
class ObjectSpec:
    """Shape, colors and grasps of an object; its frame is at the middle of its underside."""

    name: str
    phrase: str  # for instructions, without the article
    parts: tuple[Part, ...]
    grasp_height: float  # m above the underside where the fingertips close
    grasp_yaws: tuple[float, ...]  # rad, directions in the object's frame along which the fingers may close

    @property
    def radius(self) -> float:
        """Radius of the circle around the middle that contains the object's outline (m)."""
        return max(part.reach for part in self.parts)


_ANY_YAW = tuple(math.pi * step / 8 for step in range(8))
_BOTH_SIDES = (0.0, math.pi / 2)
_ACROSS = (math.pi / 2,)

RED: Rgba = (0.85, 0.12, 0.12, 1.0)
BLUE: Rgba = (0.12, 0.25, 0.85, 1.0)
GREEN: Rgba = (0.10, 0.60, 0.20, 1.0)
YELLOW: Rgba = (0.95, 0.80, 0.10, 1.0)
PURPLE: Rgba = (0.55, 0.15, 0.70, 1.0)
CYAN: Rgba = (0.10, 0.70, 0.80, 1.0)
PINK: Rgba = (0.95, 0.35, 0.60, 1.0)
BROWN: Rgba = (0.45, 0.27, 0.12, 1.0)
DARK: Rgba = (0.15, 0.15, 0.18, 1.0)

OBJECTS: tuple[ObjectSpec, ...] = (
    ObjectSpec(
        "red_cube",
        "red cube",
        (Part("box", (0.036, 0.036, 0.03), (0, 0, 0.03), RED),),
        grasp_height=0.03,
        grasp_yaws=_BOTH_SIDES,
    ),
    ObjectSpec(
        "blue_brick",
        "long blue brick",
        (Part("box", (0.043, 0.034, 0.028), (0, 0, 0.028), BLUE),),
        grasp_height=0.03,
        grasp_yaws=_ACROSS,
    ),
    ObjectSpec(
        "green_can",
        "tall green can",
        (Part("cylinder", (0.037, 0.038), (0, 0, 0.038), GREEN),),
        grasp_height=0.045,
        grasp_yaws=_ANY_YAW,
    ),
    ObjectSpec(
        "yellow_ball",
        "yellow ball on a dark base",
        (
            Part("sphere", (0.038,), (0, 0, 0.048), YELLOW),
            Part("cylinder", (0.030, 0.010), (0, 0, 0.010), DARK),
        ),
        grasp_height=0.048,
        grasp_yaws=_ANY_YAW,
    ),
    ObjectSpec(
        "purple_house",
        "purple house with a pink roof",
        (
            Part("box", (0.038, 0.036, 0.025), (0, 0, 0.025), PURPLE),
            Part("box", (0.024, 0.022, 0.012), (0, 0, 0.062), PINK),
        ),
        grasp_height=0.034,
        grasp_yaws=_BOTH_SIDES,
    ),
    ObjectSpec(
        "cyan_mug",
        "cyan mug with a handle",
        (
            Part("cylinder", (0.037, 0.033), (0, 0, 0.033), CYAN),
            Part("box", (0.009, 0.007, 0.018), (0.043, 0, 0.034), DARK),
        ),
        grasp_height=0.038,
        grasp_yaws=_ACROSS,
    ),
    ObjectSpec(
        "pink_puck",
        "flat pink puck",
        (Part("cylinder", (0.038, 0.022), (0, 0, 0.022), PINK),),
        grasp_height=0.026,
        grasp_yaws=_ANY_YAW,
    ),
    ObjectSpec(
        "brown_bottle",
        "brown bottle with a yellow neck",
        (
            Part("cylinder", (0.038, 0.028), (0, 0, 0.028), BROWN),
            Part("cylinder", (0.020, 0.012), (0, 0, 0.068), YELLOW),
        ),
        grasp_height=0.038,
        grasp_yaws=_ANY_YAW,
    ),
)
