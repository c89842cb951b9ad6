"""Caches the indexes of large datasets as JSON, so that later starts open no episode.

The key is a hash of every file's name, size and time, of the settings and of the format below. An index with
unreadable episodes is never cached.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from worldmodel.data.cameras import CameraChoice
from worldmodel.data.clips import ClipConfig
from worldmodel.data.decode_cache import Verify, cache_folder
from worldmodel.data.index_types import EpisodeIndex, EpisodeRecord
from worldmodel.data.normalize import ActionStats
from worldmodel.data.splits import SplitConfig
from worldmodel.files import write_text
from worldmodel.types import EpisodeSource

VERSION = 1  # increase it if the same files and settings give another index
FIELDS = tuple(field.name for field in dataclasses.fields(EpisodeRecord))


def index_key(
    sources: Sequence[EpisodeSource], config: ClipConfig, splits: SplitConfig, verify: Verify
) -> str | None:
    """The cache key of an index; None if a source cannot detect changes, or its files must be decoded."""
    stamps = [getattr(source, "stamp", "") for source in sources]
    if not all(stamps) or verify == "always":
        return None
    settings = [dataclasses.asdict(config), dataclasses.asdict(splits), verify]
    described = json.dumps([VERSION, FIELDS, stamps, settings], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()[:32]


def keep_index(key: str | None, index: EpisodeIndex) -> None:
    """Write the index if it is complete and the cache folder is writable."""
    if key is None or index.skipped:
        return
    content = {
        "records": [[_plain(getattr(record, name)) for name in FIELDS] for record in index.records],
        "stats": {name: dataclasses.asdict(entry) for name, entry in index.stats.items()},
        "too_short": index.too_short,
        "cameras": [[choice.name, choice.reason, count] for choice, count in index.cameras.items()],
        "uids": sorted(index.uids),
    }
    with contextlib.suppress(OSError):
        write_text(cache_folder() / "index" / f"{key}.json", json.dumps(content))


def kept_index(key: str | None, sources: Sequence[EpisodeSource], config: ClipConfig) -> EpisodeIndex | None:
    """The cached index under this key; None if it does not exist or is damaged."""
    if key is None:
        return None
    try:
        content = json.loads((cache_folder() / "index" / f"{key}.json").read_text("utf-8"))
        return EpisodeIndex(
            tuple(sources),
            config,
            tuple(_record(values) for values in content["records"]),
            {name: _stats(entry) for name, entry in content["stats"].items()},
            (),
            content["too_short"],
            {CameraChoice(name, reason): count for name, reason, count in content["cameras"]},
            frozenset(content["uids"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _plain(value: Any) -> Any:
    return [value.start, value.stop, value.step] if isinstance(value, range) else value


def _record(values: Sequence[Any]) -> EpisodeRecord:
    fields = dict(zip(FIELDS, values, strict=True))
    fields["starts"], fields["size"] = range(*fields["starts"]), tuple(fields["size"])
    return EpisodeRecord(**fields)


def _stats(entry: dict[str, Any]) -> ActionStats:
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}
    return ActionStats(**values)
