"""Maps robot actions of any embodiment to [-1, 1] with one common width, and back.

Per embodiment and dimension, the 1 % quantile maps to -1 and the 99 % quantile to +1; values outside are
clipped. A constant dimension maps to 0, and back to its constant. If a dimension moves so rarely that both
quantiles are equal (an arm that is nearly always idle), its minimum and maximum are used instead. The
statistics are stored in checkpoints as JSON, so that a wrong scale cannot go unnoticed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from worldmodel.checked import LARGEST, build, check_object, check_range, check_type, shorten
from worldmodel.data.action_deltas import NONE, describe_deltas
from worldmodel.data.action_spaces import (
    check_action_space,
    describe_action_space,
)

# Relative to max(1, |value|): ranges below this are rounding, not motion.
CONSTANT_RANGE = 1e-6
MAX_WIDTH = 4096  # action dimensions
# Above this many rows every second one is dropped; the quantile error stays within about 0.1 % of rank.
MAX_ROWS = 200_000


@dataclass(frozen=True)
class ActionStats:
    """Statistics of one embodiment's actions; one entry per action dimension."""

    names: tuple[str, ...]
    q01: tuple[float, ...]
    q99: tuple[float, ...]
    minimum: tuple[float, ...]
    maximum: tuple[float, ...]
    num_samples: int  # number of actions
    action_space: str = ""  # kind of actions, as in action_spaces.py; empty: not stated
    deltas: tuple[str, ...] = ()  # delta dimensions, as in action_deltas.py

    def __post_init__(self) -> None:
        check_action_space(self.action_space)
        widths = {len(values) for values in (self.names, self.q01, self.q99, self.minimum, self.maximum)}
        if len(widths) != 1:
            raise ValueError(f"action statistics of unequal widths: {sorted(widths)}")
        if not 1 <= len(self.names) <= MAX_WIDTH or self.num_samples < 0:
            raise ValueError(f"action statistics need 1 to {MAX_WIDTH} names and num_samples >= 0")
        if not (np.abs([self.q01, self.q99, self.minimum, self.maximum]) <= LARGEST).all():
            raise ValueError(f"action statistics hold values that are not finite, or above 1e12: {self}")
        if not np.less_equal(self.minimum, self.maximum).all() or not np.less_equal(self.q01, self.q99).all():
            raise ValueError(f"action statistics have a lower end above the upper end: {self}")

    def bounds(self) -> tuple[Float[np.ndarray, " a"], Float[np.ndarray, " a"]]:
        """(low, high) that map to -1 and +1; equal if the dimension is constant."""
        low, high = np.array(self.q01), np.array(self.q99)
        collapsed = _is_constant(low, high)
        low = np.where(collapsed, self.minimum, low)
        high = np.where(collapsed, self.maximum, high)
        return low, np.where(_is_constant(low, high), low, high)


def share_scales(
    stats: Mapping[str, ActionStats], known: Mapping[str, ActionStats] | None = None
) -> dict[str, ActionStats]:
    """One scale for all embodiments with the same action names: that of `known` ones, else the widest range.

    For actions in units that all robots share, such as end-effector poses: equal positions then get equal
    numbers for all robots.
    """
    shared = {_kind(entry): entry for entry in (known or {}).values()}
    for kind in {_kind(entry) for entry in stats.values()} - set(shared):
        shared[kind] = _widest([entry for entry in stats.values() if _kind(entry) == kind])
    return {name: shared[_kind(entry)] for name, entry in stats.items()}


def _kind(entry: ActionStats) -> tuple[str, tuple[str, ...]]:
    """Key of actions that may share a scale."""
    return entry.action_space, entry.names


def _widest(entries: Sequence[ActionStats]) -> ActionStats:
    low, minimum = (np.min([getattr(entry, key) for entry in entries], 0) for key in ("q01", "minimum"))
    high, maximum = (np.max([getattr(entry, key) for entry in entries], 0) for key in ("q99", "maximum"))
    num_samples = sum(entry.num_samples for entry in entries)
    q01, q99, least, most = (tuple(map(float, side)) for side in (low, high, minimum, maximum))
    first = entries[0]
    return ActionStats(first.names, q01, q99, least, most, num_samples, first.action_space, first.deltas)


