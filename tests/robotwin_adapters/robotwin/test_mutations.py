"""Damaged files through every RoboTwin reader: the same data, or one ValueError that names the file.

A file without checksums can hide damage in two places, and the tests allow exactly these: pixels that still
decode, and numbers that stand in the file only once (row 0 of the states in format B, any row in format C).
"""

import collections
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from robotwin_adapters.robotwin.dataset import RobotwinDataset
from robotwin_adapters.robotwin.write import CameraRecord, RobotwinEpisode, write_robotwin_episode
from worldmodel.types import Episode

MAX_SECONDS = 10.0  # of one read, with room for a busy machine; a hang would be far longer
CAMERAS = ("head_camera",)


def flip_bits(data: bytearray, rng: np.random.Generator) -> None:
    # Half of the damage goes to the first bytes, where formats keep their structure.
    end = len(data) if rng.random() < 0.5 else min(len(data), 6144)
    for _ in range(rng.integers(1, 5)):
        data[rng.integers(end)] ^= 1 << rng.integers(8)


def overwrite(data: bytearray, rng: np.random.Generator) -> None:
    start = rng.integers(len(data))
    data[start : start + rng.integers(1, 64)] = rng.bytes(int(rng.integers(1, 64)))


def truncate(data: bytearray, rng: np.random.Generator) -> None:
    del data[rng.integers(len(data)) :]


def blank(data: bytearray, rng: np.random.Generator) -> None:
    start, size = int(rng.integers(len(data))), int(rng.integers(1, 512))
    data[start : start + size] = bytes(len(data[start : start + size]))


def damage_bytes(path: Path, rng: np.random.Generator) -> None:
    data = bytearray(path.read_bytes())
    mutation: Callable = (flip_bits, flip_bits, overwrite, truncate, blank)[rng.integers(5)]
    mutation(data, rng)
    path.write_bytes(data)


def drop_key(path: Path, rng: np.random.Generator) -> None:
    names: list[str] = []
    with h5py.File(path, "a") as file:
        file.visit(names.append)
        del file[names[rng.integers(len(names))]]


def damage_hdf5(path: Path, rng: np.random.Generator) -> None:
    (drop_key if rng.random() < 0.2 else damage_bytes)(path, rng)


def write_ours(folder: Path, files) -> Path:
    cameras = {"head_camera": CameraRecord(files.draw_frames(8), np.ones((8, 3, 3)))}
    return write_robotwin_episode(folder, 0, RobotwinEpisode(**files.draw_joints(8), cameras=cameras))


def write_legacy(folder: Path, files) -> Path:
    files.write_legacy(folder / "data" / "episode0.hdf5", cameras=CAMERAS)
    return folder / "data" / "episode0.hdf5"


def write_xpolicylab(folder: Path, files) -> Path:
    files.write_xpolicylab(folder / "data" / "episode_0000000.hdf5", standard=lambda i: i > 3)
    return folder / "data" / "episode_0000000.hdf5"


def write_v1(folder: Path, files) -> Path:
    files.write_v1(folder / "episode0", count=4)
    return folder / "episode0" / "2.pkl"


