"""Groups action dimensions by their names or by the user's choice.

Rules, in this order. The first that gives at least two groups decides.

    1. both `left` and `right` in the names   one group per side; other body parts are separate groups
    2. different parts of the robot           position, rotation, joints, gripper, base, ...
    3. uninformative names                    one group per column, or blocks of columns if there are many
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SIDES = ("left", "right")
PART_WORDS = {  # part -> words that name it
    "gripper": {"gripper", "grippers", "grip", "jaw", "claw"},
    "hand": {"hand", "finger", "fingers", "thumb"},
    "base": {"base"},
}
POSITION_WORDS = {"x", "y", "z", "dx", "dy", "dz", "px", "py", "pz", "vx", "vy", "vz"}
ROTATION_WORDS = {
    *("roll", "pitch", "yaw", "droll", "dpitch", "dyaw", "rx", "ry", "rz", "drx", "dry", "drz"),
    *("qw", "qx", "qy", "qz", "wx", "wy", "wz", "theta"),
}
# Words that turn x, y, z into angles, and words that do not identify a part.
TURNING_WORDS = {"rot", "rotation", "rotvec", "orientation", "euler", "quat", "quaternion", "angle", "axis"}
PLAIN_WORDS = {
    *("action", "arm", "ee", "eef", "end", "effector", "tcp", "tool", "cartesian", "pose", "pos"),
    *("position", "world", "delta", "target", "command", "cmd", "vel", "velocity"),
}
MAX_SINGLE_COLUMNS = 16  # more dimensions with uninformative names are shown in blocks
NUM_BLOCKS = 8


@dataclass(frozen=True)
class ActionGroups:
    """Group name -> action dimensions, and how they were found."""

    dimensions: Mapping[str, tuple[int, ...]]
    reason: str  # reason for the grouping, for the page


def group_actions(names: Sequence[str]) -> ActionGroups:
    """Group action dimensions by the rules above."""
    words = [_words(name) for name in names]
    if all(any(side in entry for entry in words) for side in SIDES):
        found = _collected(_side(entry) or _part(entry) for entry in words)
        return ActionGroups(found, "the names say left and right")
    found = _collected(_part(entry) for entry in words)
    if len(found) > 1:
        return ActionGroups(found, "the names tell the parts of the robot")
    hint = 'name groups yourself with --groups "arm=0-5,gripper=6"'
    if len(names) <= MAX_SINGLE_COLUMNS:
        single = {_unique(name, index, names): (index,) for index, name in enumerate(names)}
        return ActionGroups(single, f"the names tell no parts, so every column stands by itself; {hint}")
    edges = [round(block * len(names) / NUM_BLOCKS) for block in range(NUM_BLOCKS + 1)]
    blocks = {f"columns {first}-{end - 1}": tuple(range(first, end)) for first, end in pairwise(edges)}
    return ActionGroups(blocks, f"the names tell no parts, so columns are taken in blocks; {hint}")


def parse_groups(text: str, names: Sequence[str]) -> ActionGroups:
    """Groups from "arm=0-5,gripper=6"; "arm=0-2,5,gripper=6" puts 0, 1, 2 and 5 into the first."""
    found: dict[str, list[int]] = {}
    current = ""
    for entry in text.split(","):
        name, equals, columns = entry.rpartition("=")
        current = name.strip() if equals else current
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", columns)
        if not current or not match or (equals and current in found):
            raise ValueError(
                f'groups are given as "arm=0-5,gripper=6", each name once; cannot read {entry!r} in {text!r}'
            )
        found.setdefault(current, []).extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    _check_columns(found, names, text)
    return ActionGroups({name: tuple(columns) for name, columns in found.items()}, "as given by --groups")


def _check_columns(found: Mapping[str, Sequence[int]], names: Sequence[str], text: str) -> None:
    columns = [column for group in found.values() for column in group]
    outside = [column for column in columns if column >= len(names)]
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if not (outside or twice) and all(found.values()):
        return
    wrong = f"columns {outside} do not exist" if outside else f"columns {twice} are named twice"
    if not (outside or twice):
        wrong = "a range runs backwards"
    known = ", ".join(f"{index} {name}" for index, name in enumerate(names))
    raise ValueError(f"groups {text!r}: {wrong}. The actions have {len(names)} dimensions: {known}")


def _words(name: str) -> list[str]:
    """Split a name into lower-case words, digits apart: "left_joint1" -> left, joint, 1.

    "eefPos.x" -> eef, pos, x.
    """
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return re.findall(r"[a-z]+|\d+", apart.lower())


def _side(words: Sequence[str]) -> str:
    return next((side for side in SIDES if side in words), "")


def _part(words: Sequence[str]) -> str:
    """The part of the robot that a name refers to."""
    letters = [word for word in words if not word.isdecimal() and word not in SIDES]
    telling = [word for word in letters if word not in PLAIN_WORDS | TURNING_WORDS]
    for part, meant in PART_WORDS.items():
        if meant & set(letters):
            return part
    if telling and set(telling) <= POSITION_WORDS:
        return "rotation" if TURNING_WORDS & set(letters) else "position"
    if telling and set(telling) <= ROTATION_WORDS:
        return "rotation"
    # "joint_3" is one of several joints; "elbow" without a number is a joint as well.
    has_number = any(word.isdecimal() for word in words)
    return " ".join(letters) if has_number and letters else "joints"


def _collected(parts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for index, part in enumerate(parts):
        found[part] = (*found.get(part, ()), index)
    return found


def _unique(name: str, index: int, names: Sequence[str]) -> str:
    return name if names.count(name) == 1 else f"column {index}"
