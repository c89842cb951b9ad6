"""Replay buffers in Zarr v2: Push-T's and UMI's arrays, packed in several ways, in folders and zips."""

import json
import os
import pickle
import shutil
import tracemalloc
from pathlib import Path

import numcodecs
import numpy as np
import pytest

from robotwin_adapters.open_dataset import describe_format, open_dataset
from tests.support.array_sets import pictures, walk, write_zarr, write_zarr_array, write_zarr_v3

COMPRESSORS = {
    "none": None,
    "blosc": numcodecs.Blosc("lz4"),
    "zlib": numcodecs.Zlib(),
    "zstd": numcodecs.Zstd(),
    "gzip": numcodecs.GZip(),
    "bz2": numcodecs.BZ2(),
    "lzma": numcodecs.LZMA(),
    "lz4": numcodecs.LZ4(),
}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_push_t(tmp_path: Path, name: str) -> None:
    source = open_dataset(write_zarr(tmp_path / "pusht.zarr", compressor=COMPRESSORS[name]))
    source = pickle.loads(pickle.dumps(source))
    assert (describe_format(source), len(source), source.name) == ("Zarr replay buffer", 2, "pusht")
    episode = source[1]
    assert (episode.uid, episode.num_frames, episode.fps) == ("episode_000001", 7, 10)
    np.testing.assert_array_equal(episode.robot_actions, walk(16, 2).astype(np.float32)[9:15])
    np.testing.assert_array_equal(episode.robot_states, walk(16, 5, 1).astype(np.float32)[9:])
    np.testing.assert_array_equal(episode.frames["img"].read([6, 0, 0]), pictures(16)[[15, 9, 9]])
    assert any("assumed" in note for note in episode.notes)


@pytest.mark.parametrize("per_shard", [0, 2, 4])
@pytest.mark.parametrize("is_zip", [False, True])
def test_zarr_v3(tmp_path: Path, per_shard: int, is_zip: bool) -> None:
    folder = write_zarr_v3(tmp_path / "set.zarr", per_shard=per_shard)
    if is_zip:
        shutil.make_archive(str(tmp_path / "packed.zarr"), "zip", folder)
    source = open_dataset(tmp_path / "packed.zarr.zip" if is_zip else folder)
    episode = source[1]
    assert (len(source), episode.num_frames) == (2, 7)
    np.testing.assert_array_equal(episode.robot_actions, walk(16, 2).astype(np.float32)[9:15])
    np.testing.assert_array_equal(episode.frames["img"].read(range(7)), pictures(16)[9:])


def test_damage_in_zarr_v3_is_found_by_its_checksums(tmp_path: Path) -> None:
    folder = write_zarr_v3(tmp_path / "set.zarr", per_shard=2)
    shard = folder / "data/img/c/0/0/0/0"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    with pytest.raises(ValueError, match=r"set\.zarr.*checksum"):
        open_dataset(folder)[0].frames["img"].read([0])
    shard.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    with pytest.raises(ValueError, match=r"img/c/0/0/0/0: does not match its checksum"):
        open_dataset(folder)[0].frames["img"].read([0])
    shard.write_bytes(whole[:9])
    with pytest.raises(ValueError, match=r"has 9 bytes, its table alone 36"):
        open_dataset(folder)[0].frames["img"].read([0])


def test_codecs_of_zarr_v3_that_are_not_known_are_named(tmp_path: Path) -> None:
    folder = write_zarr_v3(tmp_path / "set.zarr")
    about = json.loads((folder / "data/img/zarr.json").read_text())
    about["codecs"][1]["name"] = "jpeg2k"
    (folder / "data/img/zarr.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"expected codecs bytes, blosc, zstd, gzip or crc32c, got .*jpeg2k"):
        open_dataset(folder)


def test_the_clock_of_an_array_is_used(tmp_path: Path) -> None:
    folder = write_zarr(tmp_path / "set.zarr")
    write_zarr_array(folder / "data/timestamp", np.arange(16) / 25, (16,))
    episode = open_dataset(folder)[0]
    assert episode.fps == pytest.approx(25)
    assert not any("assumed" in note for note in episode.notes)


def test_umi_in_an_archive_with_jpeg_xl(tmp_path: Path) -> None:
    codecs = pytest.importorskip("imagecodecs.numcodecs")
    codecs.register_codecs(verbose=False)
    folder = tmp_path / "build"
    jpegxl = codecs.Jpegxl(level=100, numthreads=1)
    write_zarr_array(folder / "data/camera0_rgb", pictures(8), (1, 24, 32, 3), jpegxl)
    for name, dim in (("eef_pos", 3), ("eef_rot_axis_angle", 3), ("gripper_width", 1)):
        write_zarr_array(folder / f"data/robot0_{name}", walk(8, dim, dim).astype(np.float32), (8, dim))
    write_zarr_array(folder / "meta/episode_ends", np.array([5, 8]), (2,))
    shutil.make_archive(str(tmp_path / "data/cup.zarr"), "zip", folder)
    source = open_dataset(tmp_path / "data")
    episode = source[0]
    assert (len(source), episode.fps, episode.embodiment) == (2, 60, "umi")
    assert (episode.action_space, "the action is the next state" in episode.notes) == ("measured_poses", True)
    np.testing.assert_array_equal(episode.robot_actions[:, :3], walk(8, 3, 3).astype(np.float32)[1:5])
    assert episode.action_names[3:] == ("robot0_rx", "robot0_ry", "robot0_rz", "robot0_gripper")
    assert np.abs(episode.frames["camera0_rgb"].read(range(5)).astype(int) - pictures(8)[:5]).max() <= 1


def test_wrong_buffers_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_zarr(tmp_path / "set.zarr")
    about = folder / "data/action/.zarray"
    good = json.loads(about.read_text())
    for change, message in (
        ({"shape": [12, 2]}, r"ends at 16, but arrays have other lengths: \{'action': 12\}"),
        ({"zarr_format": 3}, "expected the description of a Zarr v2 array"),
        ({"dtype": "|O"}, "expected numbers in chunks"),
        ({"compressor": {"id": "blosc"}}, r"chunk data/action/0\.0 cannot be unpacked|blosc"),
        ({"compressor": {"id": "nothing_known"}}, "expected one of zlib"),
    ):
        about.write_text(json.dumps({**good, **change}))
        with pytest.raises(ValueError, match=rf"set\.zarr.*{message}"):
            _ = open_dataset(folder)[0]


def test_a_chunk_left_out_is_filled(tmp_path: Path) -> None:
    folder = write_zarr(tmp_path / "set.zarr")
    (folder / "data/action/1.0").unlink()
    actions = open_dataset(folder)[0].robot_actions
    np.testing.assert_array_equal(actions[6:], 0)
    np.testing.assert_array_equal(actions[:6], walk(16, 2).astype(np.float32)[:6])


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("codec", ["pickle", "json2", "msgpack2", "vlen-bytes", "imagecodecs_tiff"])
def test_codecs_that_nobody_listed_are_not_asked(tmp_path: Path, codec: str) -> None:
    folder, touched = write_zarr(tmp_path / "set.zarr"), tmp_path / "touched"
    (folder / "data/action/0.0").write_bytes(pickle.dumps(Touch(touched)))
    about = json.loads((folder / "data/action/.zarray").read_text()) | {"compressor": {"id": codec}}
    (folder / "data/action/.zarray").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"set\.zarr.*expected one of zlib"):
        open_dataset(folder)[0]
    assert not touched.exists()


