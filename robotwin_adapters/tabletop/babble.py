"""Smooth random motion of both arms, so that actions and outcomes are not locked to a task."""

import numpy as np

from robotwin_adapters.tabletop.control import Controller
from robotwin_adapters.tabletop.scene import SIDES, Scene


def babble(scene: Scene, controller: Controller, rng: np.random.Generator) -> bool:
    """Swing both arms about their home pose."""
    home = np.array(scene.spec.embodiment.home)
    swing = {side: rng.uniform(-0.3, 0.3, home.size) for side in SIDES}
    steps = int(rng.integers(900, 1500))

    def command(step: int) -> None:
        for side in SIDES:
            controller.arm_targets[side] = home + swing[side] * (1 - np.cos(2 * np.pi * step / steps)) / 2

    controller.primitive(steps, command)
    return True
