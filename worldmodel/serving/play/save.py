"""Saves a drive: an episode in LeRobot's or RoboTwin's format, and a video."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from robotwin_adapters.lerobot.write import write_lerobot
from robotwin_adapters.robotwin.write import (
    CameraRecord,
    RobotwinEpisode,
    write_robotwin_episode,
    write_robotwin_index,
)
from worldmodel.data.video import write_video
from worldmodel.files import new_folder
from worldmodel.serving.play.game import Game
from worldmodel.serving.play.ring_buffer import Moment
from worldmodel.types import CameraMatrices, Episode

FORMATS = ("mp4", "lerobot", "robotwin")
VIDEO_SCALE = 4  # pixels of the video per pixel of the picture
BESIDE = "simulator"  # camera name of the simulator's or recorded frames


@dataclass(frozen=True)
class StoredFrames:
    """Frames in memory, as a reader."""

    frames: UInt8[np.ndarray, "t H W 3"]

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return self.frames.shape[1], self.frames.shape[2]

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, indices: Sequence[int]) -> UInt8[np.ndarray, "n H W 3"]:
        """The frames at these positions."""
        return self.frames[list(indices)]


@dataclass(frozen=True)
class OneEpisode:
    """A dataset of one episode."""

    name: str
    episode: Episode

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Episode:
        if index not in (0, -1):
            raise IndexError(index)
        return self.episode


def save_game(game: Game, folder: Path, kind: str) -> Path:
    """Write the recording; returns the new file or folder."""
    moments = list(game.moments)
    if len(moments) < 2:
        raise ValueError("nothing was driven yet")
    place = _free_place(folder, kind)
    if kind == "mp4":
        write_video(place, _video_frames(moments), game.spec.fps)
    elif kind == "lerobot":
        write_lerobot(OneEpisode("play", game_episode(game, moments)), place)
    elif kind == "robotwin":
        _write_robotwin(game, moments, place)
    else:
        raise ValueError(f"format is one of {', '.join(FORMATS)}, got {kind!r}")
    return place


def game_episode(game: Game, moments: Sequence[Moment]) -> Episode:
    """An episode with generated frames under the model's camera, and true ones under another."""
    commands = np.stack([moment.command for moment in moments]).astype(np.float32)
    frames = {game.spec.camera: StoredFrames(np.stack([moment.dream for moment in moments]))}
    beside = [moment.beside for moment in moments if moment.beside is not None]
    if len(beside) == len(moments):
        frames[BESIDE] = StoredFrames(np.stack(beside))
    return Episode(
        uid="play/0",
        source="play",
        frames=frames,
        robot_actions=commands[1:],
        action_names=game.spec.action_names,
        fps=game.spec.fps,
        embodiment=game.spec.embodiment,
        task=game.start.task,
        robot_states=commands,
        state_names=game.spec.action_names,
        action_space=game.spec.action_space,
        cameras={} if game.start.camera is None else dict.fromkeys(frames, game.start.camera),
    )


def _write_robotwin(game: Game, moments: Sequence[Moment], place: Path) -> None:
    robot = [moment.robot for moment in moments if moment.robot is not None]
    if len(robot) < len(moments):
        raise ValueError("RoboTwin files hold joint angles: only drives beside the simulator have them")
    episode = game_episode(game, moments)
    cameras = {
        name: CameraRecord(reader.read(range(len(moments))), *_matrices(episode.cameras[name], len(moments)))
        for name, reader in episode.frames.items()
    }
    names = ("left_arm", "left_gripper", "right_arm", "right_gripper", "left_endpose", "right_endpose")
    commanded = ("left_commanded_endpose", "right_commanded_endpose")
    numbers = {name: np.array([getattr(frame, name) for frame in robot]) for name in (*names, *commanded)}
    entry = {"task": game.start.task, "embodiment": game.spec.embodiment, "fps": game.spec.fps}
    with new_folder(place) as building:
        write_robotwin_episode(building, 0, RobotwinEpisode(cameras=cameras, **numbers))
        write_robotwin_index(
            building, seeds=[0], scene_info=[entry], instructions=[{"seen": [], "unseen": []}]
        )


def _matrices(camera: CameraMatrices, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The matrices of a static camera, repeated for every frame."""
    return np.repeat(camera.intrinsics[None], count, 0), np.repeat(camera.extrinsics[None], count, 0)


def _video_frames(moments: Sequence[Moment]) -> Iterator[UInt8[np.ndarray, "H W 3"]]:
    for moment in moments:
        pictures = [moment.dream] if moment.beside is None else [moment.dream, moment.beside]
        wide = np.concatenate(pictures, axis=1)
        yield wide.repeat(VIDEO_SCALE, axis=0).repeat(VIDEO_SCALE, axis=1)


def _free_place(folder: Path, kind: str) -> Path:
    """The first unused name of drive-000.mp4, drive-001-lerobot, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(100_000):
        name = f"drive-{number:03d}" + (".mp4" if kind == "mp4" else f"-{kind}")
        if not (folder / name).exists():
            return folder / name
    raise ValueError(f"{folder} is full")
