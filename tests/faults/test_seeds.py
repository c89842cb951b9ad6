"""Inputs in which mutation once found a fault, each made again from its seed; part of the default tests."""

import pytest

FOUND = {
    "libero": (40_006_812,),  # searched for ever
    "isaac": (40_004_709,),  # likewise
    "lerobot_v21": (40_000_721, 40_005_394),  # texts that are no UTF-8
    "lerobot_v30": (
        *(40_001_957, 40_002_772, 40_008_076, 40_009_385),  # likewise
        *(40_007_604, 40_009_453),  # names of files that no file system takes
        40_009_523,  # ended the process inside pyarrow
    ),
    "world_model": (40_009_919,),  # a folder that was not named
    "world_model_lora": (40_001_667, 40_003_138),  # a file that was not named
    "mddiff": (40_002_496, 40_004_834),  # a scale that no float32 holds
}


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seeds in FOUND.items() for seed in seeds])
def test_a_fault_stays_mended(name: str, seed: int) -> None:
    from tests.faults.fuzz import fuzz

    counts, faults = fuzz(name, first=seed, count=1)
    assert not faults
    assert sum(counts.values()) == 1
