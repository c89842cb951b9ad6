"""Robot and task from folder names.

The hub, the simulator and XPolicyLab spell the same robot differently.
"""

import re
from collections.abc import Sequence

EMBODIMENTS = {  # beginning of a folder name, in small letters with underscores -> simulator name
    "aloha_agilex": "aloha-agilex",
    "arx_x5": "ARX-X5",
    "franka": "franka-panda",
    "piper": "piper",
    "ur5": "ur5-wsg",
}
V1_FOLDER = re.compile(r"(?P<task>.+?)_(Large_)?(D435|L515)_pkl", re.IGNORECASE)
V1_EMBODIMENT = "aloha-agilex"


def embodiment_from(parts: Sequence[str]) -> str | None:
    """The robot named by the innermost folder that names one."""
    for part in reversed(parts):
        plain = re.sub(r"[^a-z0-9]+", "_", part.lower())
        for prefix, name in EMBODIMENTS.items():
            if plain == prefix or plain.startswith(f"{prefix}_"):
                return name
    return None


def task_from(parts: Sequence[str]) -> str:
    """The parent folder in <task>/<set>.

    If a set was unpacked into a folder of its own name, both count as one.
    """
    if not parts:
        return ""
    if match := V1_FOLDER.fullmatch(parts[-1]):
        return match["task"]
    above = list(parts[:-1])
    while above and above[-1] == parts[-1]:
        above.pop()
    return above[-1] if above else ""
