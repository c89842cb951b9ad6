"""Small data sets of named arrays as others write them: plain h5py, numpy and OpenCV, nothing of our own."""

import json
from pathlib import Path

import av
import cv2
import google_crc32c
import h5py
import numcodecs
import numpy as np

CAMERAS = ("cam_high", "cam_left_wrist")


def pictures(count: int, seed: int = 0, size: tuple[int, int] = (24, 32)) -> np.ndarray:
    """Smooth RGB frames with a red left half and a box that moves."""
    frames = np.full((count, *size, 3), (40, 60, 90 + 10 * seed), np.uint8)
    frames[:, :, : size[1] // 2, 0] = 200
    frames[:, : size[0] // 2, :, 1] = 130  # the top is greener than the bottom
    for number, frame in enumerate(frames):
        frame[4:10, number : number + 6] = (230, 230, 30)
    return frames


def walk(count: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, (count, dim)).cumsum(0)


def write_aloha(folder: Path, count: int = 2, *, frames: int = 9, compress: bool = False) -> Path:
    """ACT's layout: raw pictures, or JPEGs padded to rows of bytes with their lengths beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file.attrs["sim"], file.attrs["compress"] = True, compress
            file["action"] = walk(frames, 14, number).astype(np.float32)
            file["observations/qpos"] = walk(frames, 14, number + 100).astype(np.float32)
            file["observations/qvel"] = walk(frames, 14, number + 200).astype(np.float32)
            for place, camera in enumerate(CAMERAS):
                images = pictures(frames, seed=place)
                if compress:
                    jpegs = [cv2.imencode(".jpg", image[..., ::-1])[1].tobytes() for image in images]
                    width = max(map(len, jpegs))
                    rows = [np.frombuffer(jpeg.ljust(width, b"\0"), np.uint8) for jpeg in jpegs]
                    file[f"observations/images/{camera}"] = np.stack(rows)
                else:
                    file.create_dataset(f"observations/images/{camera}", data=images, chunks=(1, 24, 32, 3))
            if compress:
                file["compress_len"] = np.zeros((len(CAMERAS), frames), np.float32)
    return folder


ROBOMIMIC_STATES = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}


def write_robomimic(path: Path, count: int = 2, *, frames: int = 9, delta: bool = True) -> Path:
    """robomimic's image observations, gzip, with env_args."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for number in range(count):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = frames
            demo["actions"] = walk(frames, 7, number).clip(-1, 1)
            demo["states"] = walk(frames, 32, number)
            for group in ("obs", "next_obs"):
                for name, dim in ROBOMIMIC_STATES.items():
                    demo[f"{group}/{name}"] = walk(frames, dim, number)
                for place, camera in enumerate(("agentview_image", "robot0_eye_in_hand_image")):
                    images = pictures(frames, seed=place)
                    demo.create_dataset(f"{group}/{camera}", data=images, compression="gzip")
        controller = {"type": "OSC_POSE", "control_delta": delta}
        settings = {"control_freq": 10, "robots": ["Panda"], "controller_configs": controller}
        arguments = {"env_name": "Lift", "type": 1, "env_kwargs": settings}
        file["data"].attrs["env_args"] = json.dumps(arguments)
        file["mask/train"] = np.array([b"demo_0"], "S8")
    return path


def write_libero(path: Path, *, frames: int = 9) -> Path:
    """LIBERO's names; pictures with the bottom row first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        file["data"].attrs["problem_info"] = json.dumps({"language_instruction": '"open the drawer"'})
        demo["actions"] = walk(frames, 7)
        demo["obs/ee_states"], demo["obs/gripper_states"] = walk(frames, 6), walk(frames, 2)
        for camera in ("agentview_rgb", "eye_in_hand_rgb"):
            demo[f"obs/{camera}"] = pictures(frames)[:, ::-1]
    return path


def write_isaac(path: Path, *, frames: int = 9) -> Path:
    """Isaac Lab's recorder: float32, cameras among the observations, depth beside them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        demo.attrs["num_samples"], demo.attrs["success"] = frames, True
        file["data"].attrs["env_args"] = json.dumps(
            {"env_name": "Stack-Cube", "type": 2, "sim_args": {"dt": 0.01, "decimation": 2}}
        )
        demo["actions"] = walk(frames, 8).astype(np.float32)
        demo["obs/joint_pos"] = walk(frames, 9).astype(np.float32)
        demo["obs/table_cam"], demo["obs/wrist_cam"] = pictures(frames), pictures(frames, 1)
        demo["obs/table_cam_depth"] = np.ones((frames, 24, 32, 1), np.float32)
        demo["initial_state/articulation/robot/joint_position"] = walk(1, 9).astype(np.float32)
    return path


def write_rlds(folder: Path, count: int = 2, *, frames: int = 9, name: str = "bridge_like") -> Path:
    """A shard as TensorFlow Datasets lays it out, put together by hand from the public descriptions."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [_example(_rlds_features(number, frames)) for number in range(count)]
    shard = b"".join(_record(record) for record in records)
    (folder / f"{name}-train.tfrecord-00000-of-00001").write_bytes(shard)
    split = {"name": "train", "numBytes": str(len(shard)), "shardLengths": [str(count)]}
    (folder / "dataset_info.json").write_text(json.dumps({"name": name, "splits": [split]}))
    (folder / "features.json").write_text(json.dumps({"pythonClassName": "FeaturesDict"}))
    return folder


def _rlds_features(seed: int, frames: int) -> dict[str, bytes]:
    return {
        "steps/action": _floats(walk(frames, 7, seed)),
        "steps/observation/state": _floats(walk(frames, 7, seed + 100)),
        "steps/observation/image_0": _bytes(map(_png, pictures(frames))),
        "steps/observation/image_1": _bytes(map(_png, np.zeros((frames, 24, 32, 3), np.uint8))),
        "steps/language_instruction": _bytes([b"put it left"] * frames),
        "steps/is_first": _integers([1] + [0] * (frames - 1)),
    }


def _png(picture: np.ndarray) -> bytes:
    return cv2.imencode(".png", picture[..., ::-1])[1].tobytes()


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _floats(values: np.ndarray) -> bytes:
    return _field(2, _field(1, values.astype("<f4").tobytes()))


def _integers(values: list[int]) -> bytes:
    return _field(3, _field(1, b"".join(map(_varint, values))))


def _bytes(values) -> bytes:
    return _field(1, b"".join(_field(1, value) for value in values))


def _example(features: dict[str, bytes]) -> bytes:
    entries = [_field(1, _field(1, name.encode()) + _field(2, value)) for name, value in features.items()]
    return _field(1, b"".join(entries))


def _record(data: bytes) -> bytes:
    head = len(data).to_bytes(8, "little")
    return head + _crc(head) + data + _crc(data)


def _crc(data: bytes) -> bytes:
    """Castagnoli's CRC bit by bit, then TensorFlow's mask."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def write_zarr_array(folder: Path, values: np.ndarray, chunks: tuple[int, ...], compressor=None) -> None:
    """Zarr v2 by its specification: `.zarray`, and a file per chunk, padded to full size."""
    folder.mkdir(parents=True)
    about = {"zarr_format": 2, "shape": values.shape, "chunks": chunks, "dtype": values.dtype.str}
    about |= {"compressor": compressor.get_config() if compressor else None, "fill_value": 0}
    (folder / ".zarray").write_text(json.dumps({**about, "order": "C", "filters": None}))
    for place in np.ndindex(*(-(-size // chunk) for size, chunk in zip(values.shape, chunks, strict=True))):
        part = values[tuple(slice(p * c, (p + 1) * c) for p, c in zip(place, chunks, strict=True))]
        full = np.zeros(chunks, values.dtype)
        full[tuple(map(slice, part.shape))] = part
        data = compressor.encode(full) if compressor else full.tobytes()
        (folder / ".".join(map(str, place))).write_bytes(data)


def write_zarr(folder: Path, lengths: tuple[int, ...] = (9, 7), compressor=None) -> Path:
    """Push-T's arrays: pictures as floats of 0 .. 255, positions, end to end."""
    total = sum(lengths)
    write_zarr_array(folder / "data/img", pictures(total).astype(np.float32), (5, 24, 32, 3), compressor)
    write_zarr_array(folder / "data/action", walk(total, 2).astype(np.float32), (6, 2), compressor)
    write_zarr_array(folder / "data/state", walk(total, 5, 1).astype(np.float32), (total, 3), compressor)
    write_zarr_array(folder / "meta/episode_ends", np.cumsum(lengths).astype(np.int64), (len(lengths),))
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    return folder


def write_zarr_array_v3(
    folder: Path, values: np.ndarray, chunks: tuple[int, ...], per_shard: int = 0
) -> None:
    """Zarr v3 by its specification: chunks packed by zstd, with a checksum, alone or in shards of several."""
    folder.mkdir(parents=True)
    configuration = {"endian": "little"}
    codecs = [{"name": "bytes", "configuration": configuration}, {"name": "zstd"}, {"name": "crc32c"}]
    shape = (chunks[0] * max(per_shard, 1), *chunks[1:])
    if per_shard:
        index = [{"name": "bytes", "configuration": configuration}, {"name": "crc32c"}]
        inside = {"chunk_shape": chunks, "codecs": codecs, "index_codecs": index, "index_location": "end"}
        codecs = [{"name": "sharding_indexed", "configuration": inside}]
    about = {"zarr_format": 3, "node_type": "array", "shape": values.shape, "data_type": str(values.dtype)}
    about |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}}, "fill_value": 0}
    about |= {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}}
    (folder / "zarr.json").write_text(json.dumps({**about, "codecs": codecs}))
    packed = [_packed_chunk(values[at : at + chunks[0]], chunks) for at in range(0, len(values), chunks[0])]
    for number in range(0, len(packed), max(per_shard, 1)):
        name = "/".join(["c", str(number // max(per_shard, 1)), *["0"] * (values.ndim - 1)])
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        data = _shard(packed[number : number + per_shard], per_shard) if per_shard else packed[number]
        (folder / name).write_bytes(data)


def _packed_chunk(rows: np.ndarray, chunks: tuple[int, ...]) -> bytes:
    full = np.zeros(chunks, rows.dtype)
    full[: len(rows)] = rows
    return _with_crc(bytes(numcodecs.Zstd().encode(full)))


def _shard(packed: list[bytes], count: int) -> bytes:
    places = np.cumsum([0, *map(len, packed)])[:-1]
    table = np.full((count, 2), 2**64 - 1, "<u8")  # chunks that are not there
    table[: len(packed)] = np.stack([places, [len(part) for part in packed]], 1)
    return b"".join(packed) + _with_crc(table.tobytes())


def _with_crc(data: bytes) -> bytes:
    return data + google_crc32c.value(data).to_bytes(4, "little")


def write_zarr_v3(folder: Path, lengths: tuple[int, ...] = (9, 7), *, per_shard: int = 0) -> Path:
    """A replay buffer as zarr-python 3 writes it by default, or with shards of pictures."""
    total = sum(lengths)
    write_zarr_array_v3(folder / "data/img", pictures(total), (3, 24, 32, 3), per_shard)
    write_zarr_array_v3(folder / "data/action", walk(total, 2).astype(np.float32), (6, 2))
    write_zarr_array_v3(folder / "meta/episode_ends", np.cumsum(lengths).astype(np.int64), (len(lengths),))
    for group in (folder, folder / "data", folder / "meta"):
        (group / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group"}))
    return folder


def write_droid(folder: Path, count: int = 2, *, frames: int = 9) -> Path:
    """DROID's raw recordings: three cameras, stereo videos beside them, numbers that are not needed."""
    serials = {"wrist": "20120598", "ext1": "24400334", "ext2": "29838012"}
    for number in range(count):
        place = folder / f"AUTOLab/success/2023-07-0{number + 1}/Fri_Jul__{number + 1}_09:42:23_2023"
        with _file(place / "trajectory.h5") as file:
            for key, dim in (("cartesian_position", 6), ("joint_position", 7), ("cartesian_velocity", 6)):
                file[f"action/{key}"] = walk(frames, dim, number)
            file["action/gripper_position"] = walk(frames, 1, number)[:, 0]
            file["observation/robot_state/cartesian_position"] = walk(frames, 6, number + 50)
            file["observation/robot_state/gripper_position"] = walk(frames, 1, number + 50)[:, 0]
        (place / "recordings/MP4").mkdir(parents=True)
        for serial in serials.values():
            _film(place / f"recordings/MP4/{serial}.mp4", pictures(frames), fps=60)
        _film(place / f"recordings/MP4/{serial}-stereo.mp4", pictures(frames, size=(24, 64)), fps=60)
        about = {"current_task": "put the cup away", **{f"{k}_cam_serial": s for k, s in serials.items()}}
        (place / f"metadata_AUTOLab+{number}.json").write_text(json.dumps(about))
    return folder


def write_variable(folder: Path, count: int = 2, *, frames: int = 9, **storage) -> Path:
    """JPEGs of variable length beside numbers, as several public HDF5 sets keep them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        with h5py.File(folder / f"traj_{number}.hdf5", "w") as file:
            file["action"], file["observations/qpos"] = walk(frames, 7, number), walk(frames, 7, number + 9)
            place = "observations/images/front"
            images = file.create_dataset(place, (frames,), h5py.vlen_dtype(np.uint8), **storage)
            for row, image in enumerate(pictures(frames, seed=number)):
                images[row] = cv2.imencode(".jpg", image[..., ::-1])[1].reshape(-1)
    return folder


def write_npz(folder: Path, count: int = 2, *, frames: int = 9, **more: np.ndarray) -> Path:
    """A file per episode: pictures, actions and states."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        arrays = {"image": pictures(frames), "action": walk(frames, 4, number), "state": walk(frames, 6)}
        np.savez_compressed(folder / f"{number}.npz", **{**arrays, **more})
    return folder


def write_agibot(folder: Path, count: int = 2, *, frames: int = 9) -> Path:
    """AgiBot World's three trees; the head was not commanded and has no rows."""
    names = ("head_color", "hand_left_color")
    for number in range(count):
        place = f"327/{648642 + number}"
        with _file(folder / "proprio_stats" / place / "proprio_stats.h5") as file:
            file["timestamp"] = np.arange(frames) * 33_333_333
            for root, seed in (("action", number), ("state", number + 50)):
                file[f"{root}/joint/position"] = walk(frames, 14, seed).astype(np.float32)
                file[f"{root}/effector/position"] = walk(frames, 2, seed).astype(np.float32)
                file[f"{root}/joint/index"] = np.arange(frames)
            file["action/head/position"] = np.zeros((0,), np.float32)
            file["state/head/position"] = walk(frames, 2).astype(np.float32)
        for camera in names:
            path = folder / "observations" / place / "videos" / f"{camera}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            _film(path, pictures(frames))
    about = [{"episode_id": 648642 + n, "task_name": "Pickup items"} for n in range(count)]
    (folder / "task_info").mkdir()
    (folder / "task_info/task_327.json").write_text(json.dumps(about))
    return folder


def _file(path: Path) -> h5py.File:
    path.parent.mkdir(parents=True, exist_ok=True)
    return h5py.File(path, "w")


def _film(path: Path, frames: np.ndarray, fps: int = 30) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": "10"})
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def write_calvin(folder: Path, borders: tuple[tuple[int, int], ...] = ((3, 11), (20, 28))) -> Path:
    """CALVIN: a file per frame, gaps between episodes."""
    folder.mkdir(parents=True)
    for first, last in borders:
        count = last - first + 1
        for step, picture in enumerate(pictures(count, seed=first)):
            numbers = {"actions": walk(count, 7, first)[step], "robot_obs": walk(count, 15, first + 1)[step]}
            changes = {
                "rel_actions": walk(count, 7, first + 2)[step],
                "depth_static": np.zeros((48, 64), "f4"),
            }
            views = {"rgb_static": picture, "rgb_gripper": picture[:32, :32]}
            np.savez(folder / f"episode_{first + step:07d}.npz", **numbers, **changes, **views)
    np.save(folder / "ep_start_end_ids.npy", np.array(borders))
    return folder
