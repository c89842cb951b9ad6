"""Clips by index: a map-style dataset over many episodes, with frames, cached latents or both."""

import os
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from worldmodel.data.clips import ClipConfig, clip_offsets, cut_clip, merged
from worldmodel.data.index import BadEpisode, EpisodeIndex, EpisodeRecord, OnBad, index_episodes
from worldmodel.data.latents import LatentTable
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.data.splits import Split, SplitConfig
from worldmodel.data.transitions import clip_transitions, read_rows, scale_rows
from worldmodel.types import (
    Clip,
    ClipBatch,
    Episode,
    EpisodeSource,
    Extras,
    RowReader,
    Transitions,
)

MAX_OPEN_EPISODES = 64  # per process; an open episode holds a file handle and its small arrays


class ClipDataset(Dataset[Clip]):
    """The clips of one split; item i is the same in every process and whatever was read before."""

    def __init__(
        self,
        index: EpisodeIndex,
        split: Split,
        normalizer: ActionNormalizer,
        latents: LatentTable | None = None,  # cached latents; episodes without them are excluded
        with_frames: bool | None = None,  # also decode frames; none: only if there are no latents
        on_bad: OnBad = "stop",
        reader: RowReader | None = None,  # of action paths; cached latents must have been built with it
    ) -> None:
        records = [r for r in index.of(split) if latents is None or (r.source, r.episode) in latents.paths]
        if not records:
            raise ValueError(f"no clips in split {split!r}: {index.summary()}. {how_to_fill(split, index)}")
        check_action_names(index, records, normalizer)
        self.index, self.split, self.normalizer, self.latents = index, split, normalizer, latents
        self.with_frames = latents is None if with_frames is None else with_frames
        assert self.with_frames or latents is not None, "a clip has frames, latents or both"
        self.on_bad, self.reader = on_bad, reader
        self.records = records
        self.skipped: list[BadEpisode] = []  # clips that this process could not read
        self._ends = np.cumsum([len(record.starts) for record in records])
        self._open: OrderedDict[tuple[int, int], Episode] = OrderedDict()
        self._process = os.getpid()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, number: int) -> Clip:
        """The clip; with on_bad="skip" an unreadable one is replaced by the next readable one."""
        if not 0 <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        for attempt in range(len(self)):
            record, clip = self.locate((number + attempt) % len(self))
            try:
                return self._read(record, clip)
            except (ValueError, OSError) as error:
                if self.on_bad == "stop":
                    raise ValueError(_naming(record, error)) from error
                self._note(record, error)
        raise ValueError(f"none of {len(self)} clips can be read; the last: {self.skipped[-1].reason}")

    def locate(self, number: int) -> tuple[EpisodeRecord, int]:
        """The episode of a clip, and the clip's index in it."""
        position = int(np.searchsorted(self._ends, number, side="right"))
        record = self.records[position]
        return record, number - int(self._ends[position]) + len(record.starts)

    def _read(self, record: EpisodeRecord, clip: int) -> Clip:
        frames: Tensor | None = None
        latents: Tensor | None = None
        names: tuple[str, ...] | None = None  # the cache stores none
        extras: Extras = {}
        if self.latents is not None:
            latents, robot_actions = self.latents.read(record, clip)
            extras = self.latents.read_extras(record, clip) if self.reader is not None else {}
        if self.with_frames:
            episode, start = self._episode(record), record.starts[clip]
            frames, robot_actions = cut_clip(episode, start, self.index.config)
            names = episode.action_names
            if self.reader is not None and self.latents is None:
                extras = read_rows(
                    self.reader, clip_transitions(episode, start, robot_actions, self.index.config)
                )
        if self.reader is not None:
            extras = scale_rows(extras, self.reader, self.normalizer, record.embodiment)
        return Clip(
            robot_actions=self.normalizer.normalize(robot_actions, record.embodiment, names),
            action_mask=self.normalizer.mask(record.embodiment),
            embodiment=self.normalizer.index(record.embodiment),
            source=f"{record.file}#{record.starts[clip]}",
            frames=frames,
            latents=latents,
            extras=extras,
            task=record.task,
        )

    def _episode(self, record: EpisodeRecord) -> Episode:
        if self._process != os.getpid():  # file handles do not survive a fork
            self._open, self._process = OrderedDict(), os.getpid()
        key = (record.source, record.episode)
        if key not in self._open:
            self._open[key] = self.index.open(record)
            if len(self._open) > MAX_OPEN_EPISODES:
                self._open.popitem(last=False)
        self._open.move_to_end(key)
        return self._open[key]

    def _note(self, record: EpisodeRecord, error: Exception) -> None:
        bad = BadEpisode(record.file, _naming(record, error))
        if bad not in self.skipped:
            self.skipped.append(bad)
            warnings.warn(f"skipped a clip: {bad.reason}", stacklevel=3)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}


