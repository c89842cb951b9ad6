"""Checksums inside the files we write, so that a flipped bit in a float is detected.

They are stored as two HDF5 attributes, which RoboTwin's own readers ignore: `/` numbers_sha256: names, types
and shapes of all datasets and the bytes of the numeric ones; `/observation/<camera>/rgb` crc32: one CRC per
JPEG, so that reading one frame does not hash the others.
"""

import hashlib
import zlib
from collections.abc import Sequence

import h5py
import numpy as np
from jaxtyping import UInt32
from numpy import ndarray

NUMBERS_ATTRIBUTE = "numbers_sha256"
FRAMES_ATTRIBUTE = "crc32"


def numbers_digest(file: h5py.File) -> str:
    """SHA-256 over the tree and its numbers; JPEG bytes have their own CRCs."""
    digest = hashlib.sha256()

    def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
        digest.update(name.encode() + b"\0")
        if isinstance(item, h5py.Dataset):
            digest.update(f"{item.dtype.str}{item.shape}\0".encode())
            if item.dtype.kind in "fiu":
                digest.update(np.ascontiguousarray(item[()]).tobytes())

    file.visititems(add)
    return digest.hexdigest()


def frame_checksums(buffers: Sequence[bytes]) -> UInt32[ndarray, " t"]:
    """CRC-32 of every JPEG."""
    return np.array([zlib.crc32(buffer) for buffer in buffers], np.uint32)
