"""Checks on the images themselves, before any encoding, that they change with their factors."""

import numpy as np

from worldmodel.mddiff.data.types import FactorDataset, grid_index, is_grid

NUM_PAIRS = 64  # pairs of neighboring images per factor
MOST_EQUAL = 0.5  # largest share of identical neighbors (a rotated disc) that still counts as aligned


def check_pictures(dataset: FactorDataset, *, seed: int = 0) -> None:
    """Raise ValueError if images do not change with a factor, or change when read again.

    A dataset that repeats every image ten times while its labels keep counting (a mistake found in public
    code) has identical images for neighboring values of its last factor. Datasets that are not a full grid
    have no neighbors, so only repeated reads are compared.
    """
    rng = np.random.default_rng(seed)
    some = rng.integers(len(dataset), size=min(NUM_PAIRS, len(dataset)))
    if not bool((dataset.images(some) == dataset.images(some[::-1].copy()).flip(0)).all()):
        raise ValueError(f"{dataset.name}: asked twice for the same picture, it gives two different ones")
    if not is_grid(dataset):
        return
    for factor, (name, size) in enumerate(zip(dataset.factor_names, dataset.factor_sizes, strict=True)):
        if size < 2:
            continue
        first = dataset.factors(rng.integers(len(dataset), size=NUM_PAIRS))
        first[:, factor] = rng.integers(size - 1, size=NUM_PAIRS)
        second = first.copy()
        second[:, factor] += 1
        pairs = [dataset.images(grid_index(dataset, values)) for values in (first, second)]
        equal = float((pairs[0] == pairs[1]).flatten(1).all(1).float().mean())
        if equal > MOST_EQUAL:
            raise ValueError(
                f"misaligned: {equal:.0%} of the pictures of {dataset.name} whose factors differ in {name} "
                "only are equal; pictures and factors do not belong together"
            )
