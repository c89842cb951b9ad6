"""Several cameras in one picture: places, pixels, the contract and refusals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from robotwin_adapters.open_dataset import open_dataset
from worldmodel.data.cameras import choose_camera
from worldmodel.data.clips import ClipConfig, cut_clip, resize_frames
from worldmodel.data.index import index_episodes
from worldmodel.data.latents import content_hash
from worldmodel.data.layouts import Box, compose, view_boxes
from worldmodel.data.synthetic import synthetic_source
from worldmodel.models.config import InputSpec
from worldmodel.types import Episode

DROID = Path(__file__).parents[3] / "../shared/data/robots/droid_franka_real/droid_subset"


class Plain:
    """Frames of one color each, growing brighter."""

    def __init__(self, level: int, size: tuple[int, int]) -> None:
        self.level, self.size = level, size

    def __len__(self) -> int:
        return 9

    def read(self, indices) -> np.ndarray:
        return np.stack([np.full((*self.size, 3), self.level + i, np.uint8) for i in indices])


def three_views() -> Episode:
    frames = {
        "head": Plain(10, (48, 64)),
        "left_wrist": Plain(90, (24, 32)),
        "right_wrist": Plain(170, (24, 24)),
    }
    return Episode("u", "file", frames, np.zeros((8, 2)), ("a", "b"), 10.0, "robot")


@pytest.mark.parametrize("layout", ["side_by_side", "stacked", "wrists_below"])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (96, 128), (50, 70)])
@pytest.mark.parametrize("count", [2, 3])
def test_boxes_cover_the_picture_once(layout, height: int, width: int, count: int) -> None:
    covered = torch.zeros(height, width)
    boxes = view_boxes(layout, count, height, width)
    for box in boxes:
        box.cut(covered).add_(1)
    assert len(boxes) == count
    assert covered.eq(1).all()
    if height % 8 == 0 and width % 8 == 0:
        assert all(edge % 8 == 0 for box in boxes for edge in (box.top, box.left))


def test_wrists_lie_below_the_head() -> None:
    boxes = view_boxes("wrists_below", 3, 96, 64)
    assert boxes == (Box(0, 0, 64, 64), Box(64, 0, 32, 32), Box(64, 32, 32, 32))


def test_every_view_fills_its_place_of_the_clip() -> None:
    cameras = ("head", "left_wrist", "right_wrist")
    config = ClipConfig(num_frames=9, height=96, width=64, camera=cameras, layout="wrists_below")
    frames, _ = cut_clip(three_views(), 0, config)
    assert frames.shape == (9, 3, 96, 64)
    for level, box in zip((10, 90, 170), view_boxes("wrists_below", 3, 96, 64), strict=True):
        expected = torch.arange(level, level + 9, dtype=torch.uint8).view(9, 1, 1, 1)
        assert box.cut(frames).eq(expected).all()
    # Another order of names is another picture, and another entry of the cache.
    turned = replace(config, camera=cameras[::-1])
    assert not torch.equal(cut_clip(three_views(), 0, turned)[0], frames)
    assert content_hash(three_views(), cameras) != content_hash(three_views(), cameras[::-1])


def test_each_view_is_resized_as_if_it_were_alone() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 48, 64, 3), dtype=np.uint8)
    views = [resize_frames(pictures, 32, 32), resize_frames(pictures[:, ::-1], 32, 32)]
    joined = compose(views, view_boxes("side_by_side", 2, 32, 64), 32, 64)
    assert torch.equal(joined[..., :32], views[0])
    assert torch.equal(joined[..., 32:], views[1])


def test_the_contract_knows_the_layout() -> None:
    episode = three_views()
    names = ("head", "left_wrist")
    assert choose_camera(episode, names).name == "head+left_wrist"
    contract = InputSpec(9, 64, 128, 10.0, camera="head+left_wrist", layout="side_by_side")
    assert tuple(contract.views) == names
    clip = contract.clip_config()
    assert (clip.camera, clip.layout) == (names, "side_by_side")
    assert InputSpec(9, 64, 64, 10.0, camera="head").views == {}
    assert InputSpec(9, 64, 64, 10.0, camera="head").clip_config().camera == "head"


def test_refusals_name_what_to_set() -> None:
    with pytest.raises(ValueError, match=r"4 cameras side_by_side in 32x32 .* raise data\.clip\.height"):
        ClipConfig(height=32, width=32, camera=("a", "b", "c", "d"))
    with pytest.raises(ValueError, match="two cameras or more"):
        ClipConfig(camera=("head",))
    source = synthetic_source(num_episodes=2, num_frames=17, size=(32, 32))
    config = ClipConfig(num_frames=9, height=32, width=64, camera=("head", "wrist"))
    with pytest.raises(ValueError, match="camera 'wrist' expected, found"):
        index_episodes([source], config)


@pytest.mark.skipif(not DROID.exists(), reason="real DROID sample absent")
def test_the_three_views_of_droid() -> None:
    episode = open_dataset(DROID)[0]
    config = ClipConfig(num_frames=5, height=96, width=64, camera=("0", "1", "2"), layout="wrists_below")
    frames, _ = cut_clip(episode, 0, config)
    boxes = view_boxes("wrists_below", 3, 96, 64)
    for name, box in zip(("0", "1", "2"), boxes, strict=True):
        single = ClipConfig(num_frames=5, height=box.height, width=box.width, camera=name)
        alone, _ = cut_clip(episode, 0, single)
        assert torch.equal(box.cut(frames), alone)
