"""Indexes the episodes in one pass: contents, splits, action statistics, and unreadable episodes."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from worldmodel.data.action_deltas import describe_deltas
from worldmodel.data.action_spaces import describe_action_space
from worldmodel.data.cameras import CameraChoice, choose_camera, find_views
from worldmodel.data.clips import ClipConfig, clip_starts, episode_actions
from worldmodel.data.decode_cache import Verify, check_frames
from worldmodel.data.index_cache import index_key, keep_index, kept_index
from worldmodel.data.index_types import BadEpisode, EpisodeIndex, EpisodeRecord, OnBad
from worldmodel.data.normalize import ActionStatsBuilder
from worldmodel.data.provenance import actions_hash
from worldmodel.data.splits import SplitConfig, check_listed, split_of
from worldmodel.data.video import MissingVideoError
from worldmodel.plain_text import folded
from worldmodel.types import Episode, EpisodeSource, FrameReader

log = logging.getLogger(__name__)

WAY_OUT = ". To leave such episodes out: on_bad=skip"  # hint added to the error if other episodes can be read

__all__ = ["BadEpisode", "EpisodeIndex", "EpisodeRecord", "OnBad", "check_episode", "index_episodes"]


def index_episodes(
    sources: Sequence[EpisodeSource],
    config: ClipConfig | None = None,
    splits: SplitConfig | None = None,
    on_bad: OnBad = "stop",
    decode_all: bool = False,  # also decode every frame, so that unreadable pictures are found now
    uids_must_exist: bool = True,  # refuse splits that list unknown episodes
    verify: Verify = "never",  # decode the selected videos: once per content, or always
) -> EpisodeIndex:
    """Open every episode once and record what training needs; later calls use the cached index."""
    config, splits = config or ClipConfig(), splits or SplitConfig()
    key = None if decode_all else index_key(sources, config, splits, verify)
    index = kept_index(key, sources, config)
    if index is None:
        index = _pass(sources, config, splits, on_bad, decode_all, verify)
        keep_index(key, index)
        for reason, count in folded(Counter(one.reason for one in index.skipped)).items():
            log.warning("episodes left out: %d, the first: %s", count, reason)
    # An unreadable episode has no name, so it may be one of those listed.
    if uids_must_exist and not index.skipped:
        check_listed(splits, index.uids)
    return index


def _pass(
    sources: Sequence[EpisodeSource],
    config: ClipConfig,
    splits: SplitConfig,
    on_bad: OnBad,
    decode_all: bool,
    verify: Verify,
) -> EpisodeIndex:
    """Open all episodes, then check their videos at once; if some are broken, repeat without them."""
    found = _Found(config, splits, on_bad, decode_all)
    found.look_at(sources, {})
    broken = check_frames(found.readers, verify)
    if broken:
        reasons = {found.places[number]: reason for number, reason in broken.items()}
        if on_bad == "stop":
            raise ValueError(next(iter(reasons.values())))
        found = _Found(config, splits, on_bad, decode_all)
        found.look_at(sources, reasons)
    return found.index(sources)


@dataclass
class _Found:
    """Results collected during one pass over the episodes."""

    config: ClipConfig
    splits: SplitConfig
    on_bad: OnBad
    decode_all: bool
    records: list[EpisodeRecord] = field(default_factory=list)
    readers: list[FrameReader] = field(default_factory=list)  # of the selected cameras of every episode
    places: list[tuple[int, int]] = field(default_factory=list)  # (source, episode) of each reader
    skipped: list[BadEpisode] = field(default_factory=list)
    too_short: dict[str, int] = field(default_factory=dict)
    builders: dict[str, ActionStatsBuilder] = field(default_factory=dict)
    cameras: Counter[CameraChoice] = field(default_factory=Counter)
    uids: set[str] = field(default_factory=set)

    def look_at(self, sources: Sequence[EpisodeSource], broken: Mapping[tuple[int, int], str]) -> None:
        """Open every episode except the broken ones."""
        for source_number, source in enumerate(sources):
            for number in range(len(source)):
                try:
                    if reason := broken.get((source_number, number)):
                        raise ValueError(reason)
                    self._add(source[number], source_number, number)
                except (ValueError, OSError) as error:
                    if self.on_bad == "stop" and not isinstance(error, MissingVideoError):
                        raise ValueError(f"{error}{WAY_OUT if self.records else ''}") from error
                    self.skipped.append(BadEpisode(f"{source.name}[{number}]", str(error)))

    def _add(self, episode: Episode, source: int, number: int) -> None:
        self.uids.add(episode.uid)
        check_episode(episode, self.config, self.decode_all)
        record = _record(episode, source, number, self.config, self.splits)
        if record.starts and record.split == "train":
            _add_actions(self.builders, episode, self.config)
        for reader in find_views(episode, self.config.camera):
            self.readers.append(reader)
            self.places.append((source, number))
        if record.starts:
            self.records.append(record)
            self.cameras[choose_camera(episode, self.config.camera)] += 1
        else:
            self.too_short[record.file] = episode.num_frames

    def index(self, sources: Sequence[EpisodeSource]) -> EpisodeIndex:
        """The complete index, with the statistics."""
        stats = {name: self.builders[name].stats() for name in sorted(self.builders)}
        return EpisodeIndex(
            tuple(sources),
            self.config,
            tuple(self.records),
            stats,
            tuple(self.skipped),
            self.too_short,
            self.cameras,
            frozenset(self.uids),
        )


def _add_actions(builders: dict[str, ActionStatsBuilder], episode: Episode, config: ClipConfig) -> None:
    deltas = episode.delta_actions or ()
    new = ActionStatsBuilder(episode.action_names, episode.action_space, deltas)
    builder = builders.setdefault(episode.embodiment, new)
    if builder.action_space != episode.action_space:
        raise ValueError(
            f"{episode.source}: actions are {describe_action_space(episode.action_space)}, other episodes of "
            f"{episode.embodiment!r} hold {describe_action_space(builder.action_space)}"
        )
    if builder.deltas != deltas:
        raise ValueError(
            f"{episode.source}: actions are {describe_deltas(deltas, episode.action_names)}, those of other "
            f"episodes of {episode.embodiment!r} {describe_deltas(builder.deltas, builder.names)}; set "
            "action_deltas in a mapping (data.mapping, --mapping)"
        )
    builder.add(episode_actions(episode, config), episode.action_names, episode.source)


def check_episode(episode: Episode, config: ClipConfig, decode_all: bool = False) -> None:
    """Refuse an episode with inconsistent parts."""
    where, actions = episode.source, episode.robot_actions
    readers = find_views(episode, config.camera)
    for reader in readers:
        if len(reader) != episode.num_frames:
            raise ValueError(
                f"{where}: {len(actions)} actions need {episode.num_frames} frames, camera has {len(reader)}"
            )
    if len(episode.action_names) != actions.shape[1]:
        raise ValueError(
            f"{where}: {actions.shape[1]} action dimensions, but {len(episode.action_names)} names"
        )
    if not np.isfinite(actions).all():
        row, column = np.argwhere(~np.isfinite(actions))[0]
        name = episode.action_names[column]
        raise ValueError(f"{where}: action {row} holds {actions[row, column]} in dimension {name!r}")
    if not episode.fps > 0:
        raise ValueError(f"{where}: frames per second must be positive, got {episode.fps}")
    for reader in readers if decode_all else ():
        for first in range(0, len(reader), 64):
            reader.read(range(first, min(first + 64, len(reader))))


def _record(
    episode: Episode, source: int, number: int, config: ClipConfig, splits: SplitConfig
) -> EpisodeRecord:
    return EpisodeRecord(
        source=source,
        episode=number,
        uid=episode.uid,
        file=episode.source,
        embodiment=episode.embodiment,
        starts=clip_starts(episode.num_frames, episode.fps, config),
        split=split_of(episode.uid, splits),
        fps=episode.fps,
        camera=choose_camera(episode, config.camera).name,
        size=find_views(episode, config.camera)[0].size,
        actions=actions_hash(episode),
        task=episode.task,
    )
