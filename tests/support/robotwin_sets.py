"""Small datasets of the RoboTwin layout, of random pictures and joints."""

from pathlib import Path

import numpy as np

from robotwin_adapters.robotwin.write import CameraRecord, RobotwinEpisode, write_robotwin_episode


def write_robotwin_set(
    folder: Path, joints: int, episodes: int = 2, frames: int = 3, poses: bool = False
) -> None:
    """With poses, the camera looks down on resting hands from 1 m."""
    rng, still = np.random.default_rng(0), np.ones((frames, 1))
    hands = (still * [-0.1, 0, 0, 1, 0, 0, 0], still * [0.1, 0, 0, 1, 0, 0, 0]) if poses else (None, None)
    down = np.array([[1.0, 0, 0, 0], [0, -1, 0, 0], [0, 0, -1, 1]])
    matrices = (np.array([[20.0, 0, 16], [0, 20, 12], [0, 0, 1]]), down) if poses else (None, None)
    seen = [None if matrix is None else still[:, :, None] * matrix for matrix in matrices]
    for number in range(episodes):
        arms = rng.uniform(-1, 1, (2, frames, joints))
        grippers = np.ones(frames)
        rgb = rng.integers(0, 256, (frames, 24, 32, 3), dtype=np.uint8)
        camera = {"head_camera": CameraRecord(rgb, *seen)}
        episode = RobotwinEpisode(arms[0], grippers, arms[1], grippers, camera, *hands)
        write_robotwin_episode(folder, number, episode)
