from dataclasses import replace

import pytest

from worldmodel.data.action_spaces import (
    check_action_space,
    describe_action_space,
    describe_action_spaces,
)
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import build_clip_dataset
from worldmodel.data.index import index_episodes
from worldmodel.data.normalize import ActionNormalizer, ActionStats, share_scales
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source

CLIP, ALL_TRAIN = ClipConfig(num_frames=5, height=8, width=8), SplitConfig(val=0.0, test=0.0)


def stats(space: str, names: tuple[str, ...] = ("x", "y"), high: float = 1.0) -> ActionStats:
    low, top = (0.0,) * len(names), (high,) * len(names)
    return ActionStats(names, low, top, low, top, 2, space)


class Spaced(list):
    """Synthetic episodes whose actions are said to be these."""

    name = "spaced"

    def __init__(self, *spaces: str) -> None:
        source = synthetic_source(len(spaces), 9, (8, 8))
        super().__init__(replace(source[i], action_space=space) for i, space in enumerate(spaces))


def test_names_of_no_space_are_refused() -> None:
    assert check_action_space("pose_commands") == "pose_commands"
    assert check_action_space("") == ""
    for wrong in ("pose", "joint", "end_effector"):
        with pytest.raises(ValueError, match=rf"one of joint_commands, .* got '{wrong}'"):
            check_action_space(wrong)
    with pytest.raises(ValueError, match="got 'pose'"):
        stats("pose")


def test_words_for_pages() -> None:
    assert describe_action_space("measured_poses").endswith("measured in the next frame, not commands)")
    assert "do not state" in describe_action_space("")
    both = describe_action_spaces(["pose_commands", "joint_commands", "pose_commands"])
    assert both.count("pose_commands") == both.count("joint_commands") == 1


def test_the_space_travels_with_the_scales() -> None:
    index = index_episodes([Spaced("pose_commands", "pose_commands")], CLIP, ALL_TRAIN)
    described = index.normalizer().to_dict()
    assert described["embodiments"][0]["action_space"] == "pose_commands"
    assert ActionNormalizer.from_dict(described).stats == index.stats


def test_episodes_of_one_robot_hold_one_kind_of_actions() -> None:
    with pytest.raises(ValueError, match=r"episode1: actions are measured_poses .* 'a' hold pose_commands"):
        index_episodes([Spaced("pose_commands", "measured_poses")], CLIP, ALL_TRAIN)


def test_commands_are_no_measured_poses_for_a_model() -> None:
    known = index_episodes([Spaced("measured_poses")], CLIP, ALL_TRAIN).normalizer()
    assert len(build_clip_dataset([Spaced("measured_poses")], "train", CLIP, ALL_TRAIN, known)) == 2
    assert len(build_clip_dataset([Spaced("")], "train", CLIP, ALL_TRAIN, known)) == 2
    with pytest.raises(ValueError, match=r"got pose_commands .* with action_space=measured_poses"):
        build_clip_dataset([Spaced("pose_commands")], "train", CLIP, ALL_TRAIN, known)
    with pytest.raises(ValueError, match="got pose_commands"):
        known.with_embodiments(index_episodes([Spaced("pose_commands")], CLIP, ALL_TRAIN).stats)


def test_columns_of_one_name_mean_one_thing_in_a_model() -> None:
    with pytest.raises(ValueError, match="one model cannot take both: actions of 'a' are measured_poses"):
        ActionNormalizer({"a": stats("measured_poses"), "b": stats("pose_commands")})
    mixed = ActionNormalizer({"a": stats("measured_poses"), "b": stats("joint_commands", ("j",))})
    assert mixed.width == 2


def test_scales_are_shared_within_a_space_only() -> None:
    found = share_scales({"a": stats("pose_commands"), "b": stats("pose_commands", high=3.0)})
    assert found["a"] == found["b"]
    assert found["a"].action_space == "pose_commands"
    known = {"a": stats("measured_poses", high=9.0)}
    assert share_scales({"b": stats("pose_commands")}, known)["b"].maximum == (1.0, 1.0)
