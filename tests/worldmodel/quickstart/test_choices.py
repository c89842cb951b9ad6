"""What quickstart chooses for data of several rates and lengths, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest

from worldmodel.config import load_config
from worldmodel.data.cameras import choose_camera
from worldmodel.data.clips import ClipConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.quickstart.choices import EpisodeFacts, Plan, make_plan, size_choice
from worldmodel.quickstart.commands import Quickstart, head_settings, kept_step
from worldmodel.training.world_model import TrainConfig

OWN_ROBOT = Path(__file__).parents[3] / "configs/desk/own_robot.yaml"


def episodes(count: int, num_frames: int = 200, fps: float = 30.0) -> list[EpisodeFacts]:
    first = EpisodeFacts("", num_frames, fps, "top", "the only camera", (48, 64))
    return [replace(first, uid=f"episode_{number}") for number in range(count)]


def settings(plan: Plan) -> TrainConfig:
    """As `quickstart` completes its preset."""
    return load_config(TrainConfig, str(OWN_ROBOT), ["data.paths=[x]", *plan.overrides])


def test_usual_data() -> None:
    plan = make_plan(episodes(40))
    config = settings(plan)
    clip, splits = config.data.clip, config.data.splits
    assert (clip.camera, clip.stride, clip.num_frames) == ("top", 4, 17)  # 30 / 4 is near 8
    assert (len(splits.test_uids), len(splits.val_uids)) == (8, 4)
    assert not set(splits.test_uids) & set(splits.val_uids)
    assert (config.fit.global_batch, config.fit.micro_batch) == (16, 16)
    assert all(choice.reason for choice in plan.choices)


@pytest.mark.parametrize(("count", "held_out"), [(12, 4), (24, 8), (50, 10), (93, 19), (300, 24)])
def test_a_fifth_is_held_out_and_at_least_eight_of_24(count: int, held_out: int) -> None:
    assert len(settings(make_plan(episodes(count))).data.splits.test_uids) == held_out


def test_short_episodes_get_a_slower_pace_then_shorter_clips() -> None:
    clip = settings(make_plan(episodes(10, num_frames=20))).data.clip
    assert (clip.num_frames, clip.stride) == (17, 1)
    clip = settings(make_plan(episodes(10, num_frames=10, fps=5.0))).data.clip
    assert (clip.num_frames, clip.stride) == (9, 1)


def test_episodes_of_several_rates_go_at_the_slowest() -> None:
    facts = episodes(10) + [replace(one, uid=f"slow_{one.uid}", fps=10.0) for one in episodes(10)]
    assert settings(make_plan(facts)).data.clip.fps == 10


def test_three_episodes_are_one_each() -> None:
    splits = settings(make_plan(episodes(3))).data.splits
    assert (len(splits.test_uids), len(splits.val_uids)) == (1, 1)
    config = settings(make_plan(episodes(3, num_frames=22, fps=8.0)))
    assert (config.data.clip.step, config.fit.global_batch) == (1, 4)  # six clips in the episode that trains


def test_copies_of_an_episode_stay_together() -> None:
    facts = [replace(one, actions=str(number % 10)) for number, one in enumerate(episodes(20))]
    splits = settings(make_plan(facts)).data.splits
    assert (len(splits.test_uids), len(splits.val_uids)) == (6, 4)  # 3 of 10 different ones, stored twice
    number = {one.uid: one.actions for one in facts}
    tested = {number[uid] for uid in splits.test_uids}
    assert sorted(splits.test_uids) == sorted(uid for uid in number if number[uid] in tested)
    with pytest.raises(ValueError, match="6 episodes hold 2 different ones, 3 needed"):
        make_plan([replace(one, actions=str(n % 2)) for n, one in enumerate(episodes(6))])


def test_refusals_say_what_is_needed() -> None:
    with pytest.raises(ValueError, match=r"^2 episode\(s\): at least 3 are needed, .* record at least 12$"):
        make_plan(episodes(2))
    mixed = [*episodes(3), replace(episodes(1)[0], camera="side")]
    with pytest.raises(ValueError, match="different cameras, top, side: name one with --camera"):
        make_plan(mixed)


@pytest.mark.parametrize(
    ("recorded", "aspect", "words"),
    [
        ((64, 64), "stretch", "as recorded"),
        ((256, 256), "stretch", "pictures of 256x256 are made smaller"),
        ((32, 32), "crop", "pictures of 32x32 are made larger"),
        ((192, 320), "stretch", "320x192 are made to fit in both directions, which changes their shape"),
        ((192, 320), "crop", "320x192 are made to fit, and cut at the sides"),
    ],
)
def test_what_becomes_of_pictures_is_said(recorded: tuple[int, int], aspect: str, words: str) -> None:
    choice = size_choice(recorded, ClipConfig(aspect=aspect))
    assert choice.value == "64x64 pixels"
    assert words in choice.reason


@pytest.mark.parametrize(("count", "few"), [(6, True), (40, True), (120, False)])
def test_too_few_episodes_are_named_before_the_training(count: int, few: bool) -> None:
    reason = next(one.reason for one in make_plan(episodes(count)).choices if one.setting == "episodes")
    assert ("are few to learn from: a real humanoid was followed with 70" in reason) == few
    assert ("4 can: record at least 12 episodes" in reason) == (count < 12)


def test_the_base_goes_on_from_where_held_out_episodes_were_predicted_best(tmp_path: Path) -> None:
    asked = Quickstart("data", tmp_path, 60.0, "desk/own_robot")
    (asked.base / "model").mkdir(parents=True)
    (asked.base / "checkpoints").mkdir()
    assert asked.model == asked.base / "model"  # nothing was validated
    assert kept_step(asked.base, 400) == 400
    (asked.base / "best").mkdir()
    (asked.base / "checkpoints/best").write_text("step_00000300\n")
    (asked.base / "checkpoints/step_00000300").mkdir()
    assert asked.model == asked.base / "best"
    assert kept_step(asked.base, 400) == 300
    assert f"start_from={asked.base}/best" in head_settings(asked, [], asked.base_model)
    asked.head.mkdir()
    assert asked.model == asked.head / "model"


def test_the_choice_of_a_camera_says_how_to_take_another() -> None:
    episode = synthetic_source(num_episodes=1, num_frames=9)[0]
    reader = next(iter(episode.frames.values()))
    several = choose_camera(replace(episode, frames={"front": reader, "side": reader}))
    facts = [replace(one, camera=several.name, camera_reason=several.reason) for one in episodes(12)]
    assert "another one: --camera NAME" in make_plan(facts).choices[0].reason
    assert "--camera" not in make_plan(episodes(12)).choices[0].reason


def test_episodes_that_are_too_short_are_told_from_episodes_that_are_too_few() -> None:
    with pytest.raises(ValueError, match=r"^12 episode\(s\), 0 as long as a clip of 5 frames: at least 3"):
        make_plan(episodes(12, num_frames=3))
