"""Writes the numbers and videos of a run: log.jsonl always, TensorBoard by default, wandb on request."""

import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from worldmodel.files import write_text

log = logging.getLogger(__name__)
TrackerName = Literal["tensorboard", "wandb"]


def _except_full_disks(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard writes in a thread, and raises its error again when the next value is logged."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)


class Tracker:
    """Writes the records of one run; on resume, records after the resumed step are dropped first."""

    def __init__(
        self, folder: Path, names: Sequence[TrackerName], step: int, config: Mapping[str, Any]
    ) -> None:
        threading.excepthook = _except_full_disks
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "log.jsonl"
        write_text(self._path, "".join(_lines_up_to(self._path, step)))
        self._file = self._path.open("a")
        self._board = (
            SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
            if "tensorboard" in names
            else None
        )
        self._wandb = _start_wandb(folder, config) if "wandb" in names else None

    def scalars(self, step: int, values: Mapping[str, float], kind: str = "train") -> None:
        """Log named numbers of a step; `kind` is train or validation."""
        record = {"step": step, "kind": kind, "time": round(time.time(), 3), **values}
        named = {f"{kind}/{name}": value for name, value in values.items()}
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
            if self._board is not None:
                for name, value in named.items():
                    self._board.add_scalar(name, value, step)
        except OSError as error:  # a full disk must not end a run with good weights
            log.warning("step %d was not logged: %s", step, error)
        if self._wandb is not None:
            self._wandb.log(named, step=step)

    def video(self, step: int, name: str, frames: UInt8[np.ndarray, "t H W 3"], fps: float) -> None:
        """Log a video to TensorBoard (as an animated image) and to Weights & Biases."""
        try:
            if self._board is not None:
                self._show_on_board(step, name, frames, fps)
            if self._wandb is not None:  # writes a file before uploading it
                video = self._wandb.Video(frames.transpose(0, 3, 1, 2), fps=max(1, round(fps)))
                self._wandb.log({f"rollout/{name}": video}, step=step)
        except OSError as error:
            log.warning("video %s of step %d was not logged: %s", name, step, error)

    def _show_on_board(self, step: int, name: str, frames: UInt8[np.ndarray, "t H W 3"], fps: float) -> None:
        assert self._board is not None
        image = Summary.Image(
            height=frames.shape[1],
            width=frames.shape[2],
            colorspace=3,
            encoded_image_string=_gif(frames, fps),
        )
        summary = Summary(value=[Summary.Value(tag=f"rollout/{name}", image=image)])
        self._board._get_file_writer().add_summary(summary, step)

    def close(self) -> None:
        """Flush and close everything."""
        with contextlib.suppress(OSError):  # write errors were reported when they occurred
            self._file.close()
            if self._board is not None:
                self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def check_trackers(names: Sequence[TrackerName]) -> None:
    """ValueError if a requested tracker is not installed."""
    if "wandb" in names and importlib.util.find_spec("wandb") is None:
        raise ValueError("trackers asks for wandb, which is not installed: pip install wandb")


def _start_wandb(folder: Path, config: Mapping[str, Any]) -> Any:
    wandb = importlib.import_module("wandb")
    # The id is a function of the folder, so that a resumed run continues its own curves; the path
    # distinguishes folders of the same name.
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
    wandb.init(
        project="worldmodel",
        id=f"{folder.name}-{place}",
        name=folder.name,
        dir=str(folder),
        config=dict(config),
        resume="allow",
    )
    return wandb


def _lines_up_to(path: Path, step: int) -> list[str]:
    if not path.exists():
        return []
    kept = []
    for line in path.read_text(errors="replace").splitlines(keepends=True):
        try:
            is_kept = json.loads(line)["step"] <= step
        except (ValueError, TypeError, KeyError):  # the last line of a killed run, or damage
            continue
        if is_kept:
            kept.append(line)
    return kept


def _gif(frames: UInt8[np.ndarray, "t H W 3"], fps: float) -> bytes:
    images = [Image.fromarray(frame) for frame in frames]
    buffer = io.BytesIO()
    images[0].save(
        buffer,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=max(20, round(1000 / fps)),
        loop=0,
    )
    return buffer.getvalue()
