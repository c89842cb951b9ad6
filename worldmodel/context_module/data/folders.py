"""Contexts read from the user's folders.

One folder per context: obs (or plain) is the observational one, others are named after a concept, or after
two joined by +:

    ROOT/{obs,thin,thic,swel,thin+swel,...}/    Morpho-MNIST: train- and t10k-images-idx3-ubyte(.gz)
    ROOT/{obs,background,object,...}/           PNG or JPEG files, in the folder or in images/ below it

3DIdent as published (ROOT/{train,test}/raw_latents.npy and images/*.png) is divided by its latents: under an
intervention the hue of object, spotlight or background lies above 0, otherwise all three lie below.
"""

import gzip
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from worldmodel.context_module.data.types import Do, all_pairs, check_do, context_name

OBSERVATIONAL = ("obs", "plain")  # folder names of the observational context
SUFFIXES = (".png", ".jpg", ".jpeg")
IDX_FILES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
IDX_MAGIC = 2051  # of unsigned bytes in three dimensions
TRAIN_SHARE = 0.7  # of pictures without a published split
HUES = {"object": 7, "spotlight": 8, "background": 9}  # columns of 3DIdent's latents
Split = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class FolderContexts:
    """Pictures in memory or read one by one; contexts may have different numbers of them."""

    name: str
    concept_names: tuple[str, ...]
    size: int  # pixels a side
    pictures: Mapping[Do, UInt8[np.ndarray, "n H W"] | Sequence[Path]]
    values: Mapping[Do, Float[np.ndarray, "n m"]] | None = None  # ground truth of the concepts

    @cached_property
    def held_out(self) -> tuple[Do, ...]:
        """Contexts of two concepts or more."""
        return tuple(do for do in self.pictures if len(do) > 1)

    def __len__(self) -> int:
        return max(len(pictures) for pictures in self.pictures.values())

    def images(self, do: Do, indices: Int64[np.ndarray, " n"]) -> UInt8[Tensor, "n 3 H W"]:
        """RGB pictures in the requested size; indices beyond a small context wrap around."""
        found = self._of(do)
        rows = [found[index % len(found)] for index in indices]
        arrays = [read_picture(row) if isinstance(row, Path) else row for row in rows]
        return _resized(np.stack(arrays), self.size)

    def factors(self, do: Do, indices: Int64[np.ndarray, " n"]) -> Float[np.ndarray, "n m"] | None:
        """Ground-truth values of the concepts, if available."""
        if self.values is None:
            return None
        known = self.values[check_do(do, len(self.concept_names))]
        return known[indices % len(known)]

    def _of(self, do: Do) -> UInt8[np.ndarray, "n H W"] | Sequence[Path]:
        do = check_do(do, len(self.concept_names))
        if do not in self.pictures:
            raise ValueError(f"{self.name} has no pictures of {context_name(do, self.concept_names)}")
        return self.pictures[do]


def open_context_folder(root: str | Path, split: Split, size: int) -> FolderContexts:
    """Contexts of a folder in one of the layouts above."""
    root = Path(root)
    if (root / split / "raw_latents.npy").is_file():
        return open_3dident(root, split, size)
    folders = (
        {folder.name: folder for folder in sorted(root.iterdir()) if folder.is_dir()} if root.is_dir() else {}
    )
    plain = [name for name in OBSERVATIONAL if name in folders]
    if len(plain) != 1:
        raise ValueError(
            f"{root}: expected one folder per context, one of them named {' or '.join(OBSERVATIONAL)}; "
            f"found {', '.join(folders) or 'no folder'}"
        )
    concepts = tuple(name for name in folders if "+" not in name and name != plain[0])
    if not concepts:
        raise ValueError(f"{root}: expected a folder of at least one intervention beside {plain[0]}")
    pictures: dict[Do, UInt8[np.ndarray, "n H W"] | Sequence[Path]] = {}
    for name, folder in folders.items():
        do = _do_of(root, name, concepts, plain[0])
        pictures[do] = _pictures_in(folder, split)
    return FolderContexts(
        root.name, concepts, size, dict(sorted(pictures.items(), key=lambda item: len(item[0])))
    )


