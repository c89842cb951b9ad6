"""RLDS datasets as TensorFlow Datasets writes them (Open X-Embodiment), read from TFRecord shards alone.

A record is an episode: `steps/...` holds one value per step. The action of step t was applied at observation
t and leads to observation t + 1; the action of the last step is unused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from robotwin_adapters.arrays.assemble import ArrayDataset, NamedArrays, build_episode, first_present
from robotwin_adapters.arrays.frames import ArrayFrames
from robotwin_adapters.arrays.mapping import KeyMapping
from robotwin_adapters.arrays.pictures import NOT_RGB, decode_picture, looks_like_encoded
from robotwin_adapters.arrays.tfrecord import Feature, Span, find_records, parse_example, read_record
from robotwin_adapters.hdf5_tree import stamp_of
from robotwin_adapters.lerobot.meta import read_json
from robotwin_adapters.storage import Stamp, errors_name, is_regular
from worldmodel.checked import check_range
from worldmodel.types import Episode

INFO = "dataset_info.json"
MAX_EPISODES = 10_000_000  # largest number of episodes that a shard may declare
SHARD = re.compile(r"(?P<name>.+)-(?P<split>[^-]+)\.tfrecord-(?P<shard>\d{5})-of-(?P<total>\d{5})")
STEPS = "steps/"
CACHED_RECORDS = 4  # parsed records kept per process
ASSUMED_FPS = 10.0
FPS_NOTE = f"no file names a rate: {ASSUMED_FPS:g} frames per second assumed (mapping: fps)"
# Control rates of public datasets, which their files do not store; a dataset's name may be longer than these.
KNOWN_FPS = {
    "bridge": 5.0,
    "droid": 15.0,
    "fractal20220817": 3.0,
    "berkeley_autolab_ur5": 5.0,
    "language_table": 10.0,
    "libero": 20.0,
    "taco_play": 15.0,
    "viola": 20.0,
}
ACTIONS = (
    ("action",),
    ("action/world_vector", "action/rotation_delta", "action/gripper_closedness_action"),
    ("action/world_vector", "action/rotation_delta", "action/open_gripper"),
)
STATES = (
    ("observation/state",),
    ("observation/proprio",),
    ("observation/cartesian_position", "observation/gripper_position"),  # DROID
)
POSE = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")  # names of 7 columns
POSE_CHANGES = ("dx", "dy", "dz", "droll", "dpitch", "dyaw", "gripper")  # names of a rotation_delta action
NO_MOTION = ("terminat", "done", "mode")  # words in the names of action parts that are not motion
TEXTS = ("language_instruction", "observation/natural_language_instruction")


def is_rlds(path: Path, mapping: str | Path | None = None) -> bool:
    """Whether the folder holds TFRecord shards with episodes; other files are optional."""
    shards = _shards(path) if path.is_dir() else []
    if not shards:
        return False
    first = str(path / shards[0].file)
    try:
        span = next(iter(find_records(first)), None)
        features = parse_example(read_record(first, span)) if span else {STEPS: []}
    except ValueError:  # damaged; the error is reported when an episode is opened
        return True
    return any(key.startswith(STEPS) for key in features)


class RldsDataset(ArrayDataset):
    """The episodes of all shards in a folder."""

    format = "RLDS TFRecord"

    def _find(self) -> list[tuple["Shard", int]]:
        shards = _shards(self.root)
        self.name = shards[0].name
        counts = _declared(self.root / INFO)
        return [(shard, number) for shard in shards for number in range(_count(self.root, shard, counts))]

    def __getitem__(self, index: int) -> Episode:
        shard, number = self.episodes[index]
        path = self.root / shard.file
        with errors_name(str(path)):
            spans = _spans(str(path), stamp_of(path))
            if number >= len(spans):
                raise ValueError(f"{len(spans)} episodes, {INFO} says more than {number}")
            record = Record(str(path), stamp_of(path), spans[number])
            arrays = self._arrays(record, f"{shard.split}/{shard.number:05d}_{number:05d}")
            return build_episode(arrays, self.mapping.over(self._defaults(arrays)), self.camera)

    def _arrays(self, record: "Record", uid: str) -> NamedArrays:
        features = record.features()
        steps = {key.removeprefix(STEPS): value for key, value in features.items() if key.startswith(STEPS)}
        pictures = {key: value for key, value in sorted(steps.items()) if _are_pictures(key, value)}
        length = max(map(len, pictures.values()), default=len(steps.get("is_first", ())))
        numbers = {
            key: partial(value.reshape, length, -1)
            for key, value in steps.items()
            if isinstance(value, ndarray) and length and len(value) and len(value) % length == 0
        }
        fps_note = () if self.mapping.fps or self._fps() else (FPS_NOTE,)
        return NamedArrays(
            uid=uid,
            source=f"{record.path}:{uid}",
            numbers=numbers,
            pictures={key: partial(self._frames, record, key, len(pictures[key])) for key in pictures},
            instructions=_texts(steps, (self.mapping.text_key, *TEXTS)),
            notes=(*_blank_notes(pictures), *fps_note, *_parts_note(numbers)),
        )

    def _frames(self, record: "Record", key: str, length: int) -> ArrayFrames:
        source = RecordPictures(record, f"{STEPS}{key}")
        return ArrayFrames(
            source=source,
            length=length,
            size=source.load(np.zeros(1, np.int64)).shape[1:3],
            swapped_colors=bool(self.mapping.swapped_colors),
            upside_down=bool(self.mapping.upside_down),
        )

    def _defaults(self, arrays: NamedArrays) -> KeyMapping:
        actions = first_present(ACTIONS, arrays.numbers) or _parts("action/", arrays.numbers)
        names = POSE_CHANGES if ACTIONS[1][1] in actions else POSE
        width = sum(arrays.numbers[key]().shape[1] for key in actions)
        return KeyMapping(
            action_keys=actions,
            state_keys=first_present(STATES, arrays.numbers)
            or _parts("observation/proprio/", arrays.numbers),
            action_names=names if width == len(names) else (),
            fps=self._fps() or ASSUMED_FPS,
            embodiment=self.name,
        )

    def _fps(self) -> float:
        return next((fps for word, fps in KNOWN_FPS.items() if self.name.startswith(word)), 0.0)


@dataclass(frozen=True)
class Record:
    """One episode in a shard."""

    path: str
    stamp: Stamp
    span: Span

    def features(self) -> dict[str, Feature]:
        """Every value of the episode."""
        if stamp_of(self.path) != self.stamp:
            raise ValueError(f"{self.path}: the file changed since the episode was opened")
        return _features(self.path, self.stamp, self.span)


@dataclass(frozen=True)
class RecordPictures:
    """The encoded pictures of one camera of an episode."""

    record: Record
    key: str

    @property
    def path(self) -> str:
        """The shard file."""
        return self.record.path

    def load(self, rows: Int64[ndarray, " n"]) -> UInt8[ndarray, "n H W 3"]:
        """The pictures at these rows."""
        encoded = self.record.features()[self.key]
        size = None
        pictures = []
        for row in rows:
            pictures.append(decode_picture(f"{self.key}, frame {row}", encoded[row], size))
            size = pictures[-1].shape[:2]
        return np.stack(pictures)


@dataclass(frozen=True)
class Shard:
    """A file of a split."""

    file: str
    name: str  # of the dataset
    split: str
    number: int


# Clips of one episode are often read in a row, and a record can only be read as a whole.
@lru_cache(maxsize=CACHED_RECORDS)
def _features(path: str, stamp: Stamp, span: Span) -> dict[str, Feature]:
    return parse_example(read_record(path, span))


@lru_cache(maxsize=4096)
def _spans(path: str, stamp: Stamp) -> tuple[Span, ...]:
    return tuple(find_records(path))


def _shards(root: Path) -> list[Shard]:
    names = sorted(entry.name for entry in root.iterdir() if is_regular(entry))
    found = ((name, SHARD.fullmatch(name)) for name in names)
    return [Shard(name, m["name"], m["split"], int(m["shard"])) for name, m in found if m]


def _declared(path: Path) -> dict[tuple[str, int], int]:
    """(split, shard) -> number of episodes declared in dataset_info.json."""
    if not path.is_file():
        return {}
    try:
        splits = read_json(path).get("splits", [])
        counts = {
            (split["name"], number): int(count)
            for split in splits
            for number, count in enumerate(split.get("shardLengths", []))
        }
        for count in counts.values():
            check_range(count, 0, MAX_EPISODES, "a shard's number of episodes")
        return counts
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path}: splits and shardLengths are not as expected ({error})") from error


def _count(root: Path, shard: Shard, declared: Mapping[tuple[str, int], int]) -> int:
    """Episodes of a shard: the declared number (verified when one is opened), or counted now."""
    known = declared.get((shard.split, shard.number))
    path = root / shard.file
    return known if known is not None else len(_spans(str(path), stamp_of(path)))


def _are_pictures(key: str, value: Feature) -> bool:
    is_encoded = isinstance(value, list) and bool(value) and looks_like_encoded(value[0])
    return is_encoded and not any(word in key.lower() for word in NOT_RGB)


def _texts(steps: Mapping[str, Feature], keys: tuple[str, ...]) -> tuple[str, ...]:
    values = next((steps[key] for key in keys if isinstance(steps.get(key), list)), [])
    texts = [value.decode("utf-8", "replace").strip() for value in values if isinstance(value, bytes)]
    return tuple(dict.fromkeys(text for text in texts if text))


def _parts(prefix: str, numbers: Mapping[str, object]) -> tuple[str, ...]:
    """All motion keys below a prefix, sorted by name; used for action dictionaries of unlisted datasets."""
    below = (key for key in sorted(numbers) if key.startswith(prefix))
    return tuple(key for key in below if not any(word in key for word in NO_MOTION))


def _parts_note(numbers: Mapping[str, object]) -> list[str]:
    parts = () if first_present(ACTIONS, numbers) else _parts("action/", numbers)
    return [f"the action is {', '.join(parts)} side by side (mapping: action_keys)"] if parts else []


def _blank_notes(pictures: Mapping[str, Feature]) -> list[str]:
    """Notes on cameras that begin black: some datasets pad missing cameras with black frames."""
    firsts = {key: decode_picture(f"{key}, frame 0", value[0]) for key, value in pictures.items()}
    black = (key.rsplit("/", 1)[-1] for key, first in firsts.items() if not first.any())
    return [f"camera {name} begins black" for name in black]
