from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from PIL import Image

from worldmodel.config import config_to_yaml, load_config
from worldmodel.data.clips import (
    ClipConfig,
    clip_offsets,
    clip_starts,
    cut_clip,
    episode_actions,
    merge_actions,
    merge_rule,
    resize_frames,
)
from worldmodel.types import Episode


@dataclass(frozen=True)
class CountingFrames:
    """Every pixel of frame i has the value first + i."""

    count: int
    size: tuple[int, int] = (8, 12)
    first: int = 0

    def __len__(self) -> int:
        return self.count

    def read(self, indices: Sequence[int]) -> np.ndarray:
        values = (self.first + np.array(indices, np.uint8))[:, None, None, None]
        return np.broadcast_to(values, (len(indices), *self.size, 3))


def counting_episode(
    num_frames: int = 40, fps: float = 30.0, cameras: tuple[str, ...] = ("head",)
) -> Episode:
    """Action i is (i, 100 + i) and the pixels of frame i are i."""
    actions = np.stack([np.arange(num_frames - 1), 100 + np.arange(num_frames - 1)], axis=1).astype(float)
    frames = {name: CountingFrames(num_frames) for name in cameras}
    return Episode("e0", "e0.hdf5", frames, actions, ("x", "y"), fps, "arm")


def numbers(frames: torch.Tensor) -> list[int]:
    return frames[:, 0, 0, 0].tolist()


def config(**changes) -> ClipConfig:
    return ClipConfig(**{"num_frames": 5, "height": 8, "width": 12, **changes})


def test_every_frame_keeps_the_action_that_leads_out_of_it() -> None:
    frames, actions = cut_clip(counting_episode(), 7, config())
    assert frames.shape == (5, 3, 8, 12)
    assert numbers(frames) == [7, 8, 9, 10, 11]
    assert actions[:, 0].tolist() == [7, 8, 9, 10]


def test_stride_takes_the_last_command_of_each_interval() -> None:
    frames, actions = cut_clip(counting_episode(), 1, config(stride=3))
    assert numbers(frames) == [1, 4, 7, 10, 13]
    assert actions[:, 0].tolist() == [
        3,
        6,
        9,
        12,
    ]  # the command that was obeyed when the next frame was taken


def test_stride_adds_up_delta_actions() -> None:
    _, actions = cut_clip(counting_episode(), 1, config(stride=3, merge="sum"))
    assert actions[:, 0].tolist() == [1 + 2 + 3, 4 + 5 + 6, 7 + 8 + 9, 10 + 11 + 12]


def test_resampling_follows_the_documented_timeline() -> None:
    frames, last = cut_clip(counting_episode(fps=30.0), 0, config(fps=20.0))
    _, total = cut_clip(counting_episode(fps=30.0), 0, config(fps=20.0, merge="sum"))
    assert numbers(frames) == [0, 2, 3, 5, 6]
    assert last[:, 0].tolist() == [1, 2, 4, 5]
    assert total[:, 0].tolist() == [0 + 1, 2, 3 + 4, 5]


def test_delta_sums_lead_from_frame_to_frame_at_any_rate() -> None:
    position = np.cumsum(np.r_[0, np.random.default_rng(0).normal(size=79)])
    deltas = np.diff(position)[:, None]
    episode = Episode("e", "e", {"c": CountingFrames(80)}, deltas, ("x",), 30.0, "arm")
    for fps in (30.0, 17.0, 12.5, 10.0, 7.0):
        frames, actions = cut_clip(episode, 3, config(fps=fps, merge="sum", num_frames=17))
        moved = np.diff(position[numbers(frames)])
        np.testing.assert_allclose(actions[:, 0], moved, atol=1e-12)


@pytest.mark.parametrize(
    ("recorded", "wanted", "offsets"), [(29.97, 30.0, [0, 1, 2]), (50 / 3, 8.33, [0, 2, 4])]
)
def test_rounded_rate_labels_count_as_whole_ratios(
    recorded: float, wanted: float, offsets: list[int]
) -> None:
    assert clip_offsets(recorded, config(fps=wanted))[:3].tolist() == offsets


def test_resampling_upwards_is_refused() -> None:
    with pytest.raises(ValueError, match="15 frames per second up to 30"):
        clip_offsets(15.0, config(fps=30.0))


def test_default_clips_share_only_their_end_frame() -> None:
    assert list(clip_starts(13, 30.0, config())) == [0, 4, 8]
    assert list(clip_starts(12, 30.0, config())) == [0, 4]
    assert list(clip_starts(5, 30.0, config())) == [0]
    assert list(clip_starts(4, 30.0, config())) == []
    assert list(clip_starts(10, 30.0, config(step=2, stride=2))) == [0]


