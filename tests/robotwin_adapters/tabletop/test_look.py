import colorsys

import mujoco
import numpy as np
import pytest

from robotwin_adapters.tabletop.cameras import DESK
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.look import Look, geom_colors, random_look
from robotwin_adapters.tabletop.render import Renderer
from robotwin_adapters.tabletop.scene import Scene, build_scene
from robotwin_adapters.tabletop.tasks import sample_setup


@pytest.fixture(scope="module")
def scene() -> Scene:
    return build_scene(sample_setup("place_a2b_left", EMBODIMENTS["finch"], np.random.default_rng(2)))


def test_clean_colors_are_those_of_the_model(scene: Scene) -> None:
    np.testing.assert_allclose(
        geom_colors(scene.model, Look()), 255 * scene.model.geom_rgba[:, :3], rtol=1e-6
    )


def test_a_material_overrules_the_color_of_its_geom() -> None:
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><asset><material name="gold" rgba="1 0.8 0 1"/></asset>
        <worldbody><geom size="1" material="gold"/><geom size="1" rgba="0 0 1 1"/></worldbody></mujoco>"""
    )
    np.testing.assert_allclose(geom_colors(model, Look()), [[255, 204, 0], [0, 0, 255]], atol=0.1)


def test_random_looks_follow_the_seed(scene: Scene) -> None:
    one, same, other = (random_look(scene.model, np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert one == same
    assert one.light != other.light
    assert one.table != other.table
    assert one.sky != other.sky
    assert dict(one.colors) != dict(other.colors)


def test_random_looks_differ_in_every_way_over_seeds(scene: Scene) -> None:
    looks = [random_look(scene.model, np.random.default_rng(seed)) for seed in range(40)]
    plain = sum(look.table[0] == look.table[1] for look in looks)
    assert 8 <= plain <= 32  # plain and checkered tables both occur
    for name in ("wall", "floor"):
        assert len({look.colors[scene.model.geom(name).id] for look in looks}) == 40
    assert all(look.light[2] > 0 for look in looks)  # never from below


def test_robots_keep_their_hue_and_objects_do_not(scene: Scene) -> None:
    model = scene.model
    link = next(g for g in range(model.ngeom) if model.geom_bodyid[g] == model.body("left_link3").id)
    thing = next(g for g in range(model.ngeom) if model.geom_bodyid[g] == scene.body_a)
    turns = {link: [], thing: []}
    for seed in range(20):
        look = random_look(model, np.random.default_rng(seed))
        for geom, seen in turns.items():
            before, after = (
                colorsys.rgb_to_hsv(*rgb)[0] for rgb in (model.geom_rgba[geom, :3], look.colors[geom])
            )
            seen.append(abs((after - before + 0.5) % 1.0 - 0.5))
    assert max(turns[link]) < 0.05
    assert max(turns[thing]) > 0.25


def test_a_random_look_changes_the_picture_and_keeps_objects_visible(scene: Scene) -> None:
    clean = Renderer(scene.model, DESK, 64, 64).render(scene.data).astype(int)
    for seed in range(5):
        look = random_look(scene.model, np.random.default_rng(seed))
        picture = Renderer(scene.model, DESK, 64, 64, look=look).render(scene.data).astype(int)
        assert np.abs(picture - clean).mean() > 3
        assert picture.std() > 15
