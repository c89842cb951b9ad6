import numpy as np
import pytest

from worldmodel.data.cameras import CameraChoice, choose_camera, find_camera
from worldmodel.data.clips import ClipConfig
from worldmodel.data.index import index_episodes
from worldmodel.data.synthetic import synthetic_source
from worldmodel.types import Episode, EpisodeSource


def episode(*cameras: str) -> Episode:
    (like,) = [synthetic_source(1, 9, (8, 8))[0]]
    reader = like.frames["head"]
    return Episode("e0", "e0.hdf5", dict.fromkeys(cameras, reader), np.zeros((8, 1)), ("x",), 10.0, "arm")


def test_the_only_camera_then_the_first_of_the_reader() -> None:
    assert choose_camera(episode("left")) == CameraChoice("left", "the only camera")
    found = choose_camera(episode("top", "left", "head_camera"))
    assert found.name == "top"
    assert (
        found.reason
        == "no camera was named, and it is the first of top, left, head_camera, where wrist cameras come last"
    )


@pytest.mark.parametrize("asked", ["cam_high", "high", "observation.images.cam_high"])
def test_a_named_camera_goes_by_its_name_or_its_end(asked: str) -> None:
    found = choose_camera(episode("front", "cam_high"), asked)
    assert found == CameraChoice("cam_high", "named in the settings")


@pytest.mark.parametrize("asked", ["top", "camera", "my_left_camera"])
def test_an_unknown_or_ambiguous_camera_is_refused(asked: str) -> None:
    two = episode("left_camera", "right_camera")
    with pytest.raises(ValueError, match=f"e0.hdf5: camera '{asked}' expected, found left_camera, right_"):
        find_camera(two, asked)
    with pytest.raises(ValueError, match=r"e0\.hdf5: no camera in the episode"):
        choose_camera(episode())


class Listed(list):
    """Episodes as a source."""

    name = "listed"


def test_the_index_says_which_camera_and_why() -> None:
    def summary(*episodes: Episode, camera: str | None = None) -> str:
        source: EpisodeSource = Listed(episodes)
        clip = ClipConfig(num_frames=5, height=8, width=8, camera=camera)
        return index_episodes([source], clip).camera_summary()

    assert summary(episode("a"), episode("a")) == "camera a (the only camera)"
    assert summary(episode("a", "b"), camera="b") == "camera b (named in the settings)"
    mixed = summary(episode("a", "b"), episode("c"), episode("c"))
    assert mixed == (
        "camera a (no camera was named, and it is the first of a, b, where wrist cameras come last) "
        "in 1 episodes; camera c (the only camera) in 2 episodes"
    )