def write_zip(folder: Path, files) -> Path:
    source = write_legacy(folder / "plain", files)
    with zipfile.ZipFile(folder / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(source, "set/data/episode0.hdf5")
        archive.writestr("set/instructions/episode0.json", '{"seen": ["put it left"], "unseen": []}')
    return folder / "set.zip"


READERS = {
    "ours": (write_ours, damage_hdf5),
    "legacy": (write_legacy, damage_hdf5),
    "xpolicylab": (write_xpolicylab, damage_hdf5),
    "v1": (write_v1, damage_bytes),
    "zip": (write_zip, damage_bytes),
}


def try_load(target: Path, named: str) -> tuple[Episode, np.ndarray] | None:
    """What the reader makes of the file, or None when it refused by name; any other exception passes."""
    try:
        return load(target)
    except ValueError as error:
        message = str(error)
    assert named in message, message
    return None


def load(target: Path) -> tuple[Episode, np.ndarray]:
    episode = RobotwinDataset(target, cameras=CAMERAS)[0]
    return episode, episode.frames["head_camera"].read(range(episode.num_frames))


def differing_rows(episode: Episode, truth: Episode) -> set[int]:
    """Rows whose numbers are not the true ones; -1 stands for numbers of another shape."""
    if episode.robot_actions.shape != truth.robot_actions.shape or episode.action_names != truth.action_names:
        return {-1}
    states = (episode.robot_states != truth.robot_states).any(1)
    actions = (episode.robot_actions != truth.robot_actions).any(1)
    return {int(row) for row in np.flatnonzero(states)} | {int(row) + 1 for row in np.flatnonzero(actions)}


def judge(kind: str, target: Path, truth: tuple[Episode, np.ndarray]) -> str:
    """same, refused, pixels or numbers."""
    if (loaded := try_load(target, str(target))) is None:
        return "refused"
    episode, frames = loaded
    may_differ = {"xpolicylab": {0}, "v1": {2}}.get(kind, set())
    rows = differing_rows(episode, truth[0])
    assert rows <= may_differ, f"wrong numbers in rows {rows}"
    if episode.fps != truth[0].fps:
        assert kind == "xpolicylab", episode.fps
        assert any("physics steps" in note for note in episode.notes)
    if rows or episode.fps != truth[0].fps:
        return "numbers"
    is_same = np.array_equal(frames, truth[1])
    assert is_same or kind in ("legacy", "xpolicylab", "v1"), "wrong pixels"
    return "same" if is_same else "pixels"


def run(kind: str, folder: Path, files, count: int, seed: int) -> collections.Counter:
    write, damage = READERS[kind]
    path = write(folder, files)
    target = path if path.suffix == ".zip" else folder
    whole, truth = path.read_bytes(), load(target)
    verdicts: collections.Counter = collections.Counter()
    for number in range(count):
        path.write_bytes(whole)
        damage(path, np.random.default_rng([seed, number]))
        started = time.monotonic()
        try:
            verdicts[judge(kind, target, truth)] += 1
        except Exception as error:
            raise AssertionError(f"{kind}, seed {seed}, mutation {number}: {error!r}") from error
        assert time.monotonic() - started < MAX_SECONDS, (kind, number)
    return verdicts


@pytest.mark.parametrize("kind", READERS)
def test_damage_is_refused_or_harmless(tmp_path: Path, robotwin_files, kind: str) -> None:
    verdicts = run(kind, tmp_path, robotwin_files, 80, seed=0)
    assert verdicts["refused"] >= 20, verdicts
    assert verdicts["numbers"] <= 4, verdicts


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_much_damage_is_refused_or_harmless(tmp_path: Path, robotwin_files, kind: str) -> None:
    verdicts = run(kind, tmp_path, robotwin_files, 500, seed=1)
    print(kind, dict(verdicts))
    assert sum(verdicts.values()) == 500
    assert verdicts["numbers"] <= 15, verdicts


@pytest.mark.parametrize("name", ["instructions/episode0.json", "scene_info.json", "collect.json"])
def test_damaged_side_files_are_refused_or_change_only_their_words(
    tmp_path: Path, robotwin_files, name: str
) -> None:
    path = tmp_path / name
    write_legacy(tmp_path, robotwin_files)
    path.parent.mkdir(exist_ok=True)
    whole = {
        "instructions/episode0.json": b'{"seen": ["put it left", "move it"], "unseen": ["left"]}',
        "scene_info.json": b'{"episode_0": {"task": "babble", "embodiment": "finch"}}',
        "collect.json": b'{"settings": {"task": "babble", "embodiment": "finch", "fps": 20.0}}',
    }[name]
    truth = load(tmp_path)
    for number in range(200):
        data = bytearray(whole)
        (flip_bits, overwrite, truncate)[number % 3](data, np.random.default_rng(number))
        path.write_bytes(data)
        if (loaded := try_load(tmp_path, path.name)) is not None:
            assert not differing_rows(loaded[0], truth[0])
            assert np.array_equal(loaded[1], truth[1])
            assert loaded[0].fps > 0