def collate_clips(clips: Sequence[Clip]) -> ClipBatch:
    """Stack clips along b; latents keep the type they were stored in."""
    return ClipBatch(
        robot_actions=torch.stack([clip.robot_actions for clip in clips]),
        action_mask=torch.stack([clip.action_mask for clip in clips]),
        embodiment=torch.tensor([clip.embodiment for clip in clips]),
        sources=tuple(clip.source for clip in clips),
        frames=_stacked([clip.frames for clip in clips]),
        latents=_stacked([clip.latents for clip in clips]),
        extras={name: torch.stack([clip.extras[name] for clip in clips]) for name in clips[0].extras},
        tasks=tuple(clip.task for clip in clips),
    )


def build_clip_dataset(
    sources: Sequence[EpisodeSource],
    split: Split = "train",
    config: ClipConfig | None = None,
    splits: SplitConfig | None = None,
    normalizer: ActionNormalizer | None = None,  # none: fitted to the training split of these sources
    on_bad: OnBad = "stop",
    reader: RowReader | None = None,  # of action paths that read more than actions
) -> ClipDataset:
    """Index and dataset in one call, for a single split; to get several, share an index.

    Examples:
        >>> from worldmodel import ClipConfig, build_clip_dataset
        >>> from worldmodel.data.synthetic import synthetic_source
        >>> episodes = synthetic_source(num_episodes=8, num_frames=33, size=(32, 32))
        >>> clips = build_clip_dataset([episodes], "train", ClipConfig(num_frames=17, height=32, width=32))
        >>> tuple(clips[0].frames.shape), tuple(clips[0].robot_actions.shape)
        ((17, 3, 32, 32), (16, 14))
    """
    index = index_episodes(sources, config, splits, on_bad)
    normalizer = normalizer or index.normalizer()
    return ClipDataset(index, split, normalizer, on_bad=on_bad, reader=reader)


def how_to_fill(split: Split, index: EpisodeIndex) -> str:
    """A hint on what to set so that a split of a small dataset is not empty."""
    others = [record.uid for record in index.records if record.split != split]
    if not others:
        return "There is no episode as long as a clip: lower data.clip.num_frames or data.clip.stride"
    listed = f"data.splits.{split}_uids=[{others[-1]}]"
    if split == "train":
        return f"Lower data.splits.val and data.splits.test, or set {listed}"
    without = ", or validation.num_clips=0 to train without it" if split == "val" else ""
    return f"Set {listed} or a larger data.splits.{split}{without}"


def check_action_names(
    index: EpisodeIndex, records: Sequence[EpisodeRecord], normalizer: ActionNormalizer
) -> None:
    """Refuse a robot whose actions differ from those of the normalization statistics."""
    for record in _first_of_each_robot(records):
        # The index has compared all training episodes of an embodiment with each other, but no others.
        if record.split == "train" and record.embodiment in index.stats:
            known = index.stats[record.embodiment]
            names, space, deltas = known.names, known.action_space, known.deltas
        else:
            episode = index.open(record)
            names, space = episode.action_names, episode.action_space
            deltas = episode.delta_actions or ()
        try:
            normalizer.check_names(record.embodiment, names)
            normalizer.check_space(record.embodiment, space)
            if index.config.merge == "auto":
                normalizer.check_deltas(record.embodiment, deltas)
        except ValueError as error:
            raise ValueError(_naming(record, error)) from error


def check_extras(index: EpisodeIndex, records: Sequence[EpisodeRecord], reader: RowReader) -> None:
    """Read the rows of the first clip of each robot, so that missing inputs are reported before training."""
    for record in _first_of_each_robot(records):
        read_rows(reader, record_transitions(index, record, record.starts[0]))


def record_transitions(index: EpisodeIndex, record: EpisodeRecord, start: int) -> Transitions:
    """The transitions of a clip of an episode, without decoding frames."""
    episode = index.open(record)
    actions = merged(episode, start + clip_offsets(episode.fps, index.config), index.config.merge)
    return clip_transitions(episode, start, actions, index.config)


def _first_of_each_robot(records: Sequence[EpisodeRecord]) -> list[EpisodeRecord]:
    """One episode of every robot in every dataset."""
    firsts: dict[tuple[int, str], EpisodeRecord] = {}
    for record in records:
        firsts.setdefault((record.source, record.embodiment), record)
    return list(firsts.values())


def _stacked(tensors: list[Tensor | None]) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    assert len(present) in (0, len(tensors)), "clips of one batch either all have it or none has"
    return torch.stack(present) if present else None


def _naming(record: EpisodeRecord, error: Exception) -> str:
    return str(error) if record.file in str(error) else f"{record.file}: {error}"