class ActionStatsBuilder:
    """Collects actions of one embodiment, episode by episode, in bounded memory."""

    def __init__(self, names: Sequence[str], action_space: str = "", deltas: Sequence[str] = ()) -> None:
        self.names, self.action_space, self.deltas = tuple(names), action_space, tuple(deltas)
        self._rows: list[np.ndarray] = []
        self._num_rows = self._num_seen = 0
        self._keep_every = 1
        self._minimum = np.full(len(names), np.inf)
        self._maximum = np.full(len(names), -np.inf)

    def add(self, robot_actions: Float[np.ndarray, "n a"], names: Sequence[str], where: str) -> None:
        """Add one episode's actions; `where` names it in messages."""
        if tuple(names) != self.names:
            raise ValueError(
                f"{where}: action names {list(names)} differ from {list(self.names)} of the same embodiment"
            )
        if not len(robot_actions):
            return
        # Counted over all episodes, so that the spacing also works for episodes shorter than it.
        first = -self._num_seen % self._keep_every
        self._num_seen += len(robot_actions)
        self._minimum = np.minimum(self._minimum, robot_actions.min(0))
        self._maximum = np.maximum(self._maximum, robot_actions.max(0))
        self._rows.append(robot_actions[first :: self._keep_every].astype(np.float64))
        self._num_rows += len(self._rows[-1])
        if self._num_rows > MAX_ROWS:
            self._rows = [np.concatenate(self._rows)[::2]]
            self._num_rows = len(self._rows[0])
            self._keep_every *= 2

    def stats(self) -> ActionStats:
        """Quantiles of all added actions; exact up to MAX_ROWS actions."""
        if not self._num_seen:
            raise ValueError("no actions to take statistics from")
        q01, q99 = np.quantile(np.concatenate(self._rows), [0.01, 0.99], axis=0)
        low, high, minimum, maximum = (tuple(map(float, v)) for v in (q01, q99, self._minimum, self._maximum))
        ranges = (low, high, minimum, maximum)
        return ActionStats(self.names, *ranges, self._num_seen, self.action_space, self.deltas)


