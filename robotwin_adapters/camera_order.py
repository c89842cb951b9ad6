"""The order in which readers list the cameras of an episode: the overview first, wrists last.

The first camera is the one used where none is named (`worldmodel.data.cameras`).
"""

from collections.abc import Iterable

# Ends of the names of overview cameras in public sets, best first.
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
UNKNOWN = len(OVERVIEW_NAMES)  # rank of a name that says nothing


def overview_first(names: Iterable[str]) -> list[str]:
    """The cameras, those that show the whole scene first; equals stay in the given order."""
    return sorted(names, key=_rank)


def _rank(name: str) -> tuple[bool, bool, int]:
    small = name.lower()
    rides_on_hand = any(word in small for word in ("wrist", "hand"))
    is_one_side = any(word in small for word in ("left", "right"))
    ranks = [rank for rank, end in enumerate(OVERVIEW_NAMES) if small.endswith(end)]
    return rides_on_hand, is_one_side, min(ranks, default=UNKNOWN)
