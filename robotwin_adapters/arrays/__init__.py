"""Formats that keep numbers and pictures side by side as named arrays: HDF5, TFRecord, Zarr, NPZ."""