class ActionNormalizer:
    """Per-embodiment scaling to [-1, 1] and padding to a common width; the embodiment table of a model."""

    def __init__(self, stats: Mapping[str, ActionStats], width: int | None = None) -> None:
        if not stats:
            raise ValueError("action statistics of at least one embodiment are needed")
        widest = max(len(entry.names) for entry in stats.values())
        self.stats = dict(stats)
        self.width = widest if width is None else width
        self._bounds = {name: entry.bounds() for name, entry in stats.items()}
        _check_spaces(stats)
        if self.width < widest:
            raise ValueError(
                f"actions of {widest} dimensions do not fit into a common width of {self.width} dimensions"
            )

    @property
    def embodiments(self) -> tuple[str, ...]:
        """Names in the order of the embodiment index of clips."""
        return tuple(self.stats)

    def index(self, embodiment: str) -> int:
        """Position in the embodiment table."""
        self._stats_of(embodiment)
        return self.embodiments.index(embodiment)

    def names_of(self, embodiment: str) -> tuple[str, ...]:
        """Names of the embodiment's action dimensions."""
        return self._stats_of(embodiment).names

    def mask(self, embodiment: str) -> Bool[Tensor, " a"]:
        """True for the embodiment's dimensions, False in the padding."""
        return torch.arange(self.width) < len(self._stats_of(embodiment).names)

    def normalize(
        self,
        robot_actions: Float[np.ndarray, "*n raw"],
        embodiment: str,
        names: Sequence[str] | None = None,
        *,
        clip: bool = True,
    ) -> Float[Tensor, "*n a"]:
        """Raw actions -> clipped to [-1, 1], zeros in constant and padded dimensions."""
        scaled = self._scale(robot_actions, embodiment, names)
        scaled = np.clip(scaled, -1, 1) if clip else scaled
        padded = np.zeros((*scaled.shape[:-1], self.width), np.float32)
        padded[..., : scaled.shape[-1]] = scaled
        return torch.from_numpy(padded)

    def normalize_tensor(self, rows: Float[Tensor, "*n raw"], embodiment: str) -> Float[Tensor, "*n a"]:
        """As `normalize`, but differentiable; columns beyond the embodiment's are padding already."""
        low, high = (rows.new_tensor(bound) for bound in self._bounds_of(embodiment))
        span = torch.where(high > low, high - low, torch.inf)
        scaled = torch.where(high > low, (rows[..., : len(low)] - low) / span * 2 - 1, 0.0).clamp(-1, 1)
        return torch.nn.functional.pad(scaled, (0, self.width - len(low)))

    def denormalize(
        self, robot_actions: Float[Tensor, "*n a"], embodiment: str
    ) -> Float[np.ndarray, "*n raw"]:
        """Convert to raw actions, without the padding."""
        if robot_actions.shape[-1] != self.width:
            raise ValueError(
                f"actions of {embodiment!r}: expected width {self.width}, got {robot_actions.shape[-1]}"
            )
        return self.denormalize_tensor(robot_actions.detach().cpu().double(), embodiment).numpy()

    def denormalize_tensor(
        self, robot_actions: Float[Tensor, "*n a"], embodiment: str
    ) -> Float[Tensor, "*n raw"]:
        """As `denormalize`, but differentiable and on the tensor's own type and device."""
        low, high = (robot_actions.new_tensor(bound) for bound in self._bounds_of(embodiment))
        return low + (robot_actions[..., : len(low)] + 1) / 2 * (high - low)

    def outside(self, robot_actions: Float[np.ndarray, "*n raw"], embodiment: str) -> float:
        """Fraction of values beyond twice the training range: near 0 for matching data, else large."""
        low, high = self._bounds_of(embodiment)
        moving = high > low
        if not moving.any() or not robot_actions.size:
            return 0.0
        return float((np.abs(self._scale(robot_actions, embodiment, None)[..., moving]) > 2).mean())

    def check_names(self, embodiment: str, names: Sequence[str]) -> None:
        """Refuse actions with other names, or in another order, than in the statistics."""
        known = self._stats_of(embodiment).names
        if tuple(names) != known:
            raise ValueError(f"actions of {embodiment!r}: expected names {list(known)}, got {list(names)}")

    def check_space(self, embodiment: str, action_space: str) -> None:
        """Refuse commanded actions if the statistics are of measured ones, and vice versa."""
        known = self._stats_of(embodiment).action_space
        if known and action_space and known != action_space:
            raise ValueError(
                f"actions of {embodiment!r}: expected {describe_action_space(known)}, got "
                f"{describe_action_space(action_space)}; read the data with action_space={known}"
            )

    def check_deltas(self, embodiment: str, deltas: Sequence[str]) -> None:
        """Refuse deltas if the statistics are of absolute values, and vice versa."""
        known = self._stats_of(embodiment)
        if tuple(deltas) != known.deltas:
            raise ValueError(
                f"actions of {embodiment!r}: expected {describe_deltas(known.deltas, known.names)}, got "
                f"{describe_deltas(tuple(deltas), known.names)}; set action_deltas: "
                f"[{', '.join(known.deltas) or NONE}] in a mapping (data.mapping, --mapping)"
            )

    def with_embodiments(self, stats: Mapping[str, ActionStats]) -> "ActionNormalizer":
        """Append new embodiments to the table; indices and scales of the old ones stay."""
        for name in stats.keys() & self.stats.keys():
            self.check_names(name, stats[name].names)
            self.check_space(name, stats[name].action_space)
            self.check_deltas(name, stats[name].deltas)
        new = {name: entry for name, entry in stats.items() if name not in self.stats}
        return ActionNormalizer(self.stats | new, self.width)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values that `from_dict` reads back exactly."""
        table = [{"embodiment": name, **asdict(entry)} for name, entry in self.stats.items()]
        return {"width": self.width, "embodiments": table}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ActionNormalizer":
        """Rebuild the normalizer from `to_dict`."""
        table = values.get("embodiments")
        if not isinstance(table, list) or not table:
            raise ValueError(f"actions: embodiments is {shorten(table)}, expected a list of objects")
        width = check_type(values.get("width"), int, "actions: width")
        check_range(width, 1, MAX_WIDTH, "actions: width")
        stats = dict(_stats_from(entry, f"embodiments[{number}]") for number, entry in enumerate(table))
        if len(stats) != len(table):
            raise ValueError("actions: two embodiments have one name")
        return cls(stats, width)

    def _stats_of(self, embodiment: str) -> ActionStats:
        if embodiment not in self.stats:
            raise ValueError(
                f"unknown embodiment {embodiment!r}; statistics exist for {', '.join(self.embodiments)}. If "
                "it is one of these under another name, say so in a mapping (--mapping): embodiment: "
                f"{self.embodiments[0]}"
            )
        return self.stats[embodiment]

    def _bounds_of(self, embodiment: str) -> tuple[np.ndarray, np.ndarray]:
        self._stats_of(embodiment)
        return self._bounds[embodiment]

    def _scale(self, robot_actions: np.ndarray, embodiment: str, names: Sequence[str] | None) -> np.ndarray:
        known = self._stats_of(embodiment).names
        if names is not None:
            self.check_names(embodiment, names)
        if robot_actions.shape[-1] != len(known):
            raise ValueError(
                f"actions of {embodiment!r}: expected {len(known)} dimensions ({', '.join(known)}), "
                f"got {robot_actions.shape[-1]}"
            )
        if not np.isfinite(robot_actions).all():
            raise ValueError(f"actions of {embodiment!r} hold values that are not finite")
        low, high = self._bounds[embodiment]
        moving = high > low
        span = np.where(moving, high - low, 1)
        return np.where(moving, (robot_actions - low) / span * 2 - 1, 0.0)


def _stats_from(entry: Any, where: str) -> tuple[str, ActionStats]:
    """The name of an embodiment and its statistics."""
    values = dict(check_object(entry, where))
    name = check_type(values.pop("embodiment", None), str, f"{where}: embodiment")
    return name, build(ActionStats, values, f"{where} ({name})")


def _check_spaces(stats: Mapping[str, ActionStats]) -> None:
    """Refuse a model in which robots with the same column names have different kinds of actions."""
    spaces: dict[tuple[str, ...], tuple[str, str]] = {}
    for name, entry in stats.items():
        if not entry.action_space:
            continue
        first, space = spaces.setdefault(entry.names, (name, entry.action_space))
        if space != entry.action_space:
            raise ValueError(
                f"one model cannot take both: actions of {first!r} are {describe_action_space(space)}, those "
                f"of {name!r} {describe_action_space(entry.action_space)}; set data.action_space={space}"
            )


def _is_constant(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return high - low <= CONSTANT_RANGE * np.maximum(1, np.maximum(abs(low), abs(high)))
