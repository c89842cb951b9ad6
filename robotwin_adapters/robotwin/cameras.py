"""Camera matrices of HDF5 episodes, under the names and axes of format A."""

from dataclasses import dataclass

import h5py
import numpy as np
from jaxtyping import Float
from numpy import ndarray

from robotwin_adapters.hdf5_tree import group_at, numbers_at
from robotwin_adapters.robotwin.hdf5 import camera_paths
from robotwin_adapters.storage import FileStore

# OpenGL looks along -z with y up, OpenCV along +z with y down.
GL_TO_CV = np.diag([1.0, -1.0, -1.0, 1.0])
# The collector of format B writes the first spelling, its converter from format A the second.
CAMERA_TO_WORLD_KEYS = ("cam2world_gl", "extrinsics_matrix", "extrinsic_matrix")


@dataclass(frozen=True)
class CameraMatrices:
    """Where a camera stood at every frame, and how it projects."""

    intrinsic_cv: Float[ndarray, "t 3 3"]  # pixels
    extrinsic_cv: Float[ndarray, "t 3 4"]  # world to camera, OpenCV axes, metres
    cam2world_gl: Float[ndarray, "t 4 4"]  # camera to world, OpenGL axes, metres


def world_to_camera_cv(cam2world_gl: Float[ndarray, "t 4 4"]) -> Float[ndarray, "t 3 4"]:
    """The extrinsic_cv that belongs to a cam2world_gl."""
    return np.linalg.inv(cam2world_gl.astype(np.float64) @ GL_TO_CV)[:, :3].astype(np.float32)


def read_camera_matrices(store: FileStore, name: str) -> dict[str, CameraMatrices]:
    """Matrices of every camera of an HDF5 episode; cameras stored without any are left out."""
    with store.open_hdf5(name) as file:
        groups = {camera: group_at(file, path) for camera, path in camera_paths(file).items()}
        return {camera: _matrices(group) for camera, group in groups.items() if _pose_key(group) is not None}


def _pose_key(group: h5py.Group) -> str | None:
    return next((key for key in CAMERA_TO_WORLD_KEYS if key in group), None)


def _matrices(group: h5py.Group) -> CameraMatrices:
    key = _pose_key(group)
    assert key is not None, group.name
    cam2world_gl = numbers_at(group, key, (None, 4, 4))
    intrinsic = "intrinsic_cv" if "intrinsic_cv" in group else "intrinsic_matrix"
    count = len(cam2world_gl)
    return CameraMatrices(
        intrinsic_cv=numbers_at(group, intrinsic, (count, 3, 3)),
        extrinsic_cv=numbers_at(group, "extrinsic_cv", (count, 3, 4))
        if "extrinsic_cv" in group
        else world_to_camera_cv(cam2world_gl),
        cam2world_gl=cam2world_gl,
    )
