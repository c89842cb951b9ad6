"""The episode index: one record per episode, and the action statistics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from worldmodel.data.cameras import CameraChoice
from worldmodel.data.clips import ClipConfig
from worldmodel.data.normalize import ActionNormalizer, ActionStats
from worldmodel.data.splits import Split
from worldmodel.types import Episode, EpisodeSource

# An unreadable episode ends the run, or is listed and skipped; one whose video is missing is always skipped.
OnBad = Literal["stop", "skip"]


@dataclass(frozen=True)
class EpisodeRecord:
    """What the index stores of an episode; its arrays stay on disk."""

    source: int  # position of its dataset in the list of sources
    episode: int  # position inside that dataset
    uid: str
    file: str
    embodiment: str
    starts: range  # first recorded frame of each clip
    split: Split
    fps: float  # frames per second of the recording
    camera: str  # name of the camera used for clips
    size: tuple[int, int]  # height and width of its (first camera's) recorded pictures, pixels
    actions: str = ""  # hash of its actions
    task: str = ""


@dataclass(frozen=True)
class BadEpisode:
    """A skipped episode, and the reason."""

    where: str  # the file, or dataset[position] if the file is unknown
    reason: str


@dataclass(frozen=True)
class EpisodeIndex:
    """The readable episodes of all sources, in order."""

    sources: tuple[EpisodeSource, ...]
    config: ClipConfig
    records: tuple[EpisodeRecord, ...]
    stats: Mapping[str, ActionStats]  # per embodiment, of the training split
    skipped: tuple[BadEpisode, ...]
    too_short: Mapping[str, int]  # frame counts of readable episodes shorter than one clip, by file
    cameras: Mapping[CameraChoice, int] = field(default_factory=dict)  # how often each was selected
    uids: frozenset[str] = frozenset()  # of all readable episodes

    def of(self, split: Split) -> tuple[EpisodeRecord, ...]:
        """The episodes of one split."""
        return tuple(record for record in self.records if record.split == split)

    def normalizer(self, width: int | None = None) -> ActionNormalizer:
        """A normalizer fitted to the training split, embodiments sorted by name."""
        if not self.stats:
            raise ValueError(f"no training episodes to take action statistics from; {self.summary()}")
        return ActionNormalizer(self.stats, width)

    def open(self, record: EpisodeRecord) -> Episode:
        """Open the episode of a record."""
        return self.sources[record.source][record.episode]

    def summary(self) -> str:
        """Counts, on one line."""
        splits = ", ".join(
            f"{split} {sum(len(r.starts) for r in self.of(split))} clips of {len(self.of(split))} episodes"
            for split in ("train", "val", "test")
        )
        return f"{splits}; {len(self.skipped)} unreadable, {len(self.too_short)} shorter than a clip"

    def camera_summary(self) -> str:
        """The selected camera and the reason, on one line."""
        lines = [f"camera {choice.name} ({choice.reason})" for choice in self.cameras]
        if len(lines) > 1:
            lines = [f"{line} in {n} episodes" for line, n in zip(lines, self.cameras.values(), strict=True)]
        return "; ".join(lines)
