"""Episodes whose actions are hand poses, seen by RoboTwin's head camera, and the camera itself."""

import dataclasses
from typing import Any

import numpy as np

from worldmodel.data.synthetic import synthetic_source
from worldmodel.models.actions.pose_maps import ARM_COLUMNS, ARMS
from worldmodel.types import CameraMatrices, Episode

NAMES = tuple(f"{arm}_{column}" for arm in ARMS for column in ARM_COLUMNS)
# As RoboTwin stores them for the head camera (D435, 320x240) of the aloha-agilex.
HEAD_INTRINSICS = np.array([[358.642, 0, 160], [0, 358.642, 120], [0, 0, 1]])
HEAD_EXTRINSICS = np.array([[1, 0, 0, 0.032], [0, -0.8, -0.6, 0.45], [0, 0.6, -0.8, 1.35]])
# Looks along the world's y axis from the origin: x to the right, z up.
AHEAD = np.array([[1.0, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0]])
PINHOLE = CameraMatrices(np.array([[100.0, 0, 50], [0, 100, 40], [0, 0, 1]]), AHEAD, (80, 100))
HEAD = CameraMatrices(HEAD_INTRINSICS, HEAD_EXTRINSICS, (240, 320))


def moving_poses(count: int, seed: int = 0) -> np.ndarray:
    """Both hands above the table, on smooth ways of their own."""
    rng = np.random.default_rng(seed)
    hands = []
    for _ in ARMS:
        place = np.array([0.0, -0.1, 0.9]) + rng.normal(0, 0.01, (count, 3)).cumsum(0)
        quaternion = np.array([0.7, 0, 0.7, 0]) + rng.normal(0, 0.02, (count, 4)).cumsum(0)
        quaternion /= np.linalg.norm(quaternion, axis=1, keepdims=True)
        hands.append(np.concatenate([place, quaternion, rng.random((count, 1))], 1))
    return np.concatenate(hands, 1).astype(np.float32)


class HandPoses:
    """Synthetic pictures with the poses of two hands beside them."""

    name = "hand_poses"

    def __init__(self, num_episodes: int = 12, camera: CameraMatrices | None = HEAD, **options: Any) -> None:
        self.source = synthetic_source(num_episodes, action_dim=16, **options)
        self.camera = camera

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Episode:
        episode = self.source[index]
        return dataclasses.replace(
            episode,
            robot_actions=moving_poses(len(episode.robot_actions), seed=index),
            action_names=NAMES,
            action_space="pose_commands",
            cameras={} if self.camera is None else {"head": self.camera},
        )
