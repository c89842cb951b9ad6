"""RLDS shards, written by hand and as Octo's Bridge sample has them."""

import io
import json
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robotwin_adapters.arrays.tfrecord import masked_crc, parse_example
from robotwin_adapters.open_dataset import describe_format, open_dataset
from tests.support import array_sets
from tests.support.array_sets import pictures, walk, write_rlds

BRIDGE = Path(__file__).parents[3] / "../shared/data/robots/rlds_bridge_octo"


def test_numbers_pictures_and_words(tmp_path: Path) -> None:
    source = pickle.loads(pickle.dumps(open_dataset(write_rlds(tmp_path / "bridge_like/1.0.0"))))
    assert (describe_format(source), len(source), source.name) == ("RLDS TFRecord", 2, "bridge_like")
    episode = source[1]
    assert (episode.uid, episode.fps, episode.embodiment) == ("train/00000_00001", 5, "bridge_like")
    np.testing.assert_array_equal(episode.robot_actions, walk(9, 7, 1).astype(np.float32)[:-1])
    np.testing.assert_array_equal(episode.robot_states, walk(9, 7, 101).astype(np.float32))
    np.testing.assert_array_equal(episode.frames["image_0"].read([7, 2, 7]), pictures(9)[[7, 2, 7]])
    assert episode.instructions == ("put it left",)
    assert "camera image_1 begins black" in episode.notes
    assert episode.action_names == ("x", "y", "z", "roll", "pitch", "yaw", "gripper")


def test_an_unknown_set_says_that_its_rate_is_assumed(tmp_path: Path) -> None:
    folder = write_rlds(tmp_path / "set", name="my_robot")
    assert any("10 frames per second assumed" in note for note in open_dataset(folder)[0].notes)
    (folder / "dataset.yaml").write_text("fps: 25\naction_names: [a, b, c, d, e, f, g]\n")
    episode = open_dataset(folder)[0]
    assert (episode.fps, episode.action_names[0]) == (25, "a")
    assert not any("assumed" in note for note in episode.notes)


def test_every_flipped_byte_of_a_record_is_found(tmp_path: Path) -> None:
    folder = write_rlds(tmp_path / "set", 1)
    shard = next(folder.glob("*.tfrecord*"))
    whole = shard.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 40).astype(int):
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"tfrecord-00000-of-00001: .*(checksum|cut off)"):
            _ = open_dataset(folder)[0]


def test_a_missing_episode_is_named(tmp_path: Path) -> None:
    folder = write_rlds(tmp_path / "set")
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = ["3"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match=r"2 episodes, dataset_info.json says more than 2"):
        _ = open_dataset(folder)[2]


def test_checksum_and_numbers_one_by_one() -> None:
    # 0xE3069283 is the published CRC-32C of these digits.
    crc = 0xE3069283
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    unpacked = b"\x0d" + struct.pack("<f", 1.5) + b"\x0d" + struct.pack("<f", -2)
    entry = b"\x0a\x01a\x12" + bytes([len(unpacked) + 2]) + b"\x12" + bytes([len(unpacked)]) + unpacked
    inner = b"\x0a" + bytes([len(entry)]) + entry
    np.testing.assert_array_equal(parse_example(b"\x0a" + bytes([len(inner)]) + inner)["a"], [1.5, -2])
    with pytest.raises(ValueError, match="not a protobuf message"):
        parse_example(b"\x0a\xff\x01")


@pytest.mark.skipif(not BRIDGE.exists(), reason="real Bridge sample absent")
def test_bridge_sample_equals_a_plain_scan_of_its_bytes() -> None:
    source = open_dataset(BRIDGE)
    assert len(source) == 50
    episode = source[0]
    assert (episode.num_frames, episode.fps, episode.embodiment) == (10, 5, "bridge_dataset")
    assert episode.task == "put cup from counter or drying rack into sink"
    data = (BRIDGE / "1.0.0/bridge_dataset-train.tfrecord-00000-of-00001").read_bytes()
    # The packed floats follow their name, two lengths of three bytes and one or two tags.
    start = data.index(b"steps/action") + len("steps/action")
    found = data.index(struct.pack("<f", episode.robot_actions[0, 0]), start)
    numbers = np.frombuffer(data[found : found + 4 * 63], "<f4").reshape(9, 7)
    np.testing.assert_array_equal(numbers, episode.robot_actions)
    first = data.index(b"\xff\xd8\xff", data.index(b"steps/observation/image_0"))
    picture = np.asarray(Image.open(io.BytesIO(data[first : first + 20000])).convert("RGB"))
    np.testing.assert_array_equal(episode.frames["image_0"].read([0])[0], picture)


@pytest.mark.parametrize("count", [float("inf"), float("nan"), 1e300, -1, "many", None])
def test_impossible_numbers_of_episodes_are_refused_by_name(tmp_path: Path, count: object) -> None:
    folder = write_rlds(tmp_path / "set")
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = [count]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match=r"dataset_info\.json: splits and shardLengths"):
        open_dataset(folder)


def test_shards_alone_are_enough(tmp_path: Path) -> None:
    """Copies often hold the shards without what TensorFlow Datasets writes beside them."""
    folder = write_rlds(tmp_path / "set")
    (first,) = folder.glob("*.tfrecord-*")
    for number in range(2):
        shutil.copy(first, folder / f"my_arm-train.tfrecord-{number:05d}-of-00002")
    for path in (first, folder / "dataset_info.json", folder / "features.json"):
        path.unlink()
    source = open_dataset(folder)
    assert (len(source), source[0].embodiment) == (4, "my_arm")
    np.testing.assert_array_equal(source[3].robot_actions, source[1].robot_actions)
    assert len({source[number].uid for number in range(4)}) == 4


def test_records_without_steps_are_not_taken_for_episodes(tmp_path: Path) -> None:
    path = tmp_path / "pictures-train.tfrecord-00000-of-00001"
    path.write_bytes(array_sets._record(array_sets._example({"image": array_sets._bytes([b"x"])})))
    with pytest.raises(ValueError, match="no supported dataset"):
        open_dataset(tmp_path)


def test_actions_in_parts_are_changes_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = array_sets._rlds_features

    def in_parts(seed: int, frames: int) -> dict[str, bytes]:
        features = usual(seed, frames)
        del features["steps/action"]
        for name, dim in (("world_vector", 3), ("rotation_delta", 3), ("gripper_closedness_action", 1)):
            features[f"steps/action/{name}"] = array_sets._floats(walk(frames, dim, seed))
        return features

    monkeypatch.setattr(array_sets, "_rlds_features", in_parts)
    episode = open_dataset(write_rlds(tmp_path / "set"))[0]
    assert episode.action_names == ("dx", "dy", "dz", "droll", "dpitch", "dyaw", "gripper")
    assert episode.delta_actions == episode.action_names[:-1]
