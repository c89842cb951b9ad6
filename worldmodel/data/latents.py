"""The latent cache: each clip is encoded by the frozen VAE once and then read from memory-mapped files.

One safetensors shard per episode holds `latents` [n c f h w] and the raw `robot_actions` [n t-1 a] of its n
clips, and the rows of action paths that read more, so reading a cached clip never opens the episode. A
shard's name is a hash of the episode's content, the clip settings, the VAE's encoder and the number type: any
change creates a new shard; old ones can be deleted. Training only the decoder further keeps the latents
valid.

The VAE is causal: the latents of frames 8..24 are not a slice of those of frames 0..24. So the cache stores
each clip separately, and a smaller `step` costs disk space in proportion. Each frame of an episode is decoded
once. If a latent frame depends on its own four frames alone, as in our autoencoder, each group of four is
also encoded once. A clip needs 2 c f h w bytes in float16, which is 10 kB at 16 x 5 x 8 x 8 (64x64 pixels)
and 192 kB at 16 x 5 x 30 x 40 (240x320); step 1 makes about 16 times as many clips of 17 frames as the
default.

Several processes may build at once: the first to lock a shard builds it, the others continue with the next
one and come back at the end. Shards are renamed into place when complete, and have a checksum that `build`
verifies.
"""

import errno
import fcntl
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from worldmodel.data.cameras import Cameras, find_views
from worldmodel.data.clips import ClipConfig, clip_offsets, merge_rule, merged
from worldmodel.data.episode_window import EpisodeWindow
from worldmodel.data.index import BadEpisode, EpisodeIndex, EpisodeRecord, OnBad
from worldmodel.data.transitions import clip_transitions, read_rows
from worldmodel.files import write_tensors
from worldmodel.types import Episode, Extras, RowReader, evenly_spread, num_latent_frames

EncodeFn = Callable[[Float[Tensor, "b t 3 H W"]], Float[Tensor, "b c f h w"]]  # frames in [-1, 1]
MAX_OPEN_SHARDS = 64  # per process; limits how much of the cache is mapped at a time
CUT_VERSION = 1  # increase it when cutting or resizing changes, so that old latents are not reused
EXTRA = "extras."  # prefix of the names of tensors read for action paths
# Parameters of AutoencoderKLWan and of our own autoencoder that do not affect latents.
DECODING = ("decoder", "post_quant_conv", "synthesis")
SAMPLED_FRAMES = 4  # decoded for the content hash, in addition to the bytes of the file
# Exceptions that a missing or damaged shard may raise.
BROKEN = (SafetensorError, OSError, KeyError, RuntimeError)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)


@dataclass(frozen=True)
class LatentTable:
    """The shard of each episode; small, picklable, opens shards on demand."""

    paths: Mapping[tuple[int, int], str]  # (source, episode) of the index -> shard
    built: int = 0  # shards encoded by this process, including replaced ones
    repaired: int = 0  # of those, shards that replaced a corrupt one
    skipped: tuple[BadEpisode, ...] = ()
    _open: OrderedDict[str, dict[str, Tensor]] = field(default_factory=OrderedDict, repr=False)

    def read(
        self, record: EpisodeRecord, clip: int
    ) -> tuple[Float[Tensor, "c f h w"], Float[np.ndarray, "n a"]]:
        """Latents (a view of the mapped file) and raw robot actions of one clip."""
        tensors = self._shard(record)
        return tensors["latents"][clip], tensors["robot_actions"][clip].numpy()

    def read_extras(self, record: EpisodeRecord, clip: int) -> Extras:
        """The rows of action paths of one clip; empty if the cache was built without them."""
        tensors = self._shard(record).items()
        return {name.removeprefix(EXTRA): rows[clip] for name, rows in tensors if name.startswith(EXTRA)}

    def _shard(self, record: EpisodeRecord) -> dict[str, Tensor]:
        path = self.paths[record.source, record.episode]
        if path not in self._open:
            try:
                self._open[path], _ = _read_shard(Path(path))
            except BROKEN as error:
                raise ValueError(f"{path}: broken latents of {record.file}, build the cache again") from error
            if len(self._open) > MAX_OPEN_SHARDS:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return self._open[path]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}