def test_last_clip_fits_and_the_next_would_not() -> None:
    episode = counting_episode(num_frames=23)
    starts = clip_starts(23, 30.0, config(step=1, stride=2))
    frames, _ = cut_clip(episode, starts[-1], config(stride=2))
    assert numbers(frames)[-1] == 22
    with pytest.raises(ValueError, match=r"e0\.hdf5: clip frames 15\.\.23"):
        cut_clip(episode, starts[-1] + 1, config(stride=2))


def test_whole_episode_actions_have_the_rate_of_the_clips() -> None:
    episode = counting_episode(num_frames=12)
    assert episode_actions(episode, config(stride=3))[:, 0].tolist() == [2, 5, 8]
    assert episode_actions(episode, config(stride=3, merge="sum"))[:, 0].tolist() == [3, 12, 21]
    assert len(episode_actions(episode, config())) == 11


def test_resize_is_antialiased_as_in_pillow() -> None:
    image = np.random.default_rng(0).integers(0, 256, (2, 240, 320, 3), dtype=np.uint8)
    ours = resize_frames(image, 64, 64).permute(0, 2, 3, 1).numpy()
    for got, source in zip(ours, image, strict=True):
        theirs = np.asarray(Image.fromarray(source).resize((64, 64), Image.Resampling.BILINEAR))
        assert np.abs(got.astype(int) - theirs).max() <= 1
    assert ours.std() < 30  # noise of std 74 must average out, not alias


def test_crop_keeps_shapes_round() -> None:
    image = np.zeros((1, 100, 200, 3), np.uint8)
    image[:, 38:62, 88:112] = 255  # a square in the middle
    stretched = resize_frames(image, 50, 50)[0, 0] > 128
    cropped = resize_frames(image, 50, 50, "crop")[0, 0] > 128
    assert cropped.any(0).sum() == cropped.any(1).sum() == 12
    assert stretched.any(0).sum() == stretched.any(1).sum() / 2


def test_a_clip_shows_the_chosen_camera() -> None:
    episode = counting_episode(cameras=("head_camera", "left"))
    later = CountingFrames(80)
    shifted = replace(episode, frames={**episode.frames, "left": replace(later, first=20)})
    assert numbers(cut_clip(shifted, 7, config())[0]) == [7, 8, 9, 10, 11]
    assert numbers(cut_clip(shifted, 7, config(camera="left"))[0]) == [27, 28, 29, 30, 31]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"num_frames": 16}, "1 . 4k frames"),
        ({"stride": 0}, "at least 1, got stride=0"),
        ({"step": 0}, "step=0"),
        ({"fps": 10.0, "stride": 2}, "replaces stride, got fps=10.0 with stride=2"),
        ({"fps": 0.0}, "fps is positive"),
        ({"height": 0}, "height must lie in 1 .. 16384, got 0"),
        ({"num_frames": 1_000_000_001}, "num_frames must lie in 1 .. 100001"),
        ({"fps": 1e-300}, "fps must lie in"),
    ],
)
def test_impossible_settings_are_refused(bad: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClipConfig(**bad)


def test_config_survives_yaml(tmp_path) -> None:
    wanted = config(fps=10.0, step=3, camera="front", merge="sum", aspect="crop")
    path = tmp_path / "clip.yaml"
    path.write_text(config_to_yaml(wanted))
    assert load_config(ClipConfig, str(path)) == wanted


def test_each_column_is_merged_as_what_it_is():
    actions = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 30.0], [8.0, 40.0]])
    positions = np.array([0, 2, 4])
    is_delta = np.array([True, False])
    assert merge_actions(actions, positions, "auto", is_delta).tolist() == [[3.0, 20.0], [12.0, 40.0]]
    assert merge_actions(actions, positions, "auto").tolist() == [[2.0, 20.0], [8.0, 40.0]]
    assert merge_actions(actions, positions, "last", is_delta).tolist() == [[2.0, 20.0], [8.0, 40.0]]
    assert merge_actions(actions, positions, "sum", is_delta).tolist() == [[3.0, 30.0], [12.0, 70.0]]
    assert merge_rule("auto", ("a", "b"), ()) == "last"
    assert merge_rule("auto", ("a", "b"), ("a", "b")) == "sum"
    assert merge_rule("auto", ("a", "b"), ("b",)) == "auto"
    assert merge_rule("last", ("a", "b"), ("a", "b")) == "last"
