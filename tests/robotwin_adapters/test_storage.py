import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from robotwin_adapters import storage
from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.robotwin.dataset import RobotwinDataset, find_robotwin
from robotwin_adapters.storage import FolderFiles, ZipFiles, errors_name


def make_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("root", ["", "aloha-agilex_clean_50/", "outer/aloha-agilex_clean_50/"])
def test_an_archive_reads_like_its_folder(tmp_path: Path, robotwin_files, method: int, root: str) -> None:
    folder = tmp_path / "place_a2b_left" / "aloha-agilex_clean_50"
    for number in (2, 10):
        robotwin_files.write_legacy(folder / "data" / f"episode{number}.hdf5", count=4)
    (folder / "instructions").mkdir()
    (folder / "instructions" / "episode2.json").write_text('{"seen": ["put it left"], "unseen": []}')
    members = {f"{root}{name}": (folder / name).read_bytes() for name in FolderFiles(folder).names()}
    path = make_zip(tmp_path / "place_a2b_left" / "aloha-agilex_clean_50.zip", members, method)
    packed, plain = RobotwinDataset(path), RobotwinDataset(folder)
    assert find_robotwin(path)
    assert len(packed) == len(plain) == 2
    assert packed.name == plain.name
    for one, other in zip(packed, plain, strict=True):
        np.testing.assert_array_equal(one.robot_actions, other.robot_actions)
        np.testing.assert_array_equal(
            one.frames["head_camera"].read(range(4)), other.frames["head_camera"].read(range(4))
        )
        assert one.uid == root + other.uid
        assert (one.embodiment, one.instructions) == (other.embodiment, other.instructions)
    assert packed[0].task == ("outer" if root.startswith("outer") else "place_a2b_left")


def test_xpolicylab_archive_tells_its_task(tmp_path: Path, robotwin_files) -> None:
    robotwin_files.write_xpolicylab(tmp_path / "episode.hdf5")
    member = "lift_pot/aloha_agilex/data/episode_0000000.hdf5"
    path = make_zip(
        tmp_path / "lift_pot" / "demo_clean.zip", {member: (tmp_path / "episode.hdf5").read_bytes()}
    )
    episode = RobotwinDataset(path)[0]
    assert (episode.task, episode.embodiment) == ("lift_pot", "aloha-agilex")
    assert set(episode.cameras) == {"head_camera", "left_camera"}


@pytest.mark.parametrize(
    "name", ["../data/episode0.hdf5", "/data/episode0.hdf5", "C:/data/episode0.hdf5", "a\\..\\b"]
)
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    path = make_zip(tmp_path / "bad.zip", {"data/episode0.hdf5": b"", name: b""})
    with pytest.raises(ValueError, match=r"bad\.zip: .*could leave the folder"):
        RobotwinDataset(path)


def test_links_encryption_and_other_compressors_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("data/episode0.hdf5")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ValueError, match="symbolic link"):
        RobotwinDataset(tmp_path / "link.zip")
    with pytest.raises(ValueError, match="stored or deflated"):
        RobotwinDataset(make_zip(tmp_path / "lzma.zip", {"data/episode0.hdf5": b"x"}, zipfile.ZIP_LZMA))
    data = bytearray(make_zip(tmp_path / "locked.zip", {"data/episode0.hdf5": b"x"}).read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "locked.zip").write_bytes(data)
    with pytest.raises(ValueError, match="encrypted"):
        RobotwinDataset(tmp_path / "locked.zip")


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        archive.writestr("data/episode0.hdf5", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("data/episode0.hdf5", b"2")
    with pytest.raises(ValueError, match="same name"):
        RobotwinDataset(tmp_path / "twice.zip")


def test_bombs_are_refused_by_what_they_declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_zip(tmp_path / "bomb.zip", {"data/episode0.hdf5": bytes(64 << 20)})
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ValueError, match="claims 67108864 bytes from"):
        RobotwinDataset(path)
    monkeypatch.setattr(storage, "MAX_MEMBERS", 2)
    many = make_zip(tmp_path / "many.zip", {f"data/episode{i}.hdf5": b"" for i in range(3)})
    with pytest.raises(ValueError, match="3 members, expected at most 2"):
        RobotwinDataset(many)


def test_a_large_member_is_refused_before_it_is_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(100_000)
    store = ZipFiles(make_zip(tmp_path / "large.zip", {"a": noise}))
    assert store.read("a", 100_000) == noise
    other = ZipFiles(make_zip(tmp_path / "larger.zip", {"a": noise}))
    with pytest.raises(ValueError, match="claims 100000 bytes, expected at most 99999"):
        other.read("a", 99_999)


@pytest.mark.parametrize("declared", [1000, 1 << 20])
def test_reading_stops_where_a_lying_header_says_or_before(tmp_path: Path, declared: int) -> None:
    path = make_zip(tmp_path / "lie.zip", {"a": bytes(16 << 20)})
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.index(signature) + offset
        data[at : at + 4] = struct.pack("<I", declared)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"lie\.zip:a: .*CRC"), errors_name(ZipFiles(path).label("a")):
        ZipFiles(path).read("a", 64 << 20)


def test_damaged_archives_name_themselves(tmp_path: Path, robotwin_files) -> None:
    robotwin_files.write_legacy(tmp_path / "e.hdf5")
    path = make_zip(tmp_path / "set.zip", {"data/episode0.hdf5": (tmp_path / "e.hdf5").read_bytes()})
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(ValueError, match=r"set\.zip: .*zip"):
        RobotwinDataset(path)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0x10
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match=r"set\.zip:data/episode0\.hdf5: "):
        RobotwinDataset(path)[0]


def test_unpacked_members_are_kept_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CACHE_BYTES", 250_000)
    monkeypatch.setattr(storage, "_CACHE", cache := storage._MemberCache())
    rng = np.random.default_rng(0)
    store = ZipFiles(make_zip(tmp_path / "set.zip", {name: rng.bytes(100_000) for name in "abcd"}))
    for name in "abcd":
        store.read(name, 1 << 20)
    assert [name for _, _, name in cache._kept] == ["c", "d"]


def test_a_link_to_a_folder_above_is_not_followed_and_a_linked_set_is(tmp_path: Path) -> None:
    inside, elsewhere = tmp_path / "set", tmp_path / "elsewhere"
    for folder in (inside, elsewhere):
        folder.mkdir()
        (folder / "episode0.hdf5").write_bytes(b"x")
    (inside / "up").symlink_to(tmp_path)
    (inside / "root").symlink_to("/")
    (inside / "again").symlink_to(inside)
    (inside / "linked").symlink_to(elsewhere)
    assert list(FolderFiles(inside).names()) == ["episode0.hdf5", "linked/episode0.hdf5"]


def test_a_tree_that_is_no_dataset_is_refused_before_it_is_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (tmp_path / f"file{number}").touch()
    monkeypatch.setattr(storage, "MAX_MEMBERS", 4)
    with pytest.raises(ValueError, match="more than 4 files below it"):
        list(FolderFiles(tmp_path).names())


@pytest.mark.timeout(20)
def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "episode0.hdf5")
    assert list(FolderFiles(tmp_path).names()) == []
    with pytest.raises(ValueError, match="no supported dataset"):
        open_dataset(tmp_path)