@pytest.mark.parametrize("name", [name for name in COMPRESSORS if name != "none"])
@pytest.mark.parametrize("length", [200 << 20, 5])
def test_chunks_of_another_size_are_refused_before_they_are_unpacked(
    tmp_path: Path, name: str, length: int
) -> None:
    folder, codec = write_zarr(tmp_path / "set.zarr"), COMPRESSORS[name]
    (folder / "data/action/0.0").write_bytes(codec.encode(bytes(length)))
    about = json.loads((folder / "data/action/.zarray").read_text()) | {"compressor": codec.get_config()}
    (folder / "data/action/.zarray").write_text(json.dumps(about))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"set\.zarr"):
        open_dataset(folder)[0]
    assert tracemalloc.get_traced_memory()[1] < 60 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("change", [{"shape": [2**39]}, {"shape": [2**39], "chunks": [1]}])
def test_more_episodes_than_anybody_has_are_refused_at_once(tmp_path: Path, change: dict) -> None:
    folder = write_zarr(tmp_path / "set.zarr")
    about = folder / "meta/episode_ends/.zarray"
    about.write_text(json.dumps(json.loads(about.read_text()) | change))
    with pytest.raises(ValueError, match=r"set\.zarr.*chunks at once"):
        open_dataset(folder)


def test_a_picture_of_another_size_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    codecs = pytest.importorskip("imagecodecs.numcodecs")
    folder = write_zarr(tmp_path / "set.zarr")
    jpegxl = codecs.Jpegxl(level=100, numthreads=1)
    shutil.rmtree(folder / "data/img")
    write_zarr_array(folder / "data/img", pictures(16), (1, 24, 32, 3), jpegxl)
    (folder / "data/img/3.0.0.0").write_bytes(jpegxl.encode(np.zeros((48, 32, 3), np.uint8)))
    frames = open_dataset(folder)[0].frames["img"]
    assert frames.read([2]).shape == (1, 24, 32, 3)
    with pytest.raises(ValueError, match=r"set\.zarr"):
        frames.read([3])


def test_a_link_to_nothing_is_no_chunk_that_was_left_out(tmp_path: Path) -> None:
    folder = write_zarr(tmp_path / "set.zarr")
    (folder / "data/action/0.0").unlink()
    open_dataset(folder)[0]  # writers leave out chunks that hold the fill value
    (folder / "data/action/0.0").symlink_to("../../.git/annex/objects/x")
    with pytest.raises(ValueError, match=r"set\.zarr.*action/0\.0 is a link to something that is not here"):
        open_dataset(folder)[0]


@pytest.mark.parametrize(("at", "value"), [(12, 2**31 - 1), (8, 0), (8, 2**31), (16, 2**31 - 1), (16, 4)])
def test_a_blosc_header_that_leads_out_of_its_chunk_is_refused(tmp_path: Path, at: int, value: int) -> None:
    folder = write_zarr(tmp_path / "set.zarr", compressor=numcodecs.Blosc("lz4"))
    chunk = folder / "data/img/0.0.0.0"
    content = bytearray(chunk.read_bytes())
    content[at : at + 4] = value.to_bytes(4, "little")
    chunk.write_bytes(content)
    with pytest.raises(ValueError, match=r"set\.zarr.*Blosc"):
        open_dataset(folder)[0].frames["img"].read([0])
