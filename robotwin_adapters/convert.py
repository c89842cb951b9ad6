"""Any dataset -> RoboTwin 2.0 HDF5 (format A) or LeRobot v3.0."""

from pathlib import Path
from typing import Literal

from robotwin_adapters.lerobot.write import write_lerobot
from robotwin_adapters.robotwin.write import (
    robotwin_episode_from,
    write_robotwin_episode,
    write_robotwin_index,
)
from worldmodel.files import new_folder
from worldmodel.types import EpisodeSource

TargetFormat = Literal["lerobot", "robotwin"]


def convert_dataset(source: EpisodeSource, out: str | Path, to: TargetFormat) -> int:
    """Write all episodes as a new dataset at `out`, which appears when complete; returns their number."""
    if to == "lerobot":
        return write_lerobot(source, out)
    with new_folder(out) as building:
        _write_robotwin(source, building)
    return len(source)


def _write_robotwin(source: EpisodeSource, folder: Path) -> None:
    scenes, instructions = [], []
    for index in range(len(source)):
        episode = source[index]
        write_robotwin_episode(folder, index, robotwin_episode_from(episode))
        # The HDF5 file has no place for these; our reader finds them here.
        scenes.append({"embodiment": episode.embodiment, "task": episode.task, "fps": episode.fps})
        instructions.append({"seen": list(episode.instructions), "unseen": []})
    seeds = range(len(source))  # the true ones are unknown; the file must have one per episode
    write_robotwin_index(folder, seeds=seeds, scene_info=scenes, instructions=instructions)
