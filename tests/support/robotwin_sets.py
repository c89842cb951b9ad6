"""Small datasets of the RoboTwin layout, of random pictures and joints."""

from pathlib import Path

import numpy as np

from robotwin_adapters.robotwin.write import CameraRecord, RobotwinEpisode, write_robotwin_episode


def write_robotwin_set(folder: Path, joints: int, episodes: int = 2, frames: int = 3) -> None:
    rng = np.random.default_rng(0)
    for number in range(episodes):
        arms = rng.uniform(-1, 1, (2, frames, joints))
        grippers = np.ones(frames)
        rgb = rng.integers(0, 256, (frames, 24, 32, 3), dtype=np.uint8)
        episode = RobotwinEpisode(arms[0], grippers, arms[1], grippers, {"head_camera": CameraRecord(rgb)})
        write_robotwin_episode(folder, number, episode)
