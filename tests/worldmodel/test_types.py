import doctest
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from worldmodel import types
from worldmodel.types import (
    Actions,
    evenly_spread,
    map_tensors,
    num_latent_frames,
    num_video_frames,
    to_uint8,
    to_unit_range,
)


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


@dataclass(frozen=True)
class Tree:
    leaf: torch.Tensor
    parts: dict[str, object]
    name: str = "oak"
    missing: torch.Tensor | None = None


def test_tensors_are_changed_wherever_they_are_and_the_rest_is_left() -> None:
    inner = Tree(torch.ones(2), {"b": (torch.ones(3), None, 4)})
    tree = Tree(torch.zeros(1), {"a": [inner, "text"], "empty": {}})
    changed = map_tensors(tree, lambda part: part + 1)
    assert (changed.name, changed.missing, changed.leaf.tolist()) == ("oak", None, [1.0])
    (found, text), empty = changed.parts["a"], changed.parts["empty"]
    assert (text, empty, found.leaf.tolist()) == ("text", {}, [2.0, 2.0])
    ones, none, four = found.parts["b"]
    assert (type(found.parts["b"]), ones.tolist(), none, four) == (tuple, [2.0] * 3, None, 4)
    assert inner.leaf.tolist() == [1.0, 1.0]
    assert map_tensors(None, torch.neg) is None


def test_actions_are_cut_joined_and_held_with_all_that_comes_with_them() -> None:
    counts, places = torch.arange(10).view(2, 5), torch.rand(2, 5, 3, 4)
    actions = Actions(torch.rand(2, 5, 6), extras={"poses": places, "0: of any name/": counts})
    first, rest = actions[:2], actions[2:]
    assert first.latent is None
    assert first.extras["0: of any name/"].tolist() == [[0, 1], [5, 6]]
    joined = first.concat(rest)
    assert torch.equal(joined.robot, actions.robot)
    assert all(torch.equal(joined.extras[name], rows) for name, rows in actions.extras.items())
    held = actions.pad_last(7)
    assert torch.equal(held.robot[:, 5:], actions.robot[:, 4:].expand(-1, 2, -1))
    assert held.extras["0: of any name/"].tolist() == [[0, 1, 2, 3, 4, 4, 4], [5, 6, 7, 8, 9, 9, 9]]
    assert held.extras["0: of any name/"].dtype == torch.int64
    assert held.extras["poses"].shape == (2, 7, 3, 4)
    assert torch.equal(actions.pad_last(3).robot, actions.robot)
    assert Actions()[1:].concat(Actions()).pad_last(4) == Actions()
    behind = Actions().concat(rest)
    assert torch.equal(behind.robot, rest.robot)
    assert behind.extras.keys() == rest.extras.keys()
