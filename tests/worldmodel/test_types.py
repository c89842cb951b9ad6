import doctest

import numpy as np
import pytest
import torch

from worldmodel import types
from worldmodel.types import evenly_spread, num_latent_frames, num_video_frames, to_uint8, to_unit_range


def test_the_examples_in_the_docs() -> None:
    assert doctest.testmod(types).failed == 0


def test_items_are_spread_evenly_and_never_repeated() -> None:
    assert evenly_spread(2, 8) == [0, 1]
    assert evenly_spread(10, 0) == []
    assert evenly_spread(10, 1) == [0]
    assert evenly_spread(0, 3) == []
    for length in range(1, 70):
        for count in range(2, 70):
            chosen = evenly_spread(length, count)
            assert (chosen[0], chosen[-1], len(chosen)) == (0, length - 1, min(count, length))
            assert np.ptp(np.diff(chosen)) <= 1 if len(chosen) > 1 else True


def test_published_choices_stay_what_they_are() -> None:
    # Clips in the reports of 64 and 16 episodes: the videos, and those whose dimensions are nudged.
    assert evenly_spread(64, 6, round_down=True) == [0, 12, 25, 37, 50, 63]
    assert evenly_spread(16, 8, round_down=True) == [0, 2, 4, 6, 8, 10, 12, 15]


@pytest.mark.parametrize(("latents", "frames"), [(1, 1), (2, 5), (5, 17), (21, 81)])
def test_frames_and_latent_frames(latents: int, frames: int) -> None:
    assert num_video_frames(latents) == frames
    assert num_latent_frames(frames) == latents


def test_bytes_and_unit_range() -> None:
    stored = torch.arange(256, dtype=torch.uint8)
    scaled = to_unit_range(stored)
    assert (scaled.dtype, scaled.min(), scaled.max()) == (torch.float32, 0, 1)
    assert torch.equal(to_uint8(scaled), stored)
    assert torch.equal(to_unit_range(scaled.double()), scaled)  # numbers are in [0, 1] already
    assert to_uint8(torch.tensor([-0.5, 0.5, 2.0])).tolist() == [0, 128, 255]
