"""Each way a RoboTwin file can be wrong gives one ValueError that names the file and what is wrong."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from robotwin_adapters.robotwin.dataset import RobotwinDataset
from robotwin_adapters.robotwin.write import CameraRecord, RobotwinEpisode, write_robotwin_episode


def replaced(name: str, change: Callable[[np.ndarray], object]) -> Callable[[h5py.File], None]:
    def apply(file: h5py.File) -> None:
        values = file[name][()]
        del file[name]
        file[name] = change(values)

    return apply


def set_value(values: np.ndarray, value: float) -> np.ndarray:
    values[2, 1] = value
    return values


def remove(name: str) -> Callable[[h5py.File], None]:
    return lambda file: file.__delitem__(name)


def link_outside(file: h5py.File) -> None:
    del file["joint_action/vector"]
    file["joint_action/vector"] = h5py.ExternalLink("other.hdf5", "/vector")


def virtual(file: h5py.File) -> None:
    del file["joint_action/vector"]
    layout = h5py.VirtualLayout((8, 14), np.float64)
    layout[:] = h5py.VirtualSource("other.hdf5", "vector", (8, 14))
    file["joint_action"].create_virtual_dataset("vector", layout)


def enormous(file: h5py.File) -> None:
    del file["joint_action/left_arm"]
    file["joint_action"].create_dataset("left_arm", (10**9, 6), np.float64, chunks=(1024, 6))


LEGACY = {
    "missing vector": (remove("joint_action/vector"), "/joint_action/vector is missing"),
    "missing arm": (remove("joint_action/left_arm"), "/joint_action/left_arm is missing"),
    "no joints": (remove("joint_action"), "expected a RoboTwin episode"),
    "length": (replaced("observation/head_camera/rgb", lambda v: v[:5]), "5 frames, but there are 8 rows"),
    "camera without frames": (remove("observation/head_camera/rgb"), "rgb is missing"),
    "integers": (replaced("joint_action/left_arm", lambda v: v.astype(np.int64)), "left_arm: expected float"),
    "text": (replaced("joint_action/vector", lambda v: v.astype("S8")), "vector: expected float"),
    "one dimension": (replaced("joint_action/vector", lambda v: v[:, 0]), "vector: expected shape"),
    "nan": (replaced("joint_action/vector", lambda v: set_value(v, np.nan)), "vector: .*not finite"),
    "inconsistent": (replaced("joint_action/vector", lambda v: set_value(v, 0.5)), "not the concatenation"),
    "degrees": (replaced("joint_action/left_arm", lambda v: v + 90), "concatenation"),
    "short gripper": (
        replaced("joint_action/left_gripper", lambda v: v[:-1]),
        "left_gripper: expected shape",
    ),
    "frames as numbers": (
        replaced("observation/head_camera/rgb", lambda v: np.zeros(8)),
        "rgb: expected a row",
    ),
    "no jpeg": (replaced("observation/head_camera/rgb", lambda v: np.array([b"x"] * 8)), "not a JPEG"),
    "empty": (replaced("observation/head_camera/rgb", lambda v: v[:0]), "0 frames"),
    "outside": (link_outside, "is a link"),
    "virtual": (virtual, "from other files"),
    "enormous": (enormous, "claims 48000000000 bytes"),
}


@pytest.mark.parametrize("case", LEGACY)
def test_legacy(tmp_path: Path, robotwin_files, case: str) -> None:
    change, message = LEGACY[case]
    path = tmp_path / "data" / "episode0.hdf5"
    robotwin_files.write_legacy(path)
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(ValueError, match=rf"episode0\.hdf5: .*{message}"):
        RobotwinDataset(tmp_path)[0]


@pytest.mark.parametrize("count", [0, 1])
def test_an_episode_needs_two_frames(tmp_path: Path, robotwin_files, count: int) -> None:
    path = tmp_path / "data" / "episode0.hdf5"
    robotwin_files.write_legacy(path, count=2)
    with h5py.File(path, "a") as file:
        names = [f"joint_action/{name}" for name in file["joint_action"]]
        for name in [*names, "observation/head_camera/rgb", "observation/left_camera/rgb"]:
            replaced(name, lambda values: values[:count])(file)
    with pytest.raises(ValueError, match=rf"episode0\.hdf5: .*({count} frames|got {count})"):
        RobotwinDataset(tmp_path)[0]


def test_missing_camera_is_named_with_those_there_are(tmp_path: Path, robotwin_files) -> None:
    robotwin_files.write_legacy(tmp_path / "data" / "episode0.hdf5")
    with pytest.raises(
        ValueError, match=r"no camera front_camera; the file has \['head_camera', 'left_camera'\]"
    ):
        RobotwinDataset(tmp_path, cameras=["head_camera", "front_camera"])[0]
    assert list(RobotwinDataset(tmp_path, cameras=["left_camera"])[0].frames) == ["left_camera"]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("kind", ["legacy", "xpolicylab"])
def test_truncated_file(tmp_path: Path, robotwin_files, share: float, kind: str) -> None:
    path = tmp_path / "data" / "episode0.hdf5"
    getattr(robotwin_files, f"write_{kind}")(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"episode0\.hdf5: "):
        RobotwinDataset(tmp_path)[0]


def test_a_bad_frame_is_named_when_it_is_read(tmp_path: Path, robotwin_files) -> None:
    path = tmp_path / "data" / "episode0.hdf5"
    robotwin_files.write_legacy(path)
    small = robotwin_files.encode(np.zeros((8, 8, 3), np.uint8), False)
    with h5py.File(path, "a") as file:
        jpegs = file["observation/head_camera/rgb"]
        jpegs[3] = jpegs[3][:-40]
        jpegs[5] = small
    reader = RobotwinDataset(tmp_path)[0].frames["head_camera"]
    assert reader.read([2, 4]).shape == (2, 48, 64, 3)
    with pytest.raises(ValueError, match=r"episode0\.hdf5: .*head_camera/rgb, frame 3: .*cut off"):
        reader.read([3])
    with pytest.raises(ValueError, match="frame 5: the frame is 8x8, expected 48x64"):
        reader.read([5])


XPOLICYLAB = {
    "version": (
        replaced("data_format_version", lambda v: "v9"),
        "expected data_format_version v1.0, got 'v9'",
    ),
    "missing": (remove("action/left_arm_joint_states"), "left_arm_joint_states is missing"),
    "one wrong number": (
        replaced("action/left_arm_joint_states", lambda v: set_value(v, 0.5)),
        "are not the next state",
    ),
    "joined": (replaced("state/joint_states", lambda v: set_value(v, 0.5)), "joint_states is not the concat"),
    "length": (replaced("action/left_ee_joint_states", lambda v: v[1:]), "expected shape"),
    "shape": (replaced("vision/cam_head/shape", lambda v: v + 1), "shape says"),
    "frequency": (
        replaced("additional_info/frequency", lambda v: np.int32(0)),
        "frequency: expected 1 to 250",
    ),
    "instructions": (replaced("instructions", lambda v: '{"a": 1}'), "/instructions: expected a list"),
    "no json": (replaced("instructions", lambda v: "["), "Expecting value"),
    "number for text": (replaced("data_format_version", lambda v: 1.0), "expected one string"),
}


@pytest.mark.parametrize("case", XPOLICYLAB)
def test_xpolicylab(tmp_path: Path, robotwin_files, case: str) -> None:
    change, message = XPOLICYLAB[case]
    path = tmp_path / "data" / "episode_0000000.hdf5"
    robotwin_files.write_xpolicylab(path, converted=case == "joined")
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(ValueError, match=rf"episode_0000000\.hdf5: .*{message}"):
        RobotwinDataset(tmp_path)[0]


def test_a_string_heap_without_end_is_walked_once(tmp_path: Path, robotwin_files) -> None:
    # Left to HDF5 2.0, this file never finishes: the free entry at the end of the heap says it has no size.
    path = tmp_path / "data" / "episode_0000000.hdf5"
    robotwin_files.write_xpolicylab(path)
    data = bytearray(path.read_bytes())
    entry = data.index(b"GCOL") + 16
    while data[entry : entry + 2] != b"\0\0":
        entry += 16 + (int.from_bytes(data[entry + 8 : entry + 16], "little") + 7) // 8 * 8
    data[entry + 8 : entry + 16] = bytes(8)
    path.write_bytes(data)
    assert RobotwinDataset(tmp_path)[0].instructions == ("put it left", "move it left")
    data[data.index(b"GCOL")] = 0
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"episode_0000000\.hdf5: no heap of strings at byte \d+"):
        RobotwinDataset(tmp_path)[0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("instructions/episode0.json", "[1, 2]", "expected a list of strings"),
        ("instructions/episode0.json", '{"seen": "put"}', "seen: expected a list of strings"),
        ("instructions/episode0.json", '{"unseen": []}', "expected lists 'seen' and 'unseen'"),
        ("instructions/episode0.json", "{", "Expecting property name"),
        ("instructions/episode0.json", "[" * 100_000, "recursion"),
        ("scene_info.json", "[]", "expected an object"),
        ("scene_info.json", '{"episode_0": 3}', "expected an object"),
        ("scene_info.json", '{"episode_0": {"task": 3}}', "task: expected text"),
        ("collect.json", '{"settings": {"fps": -1}}', "fps: expected frames per second"),
        ("collect.json", '{"settings": {"fps": NaN}}', "fps: expected frames per second"),
        ("collect.json", "\udc80", "decode"),
    ],
)
def test_json_of_the_wrong_shape(tmp_path: Path, robotwin_files, name: str, text: str, message: str) -> None:
    robotwin_files.write_legacy(tmp_path / "data" / "episode0.hdf5", count=3)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=rf"{path.name}: .*{message}"):
        RobotwinDataset(tmp_path)[0]


def test_v1(tmp_path: Path, robotwin_files) -> None:
    robotwin_files.write_v1(tmp_path / "episode0")
    with pytest.raises(ValueError, match=r"0\.pkl: no camera left_camera with rgb"):
        RobotwinDataset(tmp_path, cameras=["left_camera"])[0]
    with pytest.raises(ValueError, match="roll, pitch and yaw"):
        RobotwinDataset(tmp_path, action_space="measured_poses")[0]
    broken = tmp_path / "episode0" / "3.pkl"
    for data, message in (
        (b"", "pickle"),
        (broken.read_bytes()[:-200], "announces"),
        (b"\x80\x04]\x94.", "dictionary"),
    ):
        broken.write_bytes(data)
        with pytest.raises(ValueError, match=rf"3\.pkl: .*{message}"):
            RobotwinDataset(tmp_path)[0]


def test_nothing_here_and_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no RoboTwin episode here"):
        RobotwinDataset(tmp_path)
    with pytest.raises(ValueError, match=r"nothing: expected a folder, a \.zip or an \.hdf5"):
        RobotwinDataset(tmp_path / "nothing")


@pytest.mark.parametrize("what", ["numbers", "pixels", "matrices"])
def test_one_flipped_bit_in_a_file_of_ours_is_found(tmp_path: Path, robotwin_files, what: str) -> None:
    camera = CameraRecord(robotwin_files.draw_frames(8), intrinsic_cv=np.full((8, 3, 3), 0.7734375))
    path = write_robotwin_episode(
        tmp_path, 0, RobotwinEpisode(**robotwin_files.draw_joints(8), cameras={"head_camera": camera})
    )
    with h5py.File(path) as file:
        dataset = {
            "numbers": file["joint_action/vector"],
            "pixels": file["observation/head_camera/rgb"],
            "matrices": file["observation/head_camera/intrinsic_cv"],
        }[what]
        position = dataset.id.get_offset() + 800 if what == "pixels" else dataset.id.get_offset()
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"episode0\.hdf5: .*checksum"):
        RobotwinDataset(tmp_path)[0].frames["head_camera"].read([0])
