"""Applies a mapping to any dataset, detects delta actions and checks the clock."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from robotwin_adapters.angles import Cuts, cut_angles, find_cuts
from robotwin_adapters.mapping import DataMapping, chosen_deltas, relabeled
from robotwin_adapters.resample import resampled
from robotwin_adapters.storage import tree_stamp
from worldmodel.data.action_deltas import EXAMINED_EPISODES, describe_deltas, find_deltas
from worldmodel.types import Episode, EpisodeSource, evenly_spread

EXAMINED_FOR_ANGLES = 16  # evenly spaced episodes
EVEN = 0.02  # of a frame; steps between timestamps that differ by less count as even


@dataclass(frozen=True)
class LabeledDataset:
    """Relabels a reader's episodes; delta actions are detected once per set of columns."""

    inner: EpisodeSource
    mapping: DataMapping = field(default_factory=DataMapping)
    place: str = ""  # path of the files; empty: unknown
    settings: str = ""  # reader settings as text, part of the stamp
    _cuts: dict[tuple[str, ...], tuple[Cuts, Cuts]] = field(default_factory=dict, repr=False)
    _deltas: dict[tuple[str, ...], tuple[tuple[str, ...], str]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Name of the dataset."""
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
        episode = self._with_deltas(self._unwrapped(relabeled(self.inner[index], self.mapping)))
        if episode.frame_times is None:
            return episode
        note = _clock_note(episode.frame_times, episode.fps)
        if self.mapping.timestamps == "resample":
            return resampled(episode, episode.frame_times)
        return replace(episode, notes=(*episode.notes, note)) if note else episode

    def _unwrapped(self, episode: Episode) -> Episode:
        names = episode.action_names
        if self.mapping.angles == "keep":
            return episode
        if names not in self._cuts:
            known = list(self._examined(episode, EXAMINED_FOR_ANGLES))
            measured = [values for _, values in known if values is not None]
            is_one_table = len({values.shape[1] for values in measured}) == 1
            self._cuts[names] = (
                find_cuts([actions for actions, _ in known]),
                find_cuts(measured) if is_one_table else {},
            )
        if not any(self._cuts[names]):
            return episode
        actions, states = self._cut(names, episode.robot_actions, episode.robot_states)
        named = [names[column] for column in self._cuts[names][0]]
        note = (
            f"actions {', '.join(named)} jump by a full turn: now cut where they never are (mapping: angles)"
        )
        return replace(
            episode,
            robot_actions=actions,
            robot_states=states,
            notes=(*episode.notes, note) if named else episode.notes,
        )

    def _with_deltas(self, episode: Episode) -> Episode:
        names = episode.action_names
        given = chosen_deltas(episode.source, self.mapping, names)
        if given is not None:
            deltas, reason = given, "as the mapping says"
        elif episode.delta_actions is not None:
            return episode
        else:
            if names not in self._deltas:
                parts = [self._cut(names, *part) for part in self._examined(episode, EXAMINED_EPISODES)]
                self._deltas[names] = find_deltas(names, parts)
            deltas, reason = self._deltas[names]
        note = f"actions are {describe_deltas(deltas, names)} ({reason})"
        return replace(episode, delta_actions=deltas, notes=(*episode.notes, note))

    def _cut(
        self, names: tuple[str, ...], actions: np.ndarray, states: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        cuts, of_states = self._cuts.get(names, ({}, {}))
        return cut_angles(actions, cuts), None if states is None else cut_angles(states, of_states)

    def _examined(self, asked: Episode, count: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Actions and states of a few episodes, or of `asked` if no other can be read."""
        found = 0
        for index in evenly_spread(len(self.inner), count):
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
