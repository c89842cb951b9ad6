"""Training provenance: the episodes a model was trained on, stored in its folder for later evaluations.

An episode is identified by a hash of its actions, independent of its location and name. If training dropped
frames, its actions differ from those in the files, and robot and name identify it instead.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from worldmodel.checked import build, check_type
from worldmodel.data.splits import SplitConfig
from worldmodel.types import Episode

FILE = "trained_on.json"


@dataclass(frozen=True)
class TrainedEpisode:
    """One episode of the training split."""

    uid: str
    embodiment: str
    actions: str  # hash of all its robot actions; empty: not comparable


@dataclass(frozen=True)
class TrainedOn:
    """The training episodes of a model, including earlier stages, and the splits of the last stage."""

    splits: SplitConfig
    episodes: tuple[TrainedEpisode, ...]
    skips_bad: bool = False  # whether training left out what it could not read
    mapping: str = ""  # the keys and names that training was given, as JSON; empty: none
    static_tolerance: float | None = None  # of frames that repeat the last, as in the training config

    @property
    def on_bad(self) -> Literal["stop", "skip"]:
        """What training did with unreadable episodes."""
        return "skip" if self.skips_bad else "stop"

    def holds(self, uid: str, embodiment: str, actions: str) -> bool:
        """Whether this episode was trained on."""
        return actions in self._actions or (embodiment, uid) in self._names

    def after(self, earlier: "TrainedOn | None") -> "TrainedOn":
        """Merge with the training episodes of the model it started from."""
        known = earlier.episodes if earlier else ()
        return replace(self, episodes=tuple(dict.fromkeys((*known, *self.episodes))))

    @cached_property
    def _actions(self) -> frozenset[str]:
        return frozenset(episode.actions for episode in self.episodes if episode.actions)

    @cached_property
    def _names(self) -> frozenset[tuple[str, str]]:
        return frozenset((one.embodiment, one.uid) for one in self.episodes if not one.actions)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values for `from_dict`."""
        rows = [[one.uid, one.embodiment, one.actions] for one in self.episodes]
        others = {"mapping": self.mapping, "static_tolerance": self.static_tolerance}
        return {"splits": asdict(self.splits), "episodes": rows, "skips_bad": self.skips_bad, **others}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainedOn":
        """Rebuild from `to_dict`."""
        splits = build(SplitConfig, values.get("splits"), "splits")
        rows = check_type(values.get("episodes"), tuple[tuple[str, str, str], ...], "episodes")
        skips_bad = check_type(values.get("skips_bad", False), bool, "skips_bad")
        mapping = check_type(values.get("mapping", ""), str, "mapping")
        tolerance = check_type(values.get("static_tolerance"), float | None, "static_tolerance")
        return cls(splits, tuple(TrainedEpisode(*row) for row in rows), skips_bad, mapping, tolerance)


def actions_hash(episode: Episode) -> str:
    """Hash of an episode's robot actions; the same for single and double precision."""
    values = np.ascontiguousarray(episode.robot_actions, dtype="<f4")
    return hashlib.sha256(f"{values.shape}".encode() + values.tobytes()).hexdigest()[:16]


def describe_overlap(trained_on: TrainedOn | None, uids: Iterable[str], total: int) -> str:
    """One sentence for reports; `uids` are the evaluated episodes that were trained on."""
    if trained_on is None:
        return "The model folder does not say which episodes it was trained on."
    found = list(uids)
    if not found:
        return "None of these episodes was trained on."
    shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
    return (
        f"WARNING: {len(found)} of {total} episodes were TRAINED ON ({shown}): no held-out result. "
        "Leave out held_out.splits to divide the episodes as training did."
    )