def open_3dident(root: Path, split: Split, size: int) -> FolderContexts:
    """Load the 3DIdent pictures, grouped into contexts by the signs of three hue latents."""
    folder = root / split
    latents = np.load(folder / "raw_latents.npy", allow_pickle=False)
    files = sorted((folder / "images").glob("*.png"))
    if latents.ndim != 2 or latents.shape[1] <= max(HUES.values()) or len(files) != len(latents):
        raise ValueError(
            f"{folder}: expected raw_latents.npy [n, 10] and n pictures in images/, "
            f"found {latents.shape} and {len(files)} pictures"
        )
    hues = latents[:, list(HUES.values())]
    names = tuple(HUES)
    pictures: dict[Do, Sequence[Path]] = {}
    values: dict[Do, np.ndarray] = {}
    for do in ((), *((concept,) for concept in range(len(names))), *all_pairs(len(names))):
        wanted = np.isin(np.arange(len(names)), do)
        rows = np.flatnonzero(((hues > 0) == wanted).all(1))
        if not len(rows):
            raise ValueError(f"{folder}: no picture of the context {context_name(do, names)}")
        pictures[do], values[do] = [files[row] for row in rows], hues[rows].astype(np.float64)
    return FolderContexts("3dident", names, size, pictures, values)


def read_idx(path: Path) -> UInt8[np.ndarray, "n H W"]:
    """The pictures of an idx3 file, packed or not."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is no whole gzip file: {error}") from error
    if len(content) < 16:
        raise ValueError(f"{path}: expected an idx3 file of pictures, found {len(content)} bytes")
    magic, count, height, width = struct.unpack(">4I", content[:16])
    if magic != IDX_MAGIC or len(content) != 16 + count * height * width:
        raise ValueError(
            f"{path}: expected magic {IDX_MAGIC} and {16 + count * height * width} bytes of "
            f"{count} pictures of {height}x{width}, found {magic} and {len(content)} bytes"
        )
    return np.frombuffer(content, np.uint8, offset=16).reshape(count, height, width)


def read_picture(path: Path) -> UInt8[np.ndarray, "H W 3"]:
    """One picture as RGB."""
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as picture:
            return np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{path} is no readable picture: {error}") from error


def _do_of(root: Path, name: str, concepts: tuple[str, ...], plain: str) -> Do:
    if name == plain:
        return ()
    parts = name.split("+")
    if unknown := [part for part in parts if part not in concepts]:
        raise ValueError(f"{root / name}: there is no folder {unknown[0]!r} of that concept alone")
    return tuple(sorted(concepts.index(part) for part in parts))


def _pictures_in(folder: Path, split: Split) -> UInt8[np.ndarray, "n H W"] | Sequence[Path]:
    for suffix in ("", ".gz"):
        if (file := folder / f"{IDX_FILES[split]}{suffix}").is_file():
            return read_idx(file)
    place = folder / "images" if (folder / "images").is_dir() else folder
    files = sorted(file for file in place.iterdir() if file.suffix.lower() in SUFFIXES)
    if len(files) < 2:
        raise ValueError(
            f"{folder}: expected {IDX_FILES[split]}(.gz) or at least 2 pictures ({', '.join(SUFFIXES)}), "
            f"found {len(files)}"
        )
    # Files may be sorted by content, so the split is random, with a fixed seed.
    order = np.random.default_rng(0).permutation(len(files))
    cut = min(max(round(TRAIN_SHARE * len(files)), 1), len(files) - 1)
    chosen = order[:cut] if split == "train" else order[cut:]
    return [files[index] for index in chosen]


def _resized(pictures: UInt8[np.ndarray, "n ..."], size: int) -> UInt8[Tensor, "n 3 H W"]:
    """RGB pictures, resampled with antialiasing if they have another size."""
    tensor = torch.from_numpy(np.ascontiguousarray(pictures))
    tensor = tensor[:, None].expand(-1, 3, -1, -1) if tensor.ndim == 3 else tensor.movedim(-1, 1)
    if tensor.shape[-2:] == (size, size):
        return tensor.contiguous()
    small = F.interpolate(tensor.float(), (size, size), mode="bilinear", antialias=True, align_corners=False)
    return small.round().clamp(0, 255).byte()
