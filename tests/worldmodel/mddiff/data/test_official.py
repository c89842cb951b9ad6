"""Files are written here in the published layouts; the real dSprites grid is read where it is at hand."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io

from worldmodel.mddiff.data import official, stored_arrays
from worldmodel.mddiff.data.open_file import open_factor_file
from worldmodel.mddiff.data.stored_arrays import Published, check_published
from worldmodel.mddiff.data.types import FactorDataset, grid_index, is_grid

SHARED = Path(__file__).parents[4] / "../shared/data/disentanglement"
GRID_FILE = SHARED / "dsprites_grid/dsprites_downsampled.npz"
RNG = np.random.RandomState(0)


def pictures(*shape: int) -> np.ndarray:
    return RNG.randint(0, 256, size=shape).astype(np.uint8)


def shapes3d_labels() -> np.ndarray:
    grids = np.meshgrid(*official.SHAPES3D.values(), indexing="ij")
    return np.stack([grid.reshape(-1) for grid in grids], axis=1)


def test_shapes3d_h5_is_a_grid_in_the_order_of_its_labels(tmp_path: Path) -> None:
    path = tmp_path / "3dshapes.h5"
    images = pictures(480_000, 1, 1, 3)
    with h5py.File(path, "w") as file:
        file["images"], file["labels"] = images, shapes3d_labels()
    dataset = open_factor_file(path, tmp_path / "cache")
    assert isinstance(dataset, FactorDataset)
    assert (dataset.name, dataset.factor_sizes) == ("shapes3d", (10, 10, 10, 8, 4, 15))
    assert dataset.factors(np.array([15]))[0].tolist() == [0, 0, 0, 0, 1, 0]
    picked = np.array([479_999, 7, 7])
    assert dataset.images(picked).numpy().tolist() == np.moveaxis(images[picked], -1, 1).tolist()


def test_shapes3d_npz_grid_and_h5_agree(tmp_path: Path) -> None:
    images = pictures(10, 10, 10, 8, 4, 15, 1, 1, 3)
    np.savez(tmp_path / "shapes.npz", images=images)
    dataset = open_factor_file(tmp_path / "shapes.npz", tmp_path)
    factors = np.array([[3, 1, 4, 1, 3, 9]])
    assert (
        dataset.images(grid_index(dataset, factors))[0, :, 0, 0].numpy() == images[3, 1, 4, 1, 3, 9]
    ).all()


def test_shapes3d_parts_keep_their_labels(tmp_path: Path) -> None:
    path, rows = tmp_path / "part.h5", np.array([5, 100, 479_000])
    with h5py.File(path, "w") as file:
        file["images"], file["labels"] = pictures(3, 2, 2, 3), shapes3d_labels()[rows]
    dataset = open_factor_file(path, tmp_path)
    assert not is_grid(dataset)
    assert (grid_index(dataset, dataset.factors(np.arange(3))) == rows).all()


def test_labels_off_the_grid_are_refused(tmp_path: Path) -> None:
    path, labels = tmp_path / "odd.h5", shapes3d_labels()[:3]
    labels[1, 3] = 0.8
    with h5py.File(path, "w") as file:
        file["images"], file["labels"] = pictures(3, 2, 2, 3), labels
    with pytest.raises(ValueError, match=r"odd\.h5: labels of scale"):
        open_factor_file(path, tmp_path)


@pytest.mark.parametrize(("count", "first_sizes"), [(1_036_800, (6, 6)), (460_800, (4, 4))])
def test_mpi3d_sizes_follow_from_the_number_of_pictures(
    tmp_path: Path, count: int, first_sizes: tuple[int, int]
) -> None:
    np.savez(tmp_path / "mpi3d_toy.npz", images=pictures(count, 1, 1, 3))
    dataset = open_factor_file(tmp_path / "mpi3d_toy.npz", tmp_path)
    assert dataset.factor_sizes == (*first_sizes, 2, 3, 3, 40, 40)
    assert is_grid(dataset)


def test_mpi3d_of_another_length_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "mpi3d_real.npz", images=pictures(1000, 1, 1, 3))
    with pytest.raises(ValueError, match=r"1036800 pictures .* or 460800 .*, found 1000"):
        open_factor_file(tmp_path / "mpi3d_real.npz", tmp_path)


def dsprites_classes(rows: np.ndarray) -> np.ndarray:
    return np.stack(np.unravel_index(rows, (1, 3, 6, 40, 32, 32)), axis=1)


def test_dsprites_npz_and_hdf5_drop_the_color(tmp_path: Path) -> None:
    rows = np.array([0, 737_279, 4321])
    images = RNG.randint(0, 2, size=(3, 4, 4)).astype(np.uint8)
    metadata = np.array({"author": b"python 2"}, dtype=object)  # an object array, as in the published file
    np.savez(tmp_path / "d.npz", imgs=images, latents_classes=dsprites_classes(rows), metadata=metadata)
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        file["imgs"], file["latents/classes"] = images, dsprites_classes(rows)
    for name in ("d.npz", "d.hdf5"):
        dataset = open_factor_file(tmp_path / name, tmp_path)
        assert dataset.factor_sizes == (3, 6, 40, 32, 32)
        assert dataset.factors(np.arange(3)).tolist() == dsprites_classes(rows)[:, 1:].tolist()
        shown = dataset.images(np.arange(3)).numpy()
        assert (shown == 255 * images[:, None]).all()
        assert shown.shape == (3, 3, 4, 4)


@pytest.mark.skipif(not GRID_FILE.exists(), reason="no dSprites at hand")
def test_the_real_dsprites_grid(tmp_path: Path) -> None:
    dataset = open_factor_file(GRID_FILE, tmp_path)
    assert (dataset.factor_sizes, len(dataset)) == ((3, 6, 10, 16, 16), 46_080)
    assert is_grid(dataset)
    # Known from the data: a larger scale covers more pixels, and pos_y moves the center of mass down.
    small, large = (dataset.images(grid_index(dataset, np.array([[0, s, 0, 8, 8]])))[0, 0] for s in (0, 5))
    assert large.sum() > 2 * small.sum()
    rows = dataset.images(grid_index(dataset, np.array([[1, 2, 3, 4, y] for y in range(16)])))[:, 0].double()
    weights = rows.sum(2)
    center = (weights * np.arange(64)).sum(1) / weights.sum(1)
    assert (center.diff() > 1).all()


@pytest.mark.skipif(not SHARED.exists(), reason="no format fixtures at hand")
def test_format_fixtures_of_others_are_read(tmp_path: Path) -> None:
    shapes = open_factor_file(SHARED / "format_only/3dshapes.h5", tmp_path)
    assert shapes.factors(np.arange(5)).shape == (5, 6)
    (sprites_file,) = (SHARED / "format_only").glob("dsprites*.hdf5")
    assert open_factor_file(sprites_file, tmp_path).images(np.arange(5)).shape == (5, 3, 64, 64)


def car_file(seed: int) -> bytes:
    buffer = io.BytesIO()
    image = np.random.RandomState(seed).randint(0, 256, size=(16, 16, 3, 24, 4)).astype(np.uint8)
    scipy.io.savemat(buffer, {"im": image, "mask": np.zeros((1, 1))})
    return buffer.getvalue()


def constant_car(level: int) -> bytes:
    image = np.full((16, 16, 3, 24, 4), level, np.uint8)
    image[..., 5, 2] += 1  # azimuth 5, elevation 2
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"im": image})
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:.*Cars3D has 183 cars")
def test_cars3d_folder_and_archive_agree_and_follow_sorted_names(tmp_path: Path) -> None:
    names = ["car_010_mesh", "car_002_mesh"]  # written in the wrong order on purpose
    folder = tmp_path / "data/cars"
    folder.mkdir(parents=True)
    with tarfile.open(tmp_path / "nips2015-analogy-data.tar.gz", "w:gz") as archive:
        for level, name in ((100, names[0]), (20, names[1])):
            content = constant_car(level)
            (folder / f"{name}.mat").write_bytes(content)
            entry = tarfile.TarInfo(f"data/cars/{name}.mat")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    for source in (tmp_path / "data", tmp_path / "nips2015-analogy-data.tar.gz"):
        dataset = open_factor_file(source, tmp_path / "cache")
        assert dataset.factor_sizes == (4, 24, 2)
        levels = dataset.images(grid_index(dataset, np.array([[0, 0, 0], [0, 0, 1], [2, 5, 0]])))[:, 0, 9, 9]
        assert levels.tolist() == [20, 100, 21]
        again = open_factor_file(source, tmp_path / "cache")  # now from the cache
        assert (again.images(np.arange(192)) == dataset.images(np.arange(192))).all()


@pytest.mark.filterwarnings("ignore:.*Cars3D has 183 cars")
def test_a_wrong_car_leaves_no_cache_behind(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"im": np.zeros((4, 4, 3, 23, 4), np.uint8)})
    (tmp_path / "car_000_mesh.mat").write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match=r"car_000_mesh\.mat: expected im as uint8"):
        open_factor_file(tmp_path, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_missing_and_foreign_files_say_what_to_download(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no data set at .*nowhere.h5[\s\S]*3dshapes\.h5 from"):
        open_factor_file(tmp_path / "nowhere.h5", tmp_path)
    np.savez(tmp_path / "x.npz", weights=np.zeros(3))
    with pytest.raises(ValueError, match="holds weights; supported are"):
        open_factor_file(tmp_path / "x.npz", tmp_path)
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ValueError, match=r"no whole \.npz file"):
        open_factor_file(tmp_path / "cut.npz", tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_large_arrays_stay_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, compressed: bool
) -> None:
    monkeypatch.setattr(stored_arrays, "IN_MEMORY", 100)
    images, path = pictures(5000, 2, 2, 3), tmp_path / f"a.{kind}"
    if kind == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("images", data=images, compression="gzip" if compressed else None)
    else:
        (np.savez_compressed if compressed else np.savez)(path, images=images, other=np.zeros(3))
    found = stored_arrays.read_array(path, "images", tmp_path / "cache")
    assert isinstance(found, np.memmap)
    assert (found == images).all()
    assert not found.flags.writeable
    is_in_place = kind == "npz" and not compressed
    assert (tmp_path / "cache").exists() != is_in_place
    if not is_in_place:
        (unpacked,) = (tmp_path / "cache").iterdir()
        stamp = unpacked.stat().st_mtime_ns
        assert (stored_arrays.read_array(path, "images", tmp_path / "cache") == images).all()
        assert unpacked.stat().st_mtime_ns == stamp


def test_a_published_file_with_other_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    path.write_bytes(b"good")
    known = (Published("file.npz", 4, "sha256", hashlib.sha256(b"good").hexdigest()),)
    check_published(path, known, tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 1  # looked at once
    path.write_bytes(b"evil")
    with pytest.raises(ValueError, match=r"file\.npz is damaged: expected sha256"):
        check_published(path, known, tmp_path / "other_cache")


def test_object_arrays_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", imgs=np.array([{}], dtype=object), latents_classes=np.zeros((1, 6), int))
    with pytest.raises(ValueError, match="imgs is no plain array"):
        open_factor_file(tmp_path / "d.npz", tmp_path)
    assert zipfile.is_zipfile(tmp_path / "d.npz")
