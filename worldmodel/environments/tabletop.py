"""The embedded simulator as an environment: the ground truth for a world model, with the same spaces."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from worldmodel.checkpoint.folder import locate, read_description
from worldmodel.environments.initial_states import Start
from worldmodel.environments.single import WorldEnv
from worldmodel.environments.spaces import WorldSpec
from worldmodel.environments.vector import WorldVectorEnv
from worldmodel.environments.world import Block, Judge, Verdict
from worldmodel.types import FRAMES_PER_LATENT, CameraMatrices

if TYPE_CHECKING:
    from robotwin_adapters.tabletop.drive import DrivenTabletop

TASK = "place_a2b_left"


def require_simulator() -> None:
    """Raise ValueError with installation instructions if the simulator is missing."""
    if importlib.util.find_spec("mujoco") is None:
        raise ValueError('the tabletop needs MuJoCo: pip install -e ".[sim]"')


@dataclass(frozen=True)
class TabletopScenes:
    """Seeded scenes of one task and robot, with the picture format of a checkpoint."""

    spec: WorldSpec
    task: str = TASK
    num_frames: int = 1  # frames of an initial state: the scene is static, so they are all equal

    def build(self, seed: int) -> "DrivenTabletop":
        """Build the simulator for a seed."""
        require_simulator()
        from robotwin_adapters.tabletop.cameras import CAMERAS
        from robotwin_adapters.tabletop.drive import ACTION_RATE, DrivenTabletop
        from robotwin_adapters.tabletop.record import RecordingConfig

        named = [key for key, camera in CAMERAS.items() if camera.name == self.spec.camera]
        if not named or abs(self.spec.fps - ACTION_RATE) > 0.01 * ACTION_RATE:
            known = ", ".join(camera.name for camera in CAMERAS.values())
            raise ValueError(
                f"the tabletop shows {known} at {ACTION_RATE:.2f} frames per second; the checkpoint expects "
                f"{self.spec.camera} at {self.spec.fps:.2f}"
            )
        config = RecordingConfig(
            self.task,
            self.spec.embodiment,
            cameras=(named[0],),
            width=self.spec.width,
            height=self.spec.height,
        )
        scene = DrivenTabletop(config, seed, action_space=self.spec.action_space or "pose_commands")
        if scene.action_names != self.spec.action_names:
            raise ValueError(
                f"expected actions {list(scene.action_names)}, got {list(self.spec.action_names)}"
            )
        return scene

    def expert(self, seed: int) -> Float[np.ndarray, "t a"]:
        """The scripted expert's commands in the scene of this seed."""
        from robotwin_adapters.tabletop.drive import expert_commands

        return expert_commands(
            self.task, self.spec.embodiment, seed, self.spec.action_space or "pose_commands"
        )

    def __call__(self, seed: int) -> Start:
        return self.start_of(self.build(seed))

    def start_of(self, scene: "DrivenTabletop") -> Start:
        """The initial state of a scene."""
        picture = scene.pictures()[self.spec.camera]
        intrinsics, extrinsics = scene.camera_matrices(self.spec.camera)
        return Start(
            np.repeat(picture[None], self.num_frames, axis=0),
            scene.command,
            self.spec.embodiment,
            camera=CameraMatrices(intrinsics, extrinsics, (self.spec.height, self.spec.width)),
            measured=scene.command,  # as recordings of this simulator have it
            task=self.task,
            objects=scene.object_places,
            source=f"tabletop {self.task} seed {scene.seed}",
            facts={"seed": scene.seed},
        )


class SimulatedWorld:
    """A simulator per row."""

    def __init__(self, scenes: TabletopScenes) -> None:
        self.scenes, self.spec, self.num_frames = scenes, scenes.spec, scenes.num_frames
        self.rows: dict[int, DrivenTabletop] = {}

    def start(self, seeds: Mapping[int, int], starts: Sequence[Start] | None) -> dict[int, Start]:
        if starts is not None:
            raise ValueError("a simulated scene starts from a seed, not from given frames or episodes")
        for row, seed in seeds.items():
            self.rows[row] = self.scenes.build(seed)
        return {row: self.scenes.start_of(self.rows[row]) for row in seeds}

    def step(self, actions: Float[np.ndarray, "b n a"]) -> Block:
        shape = (*actions.shape[:2], self.spec.height, self.spec.width, 3)
        frames = np.empty(shape, np.uint8)
        reached = np.ones(len(actions), bool)
        for row, commands in enumerate(actions):
            for number, command in enumerate(commands):
                reached[row] &= self.rows[row].step(command)
                frames[row, number] = self.rows[row].pictures()[self.spec.camera]
        objects = np.stack([self.rows[row].object_places for row in range(len(actions))])
        return Block(frames, {"is_reached": reached, "objects": objects})

    def truth(self, starts: Sequence[Start], block: Block, actions: Float[np.ndarray, "b n a"]) -> Verdict:
        """A detector that uses the simulator's state: 1 once the task is done."""
        done = np.array([self.rows[row].is_success for row in range(len(starts))])
        done &= np.array([start.task != "babble" for start in starts])
        return Verdict(done.astype(np.float64), done)

    def close(self) -> None:
        self.rows.clear()


class TabletopVectorEnv(WorldVectorEnv):
    """Simulated scenes with the spaces of a checkpoint.

    Examples:
        >>> from worldmodel.environments import TabletopVectorEnv
        >>> env = TabletopVectorEnv(2)
        >>> observation, info = env.reset(seed=0)
        >>> observation["image_desk_camera"].shape, env.action_space.shape
        ((2, 64, 64, 3), (2, 4, 16))
        >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        >>> info["frames"].shape  # one picture per action
        (2, 4, 64, 64, 3)
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        like: str = "desk",
        embodiment: str | None = None,
        task: str = TASK,
        judge: Judge | None = None,
        max_episode_steps: int = 24,
        action_block: int = FRAMES_PER_LATENT,
        autoreset: bool = True,
        timings: bool = False,
    ) -> None:
        """Create the rows; nothing is simulated before the first reset.

        Args:
            num_envs: rows.
            like: the checkpoint whose spaces are used: folder, hub id or shipped name.
            embodiment: one of the checkpoint's robots; none: its first.
            task: place_a2b_left, place_a2b_right or babble.
            judge: computes rewards; none: the simulator's own success condition.
            max_episode_steps: blocks after which an episode is truncated.
            action_block: actions in one step.
            autoreset: start a new episode in the step in which one ends.
            timings: add `seconds` per row to `info`, which then differs from run to run.
        """
        require_simulator()
        known = read_description(locate(like))
        spec = WorldSpec.of(known.contract, known.normalizer, embodiment)
        world = SimulatedWorld(TabletopScenes(spec, task, known.config.num_given))
        super().__init__(
            world,
            known.contract,
            num_envs,
            judge=judge or world.truth,
            max_episode_steps=max_episode_steps,
            action_block=action_block,
            autoreset=autoreset,
            timings=timings,
        )


class TabletopEnv(WorldEnv):
    """One simulated scene; the same arguments as the vector environment."""

    def __init__(self, *, render_mode: str = "rgb_array", **settings: Any) -> None:
        super().__init__(TabletopVectorEnv(1, autoreset=False, **settings))
