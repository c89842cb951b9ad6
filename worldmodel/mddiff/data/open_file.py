"""Opens a dataset file or folder, recognized by its name or its contents."""

from pathlib import Path

from worldmodel.mddiff.data.cars3d import open_cars3d
from worldmodel.mddiff.data.official import open_dsprites, open_mpi3d, open_shapes3d
from worldmodel.mddiff.data.rooms import open_rooms
from worldmodel.mddiff.data.stored_arrays import is_hdf5, keys
from worldmodel.mddiff.data.types import FactorDataset

WANTED = """\
  Shapes3D: 3dshapes.h5 from the 3d-shapes bucket of google-deepmind/3d-shapes, or its .npz
  MPI3D: mpi3d_toy.npz, mpi3d_realistic.npz, mpi3d_real.npz from rr-learning/disentanglement_dataset
  dSprites: dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz (or .hdf5) from google-deepmind/dsprites-dataset
  Cars3D: nips2015-analogy-data.tar.gz (Reed et al., Deep Visual Analogy-Making), or its folder data/cars
  Rooms: rendered here, no file needed"""


def open_factor_file(path: str | Path, cache: str | Path) -> FactorDataset:
    """Open any supported dataset; large or compressed files are unpacked into `cache`."""
    path, cache = Path(path), Path(cache)
    if not path.exists():
        raise ValueError(f"no data set at {path}; supported are\n{WANTED}")
    if path.suffix == ".safetensors":
        return open_rooms(path)
    if path.is_dir() or path.name.endswith((".tar", ".tar.gz", ".tgz")):
        return open_cars3d(path, cache)
    if not (is_hdf5(path) or path.suffix == ".npz"):
        raise ValueError(f"{path} is no supported data set; supported are\n{WANTED}")
    found = keys(path)
    if "imgs" in found:
        return open_dsprites(path, cache)
    if "mpi3d" in path.name.lower():
        return open_mpi3d(path, cache)
    if "images" in found:
        return open_shapes3d(path, cache)
    raise ValueError(f"{path} holds {', '.join(sorted(found)) or 'nothing'}; supported are\n{WANTED}")
