"""Lists of names that never end: HDF5 itself would follow them for ever."""

import struct
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from robotwin_adapters.hdf5_names import ENTRY, ROOT_ENTRY, check_names
from robotwin_adapters.hdf5_tree import hdf5_kind, names_in, open_hdf5
from robotwin_adapters.open_dataset import open_dataset


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "episode0.hdf5"
    with h5py.File(path, "w") as new:
        for group in range(12):
            for name in ("arm", "gripper"):
                new[f"group{group}/inner/{name}"] = np.arange(3.0)
    return path


def heaps(data: bytes) -> list[int]:
    found, at = [], data.find(b"HEAP\0\0\0\0")
    while at >= 0:
        found.append(at)
        at = data.find(b"HEAP\0\0\0\0", at + 1)
    return found


def make_circle(data: bytes, heap: int) -> bytes:
    """The first free block of this heap becomes its own successor."""
    size, free, start = struct.unpack_from("<QQQ", data, heap + 8)
    free = free if free + 16 <= size else 0
    changed = bytearray(data)
    struct.pack_into("<Q", changed, heap + 16, free)
    struct.pack_into("<Q", changed, start + free, free)
    return bytes(changed)


def test_good_files_pass(file: Path) -> None:
    check_names(file.read_bytes())
    with open_hdf5(file) as opened:
        assert len(opened) == 12


def test_a_circle_in_any_group_is_refused(file: Path) -> None:
    data = file.read_bytes()
    found = heaps(data)
    assert len(found) == 25  # of the root, 12 groups and 12 inner ones
    for heap in found:
        with pytest.raises(ValueError, match=f"the list of names at byte {heap} never ends"):
            check_names(make_circle(data, heap))
    file.write_bytes(make_circle(data, found[0]))
    with pytest.raises(ValueError, match="never ends"):
        open_hdf5(file)


def test_a_circle_in_a_heap_of_absurd_size_is_refused_at_once(file: Path) -> None:
    # Found by mutation (libero 40006812, isaac 40004709): the damaged size was the bound of the search.
    data = bytearray(make_circle(file.read_bytes(), heaps(file.read_bytes())[0]))
    struct.pack_into("<Q", data, heaps(bytes(data))[0] + 8, 1 << 62)
    began = time.process_time()
    with pytest.raises(ValueError, match="never ends"):
        check_names(bytes(data))
    assert time.process_time() - began < 1


def test_what_is_no_such_file_is_left_to_hdf5(file: Path) -> None:
    data = file.read_bytes()
    root = ENTRY.unpack_from(data, ROOT_ENTRY)
    for other in (b"", b"\x89HDF\r\n\x1a\n", data[:60], data[: root[-1] + 9], data[:-100], bytes(500)):
        check_names(other)


def test_names_that_are_no_text_are_refused_by_every_reader(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"group3\0", b"gro\xffp3\0"))
    with open_hdf5(file) as opened, pytest.raises(ValueError, match=r"expected names in UTF-8, got b'gro"):
        names_in(opened)
    assert hdf5_kind(file) == ""
    with pytest.raises(ValueError, match="episode0"):
        open_dataset(file.parent)[0]


def test_a_group_that_holds_itself_is_entered_once(tmp_path: Path) -> None:
    path = tmp_path / "episode_0.hdf5"
    with h5py.File(path, "w") as new:
        new["action"] = np.zeros((3, 2), np.float32)
        for number in range(40):
            new[f"observations/again{number}"] = new.require_group("observations")
        new["observations/qpos"] = np.zeros((3, 2), np.float32)
    started = time.process_time()
    with pytest.raises(ValueError, match="episode_0"):  # no pictures
        open_dataset(tmp_path)[0]
    assert time.process_time() - started < 5
