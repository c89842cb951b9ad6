"""The choice of a decoder, and frames by decord.

Both give the same pixels. `auto` is PyAV: with files kept open it needs less CPU time for clips, reads AV1
and brings a maintained FFmpeg, which matters for files from elsewhere.
"""

import os
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64, UInt8

from worldmodel.data.video.container import probe_video, stamp_of

DecoderName = Literal["auto", "pyav", "decord"]
VARIABLE = "WORLDMODEL_DECODER"  # in the environment, which loader processes inherit
MAX_OPEN = 16


def choose_decoder(name: DecoderName) -> None:
    """What reads videos from now on, in this process and those that it starts."""
    if name == "decord":
        _decord()
    os.environ[VARIABLE] = name


def uses_decord() -> bool:
    """Whether `choose_decoder` chose it."""
    return os.environ.get(VARIABLE) == "decord"


def decord_frames(path: str, indices: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n H W 3"]:
    """The RGB frames at ascending positions."""
    try:
        reader = _open(path, stamp_of(path), os.getpid())
        if len(reader) != len(probe_video(path).pts):
            raise RuntimeError(f"{len(reader)} frames instead of {len(probe_video(path).pts)}")
        frames: np.ndarray = reader.get_batch(indices).asnumpy()
    except Exception as error:  # decord's own error has no other base; AV1, among others
        reason = str(error).strip().splitlines()[0][-120:]
        raise ValueError(f"{path}: decord cannot read it ({reason}): set data.decoder=pyav") from error
    return frames


@lru_cache(maxsize=MAX_OPEN)
def _open(path: str, stamp: tuple[int, int], process: int) -> Any:
    decord = _decord()
    return decord.VideoReader(path, ctx=decord.cpu(0), num_threads=1)


def _decord() -> Any:
    try:
        import decord
    except ImportError as error:
        raise ValueError(
            "data.decoder=decord needs it: pip install decord, or set data.decoder=pyav"
        ) from error
    return decord