class LatentCache:
    """Builds and checks the shards of one VAE below one folder."""

    def __init__(
        self,
        root: str,
        vae_id: str,
        dtype: Literal["float16", "bfloat16", "float32"] = "float16",
        *,
        reader: RowReader | None = None,  # also store the rows that action paths read
    ) -> None:
        self.folder = Path(root) / hashlib.sha256(vae_id.encode()).hexdigest()[:12]
        self.vae_id, self.dtype, self.reader = vae_id, dtype, reader

    def build(
        self,
        index: EpisodeIndex,
        encode: EncodeFn,
        records: Sequence[EpisodeRecord] | None = None,  # none: the whole index
        batch_size: int = 8,  # clips encoded at a time
        on_bad: OnBad = "stop",
        on_done: Callable[[], object] = lambda: None,  # called after each episode, for a progress bar
        groups_apart: bool = False,  # a latent frame depends on its own frames alone: encode each group once
    ) -> LatentTable:
        """Build missing or corrupt shards, wait for those of other processes, and return the table of all."""
        builder = _Builder(self, index, encode, batch_size, groups_apart)
        waiting = list(index.records if records is None else records)
        for blocking in (False, True):
            left = []
            for record in waiting:
                try:
                    if not builder.ensure(record, blocking):
                        left.append(record)
                        continue
                except (ValueError, OSError) as error:
                    if isinstance(error, OSError) and error.errno in NO_SPACE:
                        raise  # not the episode's fault, so the others would fail too
                    if on_bad == "stop":
                        raise ValueError(str(error)) from error
                    builder.skipped.append(BadEpisode(record.file, str(error)))
                on_done()
            waiting = left
        return LatentTable(builder.paths, builder.built, builder.repaired, tuple(builder.skipped))

    def shard_path(self, episode: Episode, record: EpisodeRecord, config: ClipConfig) -> Path:
        """The (possibly future) file of this episode's latents, independent of the episode's name."""
        described = self._described(episode, record, config)
        path = self._path(described)
        # In older versions the name was part of the key, so a renamed episode was not found.
        former = self._path({**described, "uid": episode.uid})
        return former if former.exists() and not path.exists() else path

    def _path(self, described: Mapping[str, Any]) -> Path:
        key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
        return self.folder / key[:2] / f"{key}.safetensors"

    def _described(self, episode: Episode, record: EpisodeRecord, config: ClipConfig) -> dict[str, Any]:
        described = {
            "version": CUT_VERSION,
            "content": content_hash(episode, config.camera),
            "vae": self.vae_id,
            "dtype": self.dtype,
            "starts": list(record.starts),
            "offsets": clip_offsets(episode.fps, config).tolist(),
            "clip": {name: asdict(config)[name] for name in ("height", "width", "aspect", "camera")}
            | {"merge": merge_rule(config.merge, episode.action_names, episode.delta_actions or ())},
        }
        if isinstance(config.camera, tuple):
            described["layout"] = config.layout
        if self.reader is not None:
            described["extras"] = dict(self.reader.versions)
        return described


