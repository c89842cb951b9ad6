import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from worldmodel.context_module.data.folders import open_context_folder, read_idx


def write_idx(path: Path, pictures: np.ndarray, *, is_packed: bool = True) -> None:
    content = struct.pack(">4I", 2051, *pictures.shape) + pictures.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if is_packed else content)


def gray(level: int, count: int = 5, side: int = 28) -> np.ndarray:
    return np.full((count, side, side), level, np.uint8)


@pytest.fixture
def morpho(tmp_path: Path) -> Path:
    """Morpho-MNIST as it is published: one folder a perturbation, packed idx files in it."""
    for number, name in enumerate(("plain", "swel", "thic", "thin", "thin+swel")):
        write_idx(tmp_path / name / "train-images-idx3-ubyte.gz", gray(10 * number))
        write_idx(tmp_path / name / "t10k-images-idx3-ubyte.gz", gray(10 * number + 1, count=2 + number))
        (tmp_path / name / "train-morpho.csv").write_text("index,area\n")
    return tmp_path


def test_morpho_mnist_is_read_by_context_and_split(morpho: Path) -> None:
    train, test = (open_context_folder(morpho, split, 32) for split in ("train", "test"))  # type: ignore[arg-type]
    assert train.concept_names == ("swel", "thic", "thin")
    assert train.held_out == ((0, 2),)
    assert (len(train), len(test)) == (5, 6)
    for do, level in (((), 0), ((0,), 10), ((1,), 20), ((2,), 30), ((2, 0), 40)):
        assert train.images(do, np.array([0, 4])).unique().tolist() == [level]
        assert test.images(do, np.array([5])).unique().tolist() == [level + 1]  # fewer pictures: again from 0
    assert train.images((), np.array([1])).shape == (1, 3, 32, 32)
    assert train.factors((), np.array([0])) is None
    with pytest.raises(ValueError, match=r"no pictures of swel\+thic"):
        train.images((0, 1), np.array([0]))


def test_folders_of_pictures_are_divided_once_and_for_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, place in (("obs", ""), ("object", "images"), ("spotlight", "")):
        folder = tmp_path / name / place
        folder.mkdir(parents=True)
        for number in range(10):
            pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    train, test = (open_context_folder(tmp_path, split, 8) for split in ("train", "test"))  # type: ignore[arg-type]
    assert (len(train), len(test)) == (7, 3)
    first = {picture.numpy().tobytes() for picture in train.images((0,), np.arange(7))}
    second = {picture.numpy().tobytes() for picture in test.images((0,), np.arange(3))}
    assert len(first) == 7
    assert not first & second
    again = open_context_folder(tmp_path, "train", 8)
    assert torch.equal(train.images((1,), np.arange(7)), again.images((1,), np.arange(7)))


def test_3dident_is_divided_by_its_hues(tmp_path: Path) -> None:
    latents = np.random.default_rng(1).uniform(-1, 1, (200, 10)).astype(np.float32)
    folder = tmp_path / "train"
    (folder / "images").mkdir(parents=True)
    np.save(folder / "raw_latents.npy", latents)
    for number, row in enumerate(latents):
        color = tuple(int(127 + 100 * hue) for hue in row[7:])
        Image.new("RGB", (8, 8), color).save(folder / "images" / f"{number:03d}.png")
    contexts = open_context_folder(tmp_path, "train", 8)
    assert contexts.concept_names == ("object", "spotlight", "background")
    assert contexts.held_out == ((0, 1), (0, 2), (1, 2))
    for do in ((), (1,), (0, 2)):
        values = contexts.factors(do, np.arange(10))
        assert values is not None
        assert ((values > 0) == np.isin(np.arange(3), do)).all()
        seen = contexts.images(do, np.arange(10))[:, :, 0, 0].float()
        np.testing.assert_allclose((seen.numpy() - 127) / 100, values, atol=0.011)
    (folder / "images" / "000.png").unlink()
    with pytest.raises(ValueError, match=r"n pictures in images/, found .* 199 pictures"):
        open_context_folder(tmp_path, "train", 8)


def test_folders_that_are_no_contexts_are_refused(tmp_path: Path, morpho: Path) -> None:
    with pytest.raises(ValueError, match="named obs or plain; found no folder"):
        open_context_folder(tmp_path / "absent", "train", 8)
    (morpho / "frac+swel").mkdir()
    with pytest.raises(ValueError, match="no folder 'frac' of that concept alone"):
        open_context_folder(morpho, "train", 28)
    (morpho / "frac+swel").rename(morpho / "empty")
    with pytest.raises(ValueError, match="empty: expected train-images-idx3-ubyte"):
        open_context_folder(morpho, "train", 28)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "whole", gray(7), is_packed=False)
    assert read_idx(tmp_path / "whole").shape == (5, 28, 28)
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-9])
    with pytest.raises(ValueError, match="cut: expected magic 2051 and 3936 bytes"):
        read_idx(tmp_path / "cut")
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(ValueError, match="short: expected an idx3 file"):
        read_idx(tmp_path / "short")
    (tmp_path / "bad.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"bad\.gz is no whole gzip file"):
        read_idx(tmp_path / "bad.gz")
    for name in ("obs", "object"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "set" / name / f"{number}.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match="is no readable picture"):
        open_context_folder(tmp_path / "set", "train", 8).images((), np.array([0]))
