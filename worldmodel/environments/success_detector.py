"""A success detector of the a2b tasks from pictures: the locator finds A, the task's rule decides.

The rule is the simulator's (A on the right side of B, 0.08 to 0.20 m away and in line with it, both grippers
commanded open). A is found by the locator in the last frame and projected onto the table by the camera's
matrices. B is assumed not to move, because the locator only tracks A. `judge_error` measures how often the
detector and the simulator disagree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float

from worldmodel.environments.initial_states import Start
from worldmodel.environments.spaces import WorldSpec
from worldmodel.environments.world import Block, Verdict
from worldmodel.locator.model import Locator
from worldmodel.locator.truth import POINTS
from worldmodel.types import CameraMatrices, to_unit_range

A = POINTS.index("object")
TABLE_TOP = 0.74  # m
SIDES = {"place_a2b_left": -1.0, "place_a2b_right": 1.0}  # sign of x from B to A
NEAR, FAR, IN_LINE = 0.08, 0.20, 0.05  # m
OPEN = 0.8  # command of an open gripper
MIN_CONFIDENCE = 0.5  # confidence of the locator below which A counts as not found


@dataclass(frozen=True)
class PlacementJudge:
    """Reward 1 and the end of the episode once A is next to B; 0 without camera matrices or positions."""

    locator: Locator
    gripper_columns: tuple[int, ...]

    @classmethod
    def shipped(cls, spec: WorldSpec) -> "PlacementJudge":
        """Success detector with the shipped object locator; `spec` names the gripper actions."""
        columns = tuple(i for i, name in enumerate(spec.action_names) if name.endswith("gripper"))
        return cls(_shipped_locator(), columns)

    def __call__(self, starts: Sequence[Start], block: Block, actions: Float[np.ndarray, "b n a"]) -> Verdict:
        count = len(starts)
        places, is_seen = np.zeros((count, 2)), np.zeros(count, bool)
        # The grippers are only commanded open at the end of the task: before that, no detection is needed.
        rows = [row for row in range(count) if self._can_judge(starts[row], actions[row, -1])]
        if rows:
            places[rows], is_seen[rows] = self._places(starts, block, rows)
        success = is_seen & [_is_placed(start, place) for start, place in zip(starts, places, strict=True)]
        return Verdict(success.astype(np.float64), success, {"object_place": places, "is_seen": is_seen})

    def _can_judge(self, start: Start, command: np.ndarray) -> bool:
        is_released = all(command[column] > OPEN for column in self.gripper_columns)
        is_known = start.camera is not None and start.objects is not None and start.task in SIDES
        return bool(is_known and is_released)

    def _places(
        self, starts: Sequence[Start], block: Block, rows: list[int]
    ) -> tuple[Float[np.ndarray, "n 2"], Bool[np.ndarray, " n"]]:
        frames = to_unit_range(torch.from_numpy(block.frames[rows, -1]).permute(0, 3, 1, 2))
        found = self.locator.locate(frames)
        places = [
            on_table(point, camera, (frames.shape[-2], frames.shape[-1]))
            for point, camera in zip(found.points[:, A].numpy(), _cameras(starts, rows), strict=True)
        ]
        return np.array(places), found.confidence[:, A].numpy() > MIN_CONFIDENCE


def on_table(
    pixel: Float[np.ndarray, " 2"], camera: CameraMatrices, size: tuple[int, int], height: float = TABLE_TOP
) -> Float[np.ndarray, " 2"]:
    """World x, y (m) of a pixel at this height; `size` is that of the pixel's picture."""
    scale = np.array([camera.size[1] / size[1], camera.size[0] / size[0]])
    intrinsics, extrinsics = (np.asarray(m, np.float64) for m in (camera.intrinsics, camera.extrinsics))
    intrinsics, extrinsics = intrinsics.reshape(-1, 3, 3)[-1], extrinsics.reshape(-1, 3, 4)[-1]
    rotation, shift = extrinsics[:, :3], extrinsics[:, 3]
    ray = rotation.T @ np.linalg.solve(intrinsics, np.append(pixel * scale, 1.0))
    origin = -rotation.T @ shift
    return (origin + ray * (height - origin[2]) / ray[2])[:2]


def judge_error(judged: Bool[np.ndarray, " n"], truth: Bool[np.ndarray, " n"]) -> dict[str, float]:
    """Error rates of a success detector: for real successes, and for real failures."""
    return {
        "missed successes": float(1 - judged[truth].mean()) if truth.any() else float("nan"),
        "invented successes": float(judged[~truth].mean()) if (~truth).any() else float("nan"),
        "episodes": float(len(truth)),
    }


def _is_placed(start: Start, place: Float[np.ndarray, " 2"]) -> bool:
    if start.objects is None or start.task not in SIDES:
        return False
    dx, dy = place - start.objects[1, :2]
    is_on_side = dx * SIDES[start.task] > 0
    return bool(is_on_side and NEAR < np.hypot(dx, dy) < FAR and abs(dy) < IN_LINE)


def _cameras(starts: Sequence[Start], rows: list[int]) -> list[CameraMatrices]:
    cameras = [starts[row].camera for row in rows]
    return [camera for camera in cameras if camera is not None]


@cache
def _shipped_locator() -> Locator:
    return Locator.from_pretrained("locator")
