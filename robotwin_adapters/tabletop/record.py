"""Simulates and then renders one episode from a seed; this part of collecting runs in worker processes.

Imports no torch, so that a worker starts in a fraction of a second.
"""

from dataclasses import dataclass, field

import mujoco
import numpy as np
from jaxtyping import Float, Float32, UInt8

from robotwin_adapters.tabletop.arms import SIDES
from robotwin_adapters.tabletop.cameras import (
    CAMERAS,
    Camera,
    cam2world_gl,
    camera_pose,
    extrinsic_cv,
    intrinsic_cv,
    jittered,
)
from robotwin_adapters.tabletop.embodiments import EMBODIMENTS
from robotwin_adapters.tabletop.instructions import instructions_for
from robotwin_adapters.tabletop.look import MAX_CLUTTER, Look, random_look
from robotwin_adapters.tabletop.render import MAX_SIZE, MIN_SIZE, Renderer
from robotwin_adapters.tabletop.render_gl import GlRenderer
from robotwin_adapters.tabletop.scene import Scene
from robotwin_adapters.tabletop.simulate import EpisodeOutcome, Frame, run_episode
from robotwin_adapters.tabletop.tasks import TASKS, check_task

LOOK_STREAM = 1_000_003  # separates the appearance's random stream from the scene's, which has the same seed


@dataclass(frozen=True)
class RecordingConfig:
    """Everything that determines an episode except its seed."""

    task: str
    embodiment: str
    cameras: tuple[str, ...] = ("desk",)  # names in CAMERAS
    width: int = 64  # pixels
    height: int = 64  # pixels
    supersample: bool = True  # 2x2 rays per pixel
    renderer: str = "ray"  # "ray", or "gl" where there is OpenGL
    randomize: bool = False  # colors, light, table texture, camera jitter and clutter drawn from the seed
    keep_failures: bool = False  # also record episodes in which the expert failed
    hold: str = ""  # babble: the arm that does not move, "left" or "right"

    def __post_init__(self) -> None:
        check_task(self.task)
        if self.embodiment not in EMBODIMENTS:
            raise ValueError(f"embodiment is one of {', '.join(EMBODIMENTS)}; got {self.embodiment!r}")
        for camera in self.cameras:
            if camera not in CAMERAS:
                raise ValueError(f"camera is one of {', '.join(CAMERAS)}; got {camera!r}")
        if not self.cameras or len(set(self.cameras)) < len(self.cameras):
            raise ValueError(
                f"expected one or more different cameras, got {', '.join(self.cameras) or 'none'}"
            )
        if self.hold and (self.task != "babble" or self.hold not in SIDES):
            raise ValueError(
                f"hold is left or right, and holds an arm of task babble; got {self.hold!r} for {self.task}"
            )
        if self.renderer not in ("ray", "gl"):
            raise ValueError(f"renderer is ray or gl; got {self.renderer!r}")
        if min(self.width, self.height) < MIN_SIZE or max(self.width, self.height) > MAX_SIZE:
            limit = "at least {0}x{0}" if min(self.width, self.height) < MIN_SIZE else "at most {1}x{1}"
            limit = limit.format(MIN_SIZE, MAX_SIZE)
            raise ValueError(f"pictures are {limit} pixels, got {self.width}x{self.height}")


@dataclass(frozen=True)
class CameraFrames:
    """The pictures of one camera, and its pose at each frame."""

    rgb: UInt8[np.ndarray, "t H W 3"]
    intrinsic_cv: Float32[np.ndarray, "t 3 3"]
    extrinsic_cv: Float32[np.ndarray, "t 3 4"]
    cam2world_gl: Float32[np.ndarray, "t 4 4"]


