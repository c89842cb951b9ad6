"""Camera matrices of HDF5 episodes, in both formats."""

import h5py
import numpy as np
from jaxtyping import Float
from numpy import ndarray

from robotwin_adapters.hdf5_tree import numbers_at
from worldmodel.types import CameraMatrices

# OpenGL cameras point along -z with y up, OpenCV cameras along +z with y down.
GL_TO_CV = np.diag([1.0, -1.0, -1.0, 1.0])
INTRINSIC_KEYS = ("intrinsic_cv", "intrinsic_matrix")
# The collector of format B writes the second spelling, its converter from format A the third.
CAMERA_TO_WORLD_KEYS = ("cam2world_gl", "extrinsics_matrix", "extrinsic_matrix")


def world_to_camera_cv(cam2world_gl: Float[ndarray, "t 4 4"]) -> Float[ndarray, "t 3 4"]:
    """Convert cam2world_gl to extrinsic_cv."""
    return np.linalg.inv(cam2world_gl.astype(np.float64) @ GL_TO_CV)[:, :3].astype(np.float32)


def read_camera_matrices(group: h5py.Group, size: tuple[int, int]) -> CameraMatrices | None:
    """Matrices of one camera with pictures of this size; None unless the file has both."""
    intrinsic, pose = _key(group, INTRINSIC_KEYS), _key(group, ("extrinsic_cv", *CAMERA_TO_WORLD_KEYS))
    if intrinsic is None or pose is None:
        return None
    if pose == "extrinsic_cv":
        extrinsics = numbers_at(group, pose, (None, 3, 4))
    else:
        extrinsics = world_to_camera_cv(numbers_at(group, pose, (None, 4, 4)))
    intrinsics = numbers_at(group, intrinsic, (None, 3, 3))
    return CameraMatrices(_once_if_static(intrinsics), _once_if_static(extrinsics), size)


def _key(group: h5py.Group, keys: tuple[str, ...]) -> str | None:
    return next((key for key in keys if key in group), None)


def _once_if_static(matrices: Float[ndarray, "t i j"]) -> Float[ndarray, "... i j"]:
    return matrices[0] if len(matrices) and (matrices == matrices[0]).all() else matrices
