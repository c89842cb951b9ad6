"""The JSON files of RoboTwin episodes: instructions, scene_info.json and our simulator's collect.json."""

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

from robotwin_adapters.storage import FileStore, Stamp, errors_name

SEEN = "seen"  # key of RoboTwin's training phrasings; the others are "unseen"
MAX_JSON_BYTES = 64 << 20


@dataclass(frozen=True)
class About:
    """Task, robot and rate of a dataset, if its files state them; RoboTwin's own files do not."""

    embodiment: str | None = None
    task: str | None = None
    fps: float | None = None


def read_about(store: FileStore, root: str, number: int) -> About:
    """Settings from collect.json, overridden by this episode's entry in scene_info.json."""
    general = _read_about(store, _inside(root, "collect.json"), "settings")
    entry = _read_about(store, _inside(root, "scene_info.json"), f"episode_{number}")
    return About(entry.embodiment or general.embodiment, entry.task or general.task, entry.fps or general.fps)


def read_instructions(store: FileStore, root: str, stem: str) -> tuple[str, ...]:
    """The phrasings of one episode; an episode may have none."""
    for folder in ("instructions", "instruction"):
        name = _inside(root, f"{folder}/{stem}.json")
        if store.exists(name):
            value = _read_json(store, name)
            with errors_name(store.label(name)):
                if isinstance(value, dict) and SEEN not in value:
                    raise ValueError(f"expected lists 'seen' and 'unseen', got keys {sorted(value)[:8]}")
                return string_list(value[SEEN] if isinstance(value, dict) else value, SEEN)
    return ()


def string_list(value: object, where: str) -> tuple[str, ...]:
    """A JSON list of strings, as a tuple."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{where}: expected a list of strings, got {str(value)[:80]!r}")
    return tuple(value)


def _read_about(store: FileStore, name: str, key: str) -> About:
    if not store.exists(name):
        return About()
    value = _read_shared_json(store, name, store.stamp(name))
    with errors_name(store.label(name)):
        if not isinstance(value, dict) or not isinstance(value.get(key, {}), dict):
            raise ValueError(f"expected an object with an object {key!r} in it, got {str(value)[:80]!r}")
        return _about(value.get(key, {}))


def _about(value: dict) -> About:
    texts = {}
    for key in ("embodiment", "task"):
        texts[key] = value.get(key)
        if texts[key] is not None and not isinstance(texts[key], str):
            raise ValueError(f"{key}: expected text, got {texts[key]!r}")
    fps = value.get("fps")
    if fps is not None and (type(fps) not in (int, float) or not math.isfinite(fps) or fps <= 0):
        raise ValueError(f"fps: expected frames per second, got {fps!r}")
    return About(**texts, fps=None if fps is None else float(fps))


# Every episode of a folder needs the same two files, and clips of many folders come in random order.
@lru_cache(maxsize=256)
def _read_shared_json(store: FileStore, name: str, stamp: Stamp) -> object:
    return _read_json(store, name)


def _read_json(store: FileStore, name: str) -> object:
    with errors_name(store.label(name)):
        return json.loads(store.read(name, MAX_JSON_BYTES).decode("utf-8"))


def _inside(root: str, name: str) -> str:
    return (PurePosixPath(root) / name).as_posix()