@dataclass(frozen=True)
class SimulatedEpisode:
    """One episode ready to be written; the fields have the meaning of those in Frame."""

    left_arm: Float[np.ndarray, "t n"]
    left_gripper: Float[np.ndarray, " t"]
    right_arm: Float[np.ndarray, "t n"]
    right_gripper: Float[np.ndarray, " t"]
    left_endpose: Float[np.ndarray, "t 7"]
    right_endpose: Float[np.ndarray, "t 7"]
    left_commanded_endpose: Float[np.ndarray, "t 7"]
    right_commanded_endpose: Float[np.ndarray, "t 7"]
    cameras: dict[str, CameraFrames]
    scene_info: dict[str, object]  # this episode's entry of scene_info.json
    instructions: dict[str, list[str]]


@dataclass
class _Tape:
    """Commands and joint positions of an episode: all that is needed to render it later."""

    frames: list[Frame] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    scene: Scene | None = None

    def __call__(self, scene: Scene, frame: Frame) -> None:
        self.scene = scene
        self.frames.append(frame)
        self.positions.append(scene.data.qpos.copy())


def record_episode(config: RecordingConfig, seed: int) -> SimulatedEpisode | None:
    """The episode of this seed, or None if the expert failed and failures are not kept."""
    rng = np.random.default_rng([seed, LOOK_STREAM, TASKS.index(config.task), *config.embodiment.encode()])
    clutter = int(rng.integers(MAX_CLUTTER + 1)) if config.randomize else 0
    tape = _Tape()
    outcome = run_episode(
        config.task, EMBODIMENTS[config.embodiment], seed, tape, clutter=clutter, hold=config.hold
    )
    if tape.scene is None or not (outcome.success or config.keep_failures):
        return None
    look = random_look(tape.scene.model, rng) if config.randomize else Look()
    cameras = [jittered(CAMERAS[name], rng) if config.randomize else CAMERAS[name] for name in config.cameras]
    return SimulatedEpisode(
        **{
            name: np.array([getattr(frame, name) for frame in tape.frames], np.float64)
            for name in (
                "left_arm",
                "left_gripper",
                "right_arm",
                "right_gripper",
                "left_endpose",
                "right_endpose",
                "left_commanded_endpose",
                "right_commanded_endpose",
            )
        },
        cameras={camera.name: _draw(tape, tape.scene, camera, look, config) for camera in cameras},
        scene_info=_scene_info(config, seed, outcome),
        instructions=instructions_for(config.task, outcome.setup, outcome.arm),
    )


def _draw(tape: _Tape, scene: Scene, camera: Camera, look: Look, config: RecordingConfig) -> CameraFrames:
    """Restore each recorded position and render it."""
    size = config.width, config.height
    renderer = (
        GlRenderer(scene.model, camera, *size, look=look)
        if config.renderer == "gl"
        else Renderer(scene.model, camera, *size, look=look, supersample=config.supersample)
    )
    count = len(tape.positions)
    pictures = np.empty((count, config.height, config.width, 3), np.uint8)
    poses = []
    for index, positions in enumerate(tape.positions):
        scene.data.qpos[:] = positions
        mujoco.mj_kinematics(scene.model, scene.data)
        poses.append(camera_pose(camera, scene.model, scene.data))
        # Between two primitives RoboTwin records the same instant twice.
        if index and np.array_equal(positions, tape.positions[index - 1]):
            pictures[index] = pictures[index - 1]
        else:
            pictures[index] = renderer.render(scene.data)
    if isinstance(renderer, GlRenderer):
        renderer.close()
    return CameraFrames(
        pictures,
        np.repeat(intrinsic_cv(camera.fovy, config.width, config.height)[None], count, axis=0),
        np.array([extrinsic_cv(pose) for pose in poses]),
        np.array([cam2world_gl(pose) for pose in poses]),
    )


def _scene_info(config: RecordingConfig, seed: int, outcome: EpisodeOutcome) -> dict[str, object]:
    texture = "random" if config.randomize else None
    return {
        **outcome.info,
        "texture_info": {"wall_texture": texture, "table_texture": texture},
        "task": config.task,
        "embodiment": config.embodiment,
        "seed": seed,
        "success": outcome.success,
        **({"hold": config.hold} if config.hold else {}),
    }
