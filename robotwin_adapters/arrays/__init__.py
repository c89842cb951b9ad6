"""Formats that store numbers and pictures as named arrays: HDF5, TFRecord, Zarr, NPZ."""
