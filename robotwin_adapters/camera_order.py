"""Sorts the cameras of an episode: the overview first, wrist cameras last.

The first camera is the default (`worldmodel.data.cameras`).
"""

from collections.abc import Iterable

# Suffixes of the names of overview cameras in public datasets, best first.
OVERVIEW_NAMES = (
    "cam_high",
    "head_camera",
    "cam_head",
    "head",
    "head_color",
    "ego_view",
    "top",
    "overhead",
    "front",
    "image",
)
UNKNOWN = len(OVERVIEW_NAMES)  # rank of a name that matches none


def overview_first(names: Iterable[str]) -> list[str]:
    """Sort cameras so that those showing the whole scene come first; ties keep the given order."""
    return sorted(names, key=_rank)


def _rank(name: str) -> tuple[bool, bool, int]:
    small = name.lower()
    rides_on_hand = any(word in small for word in ("wrist", "hand"))
    is_one_side = any(word in small for word in ("left", "right"))
    ranks = [rank for rank, end in enumerate(OVERVIEW_NAMES) if small.endswith(end)]
    return rides_on_hand, is_one_side, min(ranks, default=UNKNOWN)
