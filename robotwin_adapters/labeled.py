"""Applies a mapping to any dataset, detects delta actions and checks the clock."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from robotwin_adapters.mapping import DataMapping, chosen_deltas, relabeled
from robotwin_adapters.resample import resampled
from robotwin_adapters.storage import tree_stamp
from worldmodel.data.action_deltas import EXAMINED_EPISODES, describe_deltas, find_deltas
from worldmodel.types import Episode, EpisodeSource, evenly_spread

EVEN = 0.02  # of a frame; steps between timestamps that differ by less count as even


@dataclass(frozen=True)
class LabeledDataset:
    """Relabels a reader's episodes; delta actions are detected once per set of columns."""

    inner: EpisodeSource
    mapping: DataMapping = field(default_factory=DataMapping)
    place: str = ""  # path of the files; empty: unknown
    settings: str = ""  # reader settings as text, part of the stamp
    _deltas: dict[tuple[str, ...], tuple[tuple[str, ...], str]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Of the dataset."""
        return self.inner.name

    @property
    def format(self) -> str:
        """The file format in words."""
        return getattr(self.inner, "format", type(self.inner).__name__.removesuffix("Dataset"))

    @property
    def stamp(self) -> str:
        """A digest that changes when the files or the reader settings change; empty if unknown."""
        if not self.place:
            return ""
        read_as = (
            f"{tree_stamp(Path(self.place))} {Path(self.place).resolve()} {self.settings} {self.mapping}"
        )
        return hashlib.sha256(read_as.encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Episode:
        episode = self._with_deltas(relabeled(self.inner[index], self.mapping))
        if episode.frame_times is None:
            return episode
        note = _clock_note(episode.frame_times, episode.fps)
        if self.mapping.timestamps == "resample":
            return resampled(episode, episode.frame_times)
        return replace(episode, notes=(*episode.notes, note)) if note else episode

    def _with_deltas(self, episode: Episode) -> Episode:
        names = episode.action_names
        given = chosen_deltas(episode.source, self.mapping, names)
        if given is not None:
            deltas, reason = given, "as the mapping says"
        elif episode.delta_actions is not None:
            return episode
        else:
            if names not in self._deltas:
                self._deltas[names] = find_deltas(names, list(self._examined(episode)))
            deltas, reason = self._deltas[names]
        note = f"actions are {describe_deltas(deltas, names)} ({reason})"
        return replace(episode, delta_actions=deltas, notes=(*episode.notes, note))

    def _examined(self, asked: Episode) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Actions and states of a few episodes, or of `asked` if no other can be read."""
        found = 0
        for index in evenly_spread(len(self.inner), EXAMINED_EPISODES):
            try:
                episode = relabeled(self.inner[index], self.mapping)
            except (ValueError, OSError):
                continue
            if episode.action_names == asked.action_names:
                found += 1
                yield episode.robot_actions, episode.robot_states
        if not found:
            yield asked.robot_actions, asked.robot_states


def _clock_note(times: Float[np.ndarray, " t"], fps: float) -> str:
    """A description of irregular timestamps; empty if they are regular."""
    steps = np.diff(times)
    if np.abs(steps * fps - 1).max() <= EVEN:
        return ""
    remedy = "timestamps: resample in a mapping makes them even"
    if steps.max() - steps.min() <= EVEN / fps:
        rate = 1 / steps.mean()
        return f"timestamps go at {rate:.4g} frames per second, {fps:.4g} declared and used; {remedy}"
    span = f"{steps.min():.3g} to {steps.max():.3g} s"
    return f"timestamps are uneven, steps of {span} at {fps:.4g} declared frames per second, kept; {remedy}"
