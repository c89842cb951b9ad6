"""Simulates one episode from a seed: builds the scene, runs the task's motion, reports every frame."""

from dataclasses import dataclass

import mujoco
import numpy as np
from jaxtyping import Float

from robotwin_adapters.tabletop.arms import SIDES
from robotwin_adapters.tabletop.babble import babble
from robotwin_adapters.tabletop.control import ArmController, Frame, OnFrame
from robotwin_adapters.tabletop.embodiments import Embodiment
from robotwin_adapters.tabletop.expert import carry_a, place_a_beside_b
from robotwin_adapters.tabletop.scene import Scene, SceneSpec, build_scene
from robotwin_adapters.tabletop.tasks import TASKS, arm_side, check_task, is_success, sample_setup

__all__ = ["EpisodeOutcome", "Frame", "OnFrame", "run_episode"]


@dataclass(frozen=True)
class EpisodeOutcome:
    """The outcome of an episode, and its metadata."""

    success: bool
    num_frames: int
    arm: str  # arm that moves: "left", "right", or "both" for babble with no arm held
    setup: SceneSpec
    start_poses: Float[np.ndarray, "2 7"]  # A and B: position (m), quaternion w x y z
    end_poses: Float[np.ndarray, "2 7"]
    info: dict[str, object]  # its entry of scene_info.json, without the renderer's textures


def run_episode(
    task: str, embodiment: Embodiment, seed: int, on_frame: OnFrame, *, clutter: int = 0, hold: str = ""
) -> EpisodeOutcome:
    """Simulate an episode that the seed fully determines, calling `on_frame` for each recorded frame.

    One seed sets the same table for every embodiment; `on_frame` may read the scene but must not change it.
    `hold` names an arm that does not move (babble).
    """
    check_task(task)
    rng = np.random.default_rng([seed, TASKS.index(task)])
    setup = sample_setup(task, embodiment, rng, clutter)
    scene = build_scene(setup)
    controller = ArmController(scene, on_frame)
    controller.settle()
    start_poses = _object_poses(scene)
    if task == "babble":
        finished = babble(scene, controller, rng, hold)
    elif task == "carry":
        finished = carry_a(scene, controller, rng)
    else:
        finished = place_a_beside_b(task, scene, controller)
    mujoco.mj_kinematics(scene.model, scene.data)
    return EpisodeOutcome(
        success=finished and is_success(task, scene, controller.gripper_targets),
        num_frames=controller.num_frames,
        arm=_moving_arm(hold) if task == "babble" else arm_side(setup),
        setup=setup,
        start_poses=start_poses,
        end_poses=_object_poses(scene),
        info=_scene_info(task, setup),
    )


def _moving_arm(hold: str) -> str:
    return next(side for side in SIDES if side != hold) if hold else "both"


def _object_poses(scene: Scene) -> Float[np.ndarray, "2 7"]:
    return np.stack([scene.pose(scene.body_a), scene.pose(scene.body_b)])


def _scene_info(task: str, setup: SceneSpec) -> dict[str, object]:
    """Metadata in RoboTwin's format; "base0" because every object has one variant."""
    info = {"{A}": f"{setup.object_a.name}/base0", "{B}": f"{setup.object_b.name}/base0"}
    if task != "babble":
        info["{a}"] = arm_side(setup)
    return {
        "cluttered_table_info": [
            {"object_type": thing.name, "object_index": 0} for thing, _ in setup.clutter
        ],
        "info": info,
    }
