"""Small folders of videos with annotations: one arm, two cameras, random motion."""

import json
from pathlib import Path

import numpy as np

from worldmodel.data.video import write_video

POSE = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")


def write_video_set(
    folder: Path,
    names: tuple[str, ...] = POSE,
    *,
    dim: int = 7,
    cameras: tuple[str, ...] = ("side", "wrist"),
    episodes: int = 2,
    frames: int = 14,
) -> Path:
    """The folder's videos and annotations, and beside it the mapping that reads them; gives the mapping."""
    rng = np.random.default_rng(0)
    for number in range(episodes):
        states = rng.normal(0, 0.1, (frames, dim)).cumsum(0)
        annotation = folder / "numbers" / f"{number}.json"
        annotation.parent.mkdir(parents=True, exist_ok=True)
        annotation.write_text(json.dumps({"pose": states.tolist()}))
        for camera in cameras:
            pictures = rng.integers(0, 256, (frames, 32, 32, 3), dtype=np.uint8)
            write_video(folder / "films" / str(number) / f"{camera}.mp4", iter(pictures), 50 / 3)
    mapping = folder.with_suffix(".yaml")
    lines = ['annotation: "numbers/{id}.json"', 'video: "films/{id}/{camera}.mp4"', "state_keys: [pose]"]
    mapping.write_text("\n".join([*lines, f"state_names: {json.dumps(names)}", "embodiment: one_arm"]) + "\n")
    return mapping