class _Builder:
    """One run of `LatentCache.build`."""

    def __init__(
        self,
        cache: LatentCache,
        index: EpisodeIndex,
        encode: EncodeFn,
        batch_size: int,
        groups_apart: bool = False,
    ) -> None:
        self.cache, self.index, self.encode, self.batch_size = cache, index, encode, batch_size
        self.groups_apart = groups_apart
        self.paths: dict[tuple[int, int], str] = {}
        self.skipped: list[BadEpisode] = []
        self.built = self.repaired = 0

    def ensure(self, record: EpisodeRecord, blocking: bool) -> bool:
        """Ensure a valid shard for this episode.

        False if another process is building it and we do not wait.
        """
        episode = self.index.open(record)
        path = self.cache.shard_path(episode, record, self.index.config)
        if not _is_good(path):
            with _lock(path, blocking) as locked:
                if not locked:
                    return False
                if not _is_good(path):  # still missing after waiting
                    self.repaired += path.exists()
                    self.built += 1
                    _write_shard(path, self._encode_episode(episode, record))
        self.paths[record.source, record.episode] = str(path)
        return True

    def _encode_episode(self, episode: Episode, record: EpisodeRecord) -> dict[str, Tensor]:
        latents, actions, extras = [], [], []
        window = EpisodeWindow(episode, record.starts, self.index.config)
        for first in range(0, len(record.starts), self.batch_size):
            starts = record.starts[first : first + self.batch_size]
            raws = [merged(episode, window.positions(start), self.index.config.merge) for start in starts]
            encoded = window.encode_groups(starts, self._encode) if self.groups_apart else None
            encoded = self._encode(window.clips(starts)) if encoded is None else encoded
            latents.append(self._stored(encoded, len(starts), record))
            actions += [torch.from_numpy(raw) for raw in raws]
            if self.cache.reader is not None:
                extras += [
                    read_rows(self.cache.reader, clip_transitions(episode, at, raw, self.index.config))
                    for at, raw in zip(starts, raws, strict=True)
                ]
        tensors = {"latents": torch.cat(latents), "robot_actions": torch.stack(actions).double()}
        named = extras[0] if extras else ()
        return tensors | {EXTRA + name: torch.stack([rows[name] for rows in extras]) for name in named}

    @torch.no_grad()
    def _encode(self, frames: UInt8[Tensor, "b t 3 H W"]) -> Float[Tensor, "b c f h w"]:
        return self.encode(frames.float().div_(127.5).sub_(1))

    def _stored(self, encoded: Tensor, count: int, record: EpisodeRecord) -> Tensor:
        num_latents = num_latent_frames(self.index.config.num_frames)
        if encoded.ndim != 5 or (encoded.shape[0], encoded.shape[2]) != (count, num_latents):
            raise ValueError(
                f"expected latents b c f h w with b={count} and f={num_latents}, got {tuple(encoded.shape)}"
            )
        stored = encoded.to("cpu", getattr(torch, self.cache.dtype)).contiguous()
        if not torch.isfinite(stored).all():
            raise ValueError(f"{record.file}: latents are not finite in {self.cache.dtype}")
        return stored


def encoder_identity(module: nn.Module, config: Mapping[str, Any] | None = None) -> str:
    """Identifies a VAE by its class, settings and encoder weights, for use as `vae_id`.

    Decoder weights are excluded, and settings that begin with _, which hold the source and library version:
    latents do not depend on them.
    """
    settings = {name: value for name, value in (config or {}).items() if not name.startswith("_")}
    digest = hashlib.sha256(
        f"{type(module).__name__} {json.dumps(settings, sort_keys=True, default=str)}".encode()
    )
    for name, tensor in sorted(module.state_dict().items()):
        if name.split(".")[0] in DECODING:
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor.detach().cpu()))
    return digest.hexdigest()


def content_hash(episode: Episode, camera: Cameras = None) -> str:
    """Hash of actions and pictures: the file's bytes and a few frames, or all frames if there is no file."""
    digest = hashlib.sha256(f"{episode.fps!r} {episode.robot_actions.shape}".encode())
    digest.update(episode.robot_actions.tobytes())
    readers, indices = find_views(episode, camera), np.arange(episode.num_frames)
    # Videos are not in the table that the episode names; their readers give the paths.
    candidates = [episode.source, *(getattr(reader, "path", episode.source) for reader in readers)]
    files = sorted({file for file in map(Path, candidates) if file.is_file()})
    for file in files:
        digest.update(_file_hash(file, file.stat().st_size, file.stat().st_mtime_ns))
    if files:  # a few frames represent pictures stored in other files
        indices = np.array(evenly_spread(episode.num_frames, SAMPLED_FRAMES, round_down=True))
    for reader in readers:
        for part in np.array_split(indices, -(-len(indices) // 64)):
            digest.update(reader.read(part.tolist()).tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _file_hash(file: Path, size: int, mtime_ns: int) -> bytes:
    # Size and time are arguments, so that a changed file is read again, but a file of many episodes once.
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _write_shard(path: Path, tensors: dict[str, Tensor]) -> None:
    for abandoned in path.parent.glob(f".{path.name}.*.writing"):  # we hold the lock: who wrote these is dead
        abandoned.unlink()
    write_tensors(path, tensors, metadata={"checksum": _checksum(tensors)})


def _read_shard(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as shard:
        return {name: shard.get_tensor(name) for name in tuple(shard.keys())}, shard.metadata() or {}


def _is_good(path: Path) -> bool:
    try:
        tensors, metadata = _read_shard(path)
        return metadata["checksum"] == _checksum(tensors)
    except BROKEN:
        return False


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data


@contextmanager
def _lock(path: Path, blocking: bool) -> Iterator[bool]:
    """Hold the shard's lock file; the system releases it if the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_suffix(".lock")
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            # Removed while held; a process that waited for it checks the shard again before it builds.
            lock.unlink(missing_ok=True)
