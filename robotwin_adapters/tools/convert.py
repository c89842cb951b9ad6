"""Converts any dataset to RoboTwin 2.0 HDF5 (format A) or LeRobot v3.0."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from robotwin_adapters.labeled import LabeledDataset
from robotwin_adapters.lerobot.copy import copy_lerobot
from robotwin_adapters.lerobot.dataset import LerobotDataset
from robotwin_adapters.lerobot.write import write_lerobot
from robotwin_adapters.mapping import DataMapping
from robotwin_adapters.robotwin.write import (
    robotwin_episode_from,
    write_robotwin_episode,
    write_robotwin_index,
)
from worldmodel.data.decode_cache import Checkable
from worldmodel.files import new_folder
from worldmodel.types import Episode, EpisodeSource

TargetFormat = Literal["lerobot", "robotwin"]


@dataclass(frozen=True)
class ChosenEpisodes:
    """A subset of the episodes of another dataset."""

    inner: EpisodeSource
    positions: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.inner.name

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Episode:
        return self.inner[self.positions[index]]


def readable_episodes(source: EpisodeSource, positions: Sequence[int]) -> tuple[ChosenEpisodes, list[str]]:
    """The episodes that can be opened and decoded, and the errors of the others."""
    good, bad = [], []
    for position in positions:
        try:
            for reader in source[position].frames.values():
                if isinstance(reader, Checkable):
                    reader.check()
                else:
                    for start in range(0, len(reader), 64):
                        reader.read(range(start, min(start + 64, len(reader))))
            good.append(position)
        except (ValueError, OSError) as error:
            bad.append(str(error))
    if not good:
        raise ValueError(f"{source.name}: none of {len(bad)} episodes can be read; the first: {bad[0]}")
    return ChosenEpisodes(source, tuple(good)), bad


def convert_dataset(source: EpisodeSource, out: str | Path, to: TargetFormat) -> int:
    """Write all episodes as a new dataset at `out`, atomically; returns their number."""
    if to == "lerobot":
        found = _plain_lerobot(source)
        return write_lerobot(source, out) if found is None else copy_lerobot(*found, out)
    with new_folder(out) as building:
        _write_robotwin(source, building)
    return len(source)


def _plain_lerobot(source: EpisodeSource) -> tuple[LerobotDataset, tuple[int, ...]] | None:
    """The underlying LeRobot dataset and the episode indices; None if a mapping changes its episodes."""
    chosen = (
        source if isinstance(source, ChosenEpisodes) else ChosenEpisodes(source, tuple(range(len(source))))
    )
    labeled = chosen.inner
    if not isinstance(labeled, LabeledDataset) or labeled.mapping != DataMapping():
        return None
    return (labeled.inner, chosen.positions) if isinstance(labeled.inner, LerobotDataset) else None


def _write_robotwin(source: EpisodeSource, folder: Path) -> None:
    scenes, instructions = [], []
    for index in range(len(source)):
        episode = source[index]
        write_robotwin_episode(folder, index, robotwin_episode_from(episode))
        # The HDF5 file cannot store these; our reader finds them here.
        scenes.append({"embodiment": episode.embodiment, "task": episode.task, "fps": episode.fps})
        instructions.append({"seen": list(episode.instructions), "unseen": []})
    seeds = range(len(source))  # placeholders for the unknown original seeds
    write_robotwin_index(folder, seeds=seeds, scene_info=scenes, instructions=instructions)
