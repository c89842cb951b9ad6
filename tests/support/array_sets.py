"""Small data sets of named arrays as others write them: plain h5py, numpy and OpenCV, nothing of our own."""

import json
from pathlib import Path

import cv2
import h5py
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


def write_robomimic(path: Path, count: int = 2, *, frames: int = 9) -> Path:
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
        arguments = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 10, "robots": ["Panda"]}}
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
