"""Renders the brightness maps of the Rooms dataset into one file.

A room with a floor and three walls, an object in its middle, and a camera that moves around it: 8 sizes, 4
shapes and 15 viewpoints, rendered with the tabletop's ray caster. Floor, walls and object are red, green and
blue, so the channels of one image are the brightness maps of the three surfaces.
"""

from pathlib import Path

import mujoco
import numpy as np
from jaxtyping import UInt16
from safetensors.numpy import save_file
from tqdm import tqdm

from robotwin_adapters.tabletop.cameras import Camera
from robotwin_adapters.tabletop.look import FLOOR, WALL, Color, Look
from robotwin_adapters.tabletop.render import Renderer
from worldmodel.files import atomic_file
from worldmodel.mddiff.data.rooms import FACTOR_SIZES, SHAPES, SURFACES

SIZE = 64  # pixels per side
FINER = 2  # images are rendered at this multiple of the size, with 2 x 2 samples per rendered pixel
SCALES = np.linspace(0.75, 1.25, FACTOR_SIZES[3])
ANGLES = np.radians(np.linspace(-30, 30, FACTOR_SIZES[5]))
DISTANCE, HEIGHT, AIM = 4.6, 2.6, 0.55  # m: camera from the axis of the room, its height, height it points at
LIGHT = (0.5, -0.7, 1.0)
GEOMS = {  # per shape, at scale 1: type, half sizes (m) and height of the center (m)
    "cube": ("box", (0.62, 0.62, 0.62), 0.62),
    "cylinder": ("cylinder", (0.62, 0.72), 0.72),
    "sphere": ("sphere", (0.78,), 0.78),
    "capsule": ("capsule", (0.46, 0.5), 0.96),
}
ROOM = f"""
<geom name="{FLOOR}" type="box" size="3.2 8 0.1" pos="0 0 -0.1"/>
<geom name="{WALL}" type="box" size="3.2 0.1 5" pos="0 3.3 5"/>
<geom name="{WALL}_left" type="box" size="0.1 8 5" pos="-3.3 0 5"/>
<geom name="{WALL}_right" type="box" size="0.1 8 5" pos="3.3 0 5"/>"""


def build_room(shape: str, scale: float) -> mujoco.MjModel:
    """The room with one object; the object has a free joint because only movable bodies cast shadows."""
    kind, half_sizes, height = GEOMS[shape]
    size = " ".join(f"{scale * half:.6f}" for half in half_sizes)
    thing = f'<freejoint/><geom name="object" type="{kind}" size="{size}"/>'
    body = f'<body pos="0 0 {scale * height:.6f}">{thing}</body>'
    return mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{ROOM}{body}</worldbody></mujoco>")


def view(angle: float) -> Camera:
    """A camera aimed at the object, `angle` radians off the middle."""
    x, y = DISTANCE * np.sin(angle), -DISTANCE * np.cos(angle)
    left = (-float(np.cos(angle)), -float(np.sin(angle)), 0.0)
    return Camera("room", (float(x), float(y), HEIGHT), (-float(x), -float(y), AIM - HEIGHT), left, fovy=42.0)


def colored(model: mujoco.MjModel, floor: Color, wall: Color, thing: Color) -> Look:
    """The room in three colors."""
    names = {geom: model.geom(geom).name for geom in range(model.ngeom)}
    colors = {
        geom: floor if name == FLOOR else wall if name.startswith(WALL) else thing
        for geom, name in names.items()
    }
    return Look(light=LIGHT, ambient=0.55, diffuse=0.45, shadow=0.4, colors=colors)


def brightness(scale: float, shape: str, angle: float) -> UInt16[np.ndarray, "surface H W"]:
    """Brightness of each surface in each pixel, summed over the supersampled pixels."""
    model = build_room(shape, scale)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    look = colored(model, (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    picture = Renderer(model, view(angle), FINER * SIZE, FINER * SIZE, look=look).render(data)
    cells = picture.astype(np.uint16).reshape(SIZE, FINER, SIZE, FINER, len(SURFACES))
    return np.ascontiguousarray(cells.sum((1, 3), dtype=np.uint16).transpose(2, 0, 1))


def render_rooms(path: Path, *, quiet: bool = False) -> None:
    """Render every geometry and write the result atomically."""
    jobs = [(scale, shape, angle) for scale in SCALES for shape in SHAPES for angle in ANGLES]
    maps = np.stack([brightness(*job) for job in tqdm(jobs, "rooms", disable=quiet)])
    with atomic_file(path) as temporary:
        save_file({"maps": maps}, temporary)
