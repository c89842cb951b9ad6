"""Small videos, and folders of them with annotations: one arm, two cameras, random motion."""

import json
from pathlib import Path

import av
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


def moving_frames(count: int, height: int = 48, width: int = 64) -> np.ndarray:
    """A gradient with a bright square that moves 2 pixels a frame: every frame differs from every other."""
    y, x = np.mgrid[0:height, 0:width]
    frames = np.stack([np.stack([x * 3, y * 4, np.full_like(x, 4 * t)], -1) for t in range(count)])
    for t in range(count):
        frames[t, 10:20, 2 * t % (width - 10) : 2 * t % (width - 10) + 10] = (240, 200, 30)
    return frames.astype(np.uint8)


def encode(path: Path, frames: np.ndarray, codec: str, pix_fmt: str, **options: str) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def decoded_in_order(path: Path) -> np.ndarray:
    """All frames by a loop as one writes it in an afternoon."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
