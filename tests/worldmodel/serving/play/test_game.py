from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("mujoco")

from robotwin_adapters.open_dataset import open_dataset
from worldmodel.data.synthetic import synthetic_source
from worldmodel.environments.spaces import WorldSpec
from worldmodel.environments.tabletop import TabletopScenes
from worldmodel.locator.model import Locator
from worldmodel.locator.truth import POINTS
from worldmodel.models.config import ObjectiveConfig
from worldmodel.models.model import WorldModel
from worldmodel.models.picture_head import HeadConfig
from worldmodel.serving.play.app import PlayServer
from worldmodel.serving.play.game import Game
from worldmodel.serving.play.save import game_episode, save_game
from worldmodel.serving.play.teleop import Inputs, Teleop
from worldmodel.types import to_unit_range

DOWN = Inputs({"left": [0, -1, 0, 0]})
CLOSE = Inputs({"left": [0, 0, 0, -1]})
IDLE = Inputs()


@pytest.fixture(scope="module")
def desk() -> WorldModel:
    return WorldModel.from_pretrained("desk")


@pytest.fixture
def game(desk: WorldModel) -> Game:
    game = Game(desk)
    game.reset(0)
    return game


@pytest.mark.parametrize(
    ("keys", "axis", "sign"),
    [([0, -1, 0, 0], 1, 1), ([1, -0.5, 0, 0], 0, 1), ([-1, -0.5, 0, 0], 0, -1)],
)
def test_a_hand_goes_where_the_key_points_in_the_picture(
    game: Game, keys: list[float], axis: int, sign: int
) -> None:
    before = game.step(IDLE).reading["hands"]["left"]
    for _ in range(3):
        after = game.step(Inputs({"left": keys})).reading["hands"]["left"]
    assert sign * (after[axis] - before[axis]) > 0.03  # picture rows count downwards


def test_the_dreamed_hand_follows_the_keys(desk: WorldModel) -> None:
    locator = Locator.from_pretrained("locator")
    game = Game(desk)
    game.reset(3)
    side = min(hands := game.step(IDLE).reading["hands"], key=lambda name: hands[name][0])
    number = POINTS.index(f"{side} gripper")

    def place(keys: list[float], blocks: int) -> np.ndarray:
        for _ in range(blocks):
            turn = game.step(Inputs({side: keys}))
        frames = to_unit_range(torch.from_numpy(turn.dream[-1:]).permute(0, 3, 1, 2))
        return locator.locate(frames).points[0, number].numpy()

    first = place([0.6, -1, 0, 0], 2)  # into the picture
    second = place([1, 0, 0, 0], 1)
    assert second[0] > first[0] + 2  # pixels to the right
    assert place([-1, 0, 0, 0], 1)[0] < second[0] - 2


def test_a_dreamed_hand_that_is_held_stays_while_the_other_follows_its_keys(desk: WorldModel) -> None:
    locator = Locator.from_pretrained("locator")
    game = Game(desk)
    game.reset(3)

    def places(inputs: Inputs) -> dict[str, np.ndarray]:
        frames = to_unit_range(torch.from_numpy(game.step(inputs).dream[-1:]).permute(0, 3, 1, 2))
        points = locator.locate(frames).points[0].numpy()
        return {side: points[POINTS.index(f"{side} gripper")] for side in ("left", "right")}

    for _ in range(2):  # into the picture; the robot faces us
        game.step(Inputs({"left": [-0.6, -1, 0, 0], "right": [0.6, -1, 0, 0]}))
    before = places(IDLE)  # hands arrive later than their commands
    after = places(Inputs({"left": [-1, 0, 0, 0], "right": [1, 0, 0, 0]}, hold=["left_arm"]))
    assert np.linalg.norm(after["left"] - before["left"]) < 2  # pixels
    assert after["right"][0] > before["right"][0] + 2


def test_other_arms_and_openings_stay_what_they_were(game: Game) -> None:
    before = game.teleop.command.copy()
    game.step(DOWN)
    changed = np.flatnonzero(game.teleop.command != before)
    assert {game.spec.action_names[column] for column in changed} <= {"left_x", "left_y"}
    game.step(CLOSE)
    assert game.teleop.command[game.spec.action_names.index("left_gripper")] < 0.5


def test_what_is_held_keeps_its_command_whatever_is_asked(game: Game) -> None:
    before = game.teleop.command.copy()
    game.step(Inputs({"left": [1, -1, 0, -1], "right": [-1, -1, 0, -1]}, hold=["left_arm", "right_gripper"]))
    changed = {game.spec.action_names[column] for column in np.flatnonzero(game.teleop.command != before)}
    assert changed == {"left_gripper", "right_x", "right_y"}
    with pytest.raises(ValueError, match="no concept tail in these actions"):
        game.step(Inputs(hold=["tail"]))


def test_the_autopilot_drives_the_arms_that_are_not_held(game: Game) -> None:
    before = game.teleop.command.copy()
    for _ in range(3):
        game.step(Inputs(hold=["left_arm", "right_arm"]), follow=True)
    poses = [number for number, name in enumerate(game.spec.action_names) if "gripper" not in name]
    assert (game.teleop.command[poses] == before[poses]).all()
    game.step(IDLE, follow=True)
    assert (game.teleop.command[poses] != before[poses]).any()


def test_a_step_back_takes_the_simulator_and_the_dream_back(game: Game) -> None:
    game.step(DOWN)
    first = game.step(DOWN)
    shown = game.back()
    np.testing.assert_array_equal(shown.dream[0], game.moments[-1].dream)
    again = game.step(DOWN)
    np.testing.assert_array_equal(first.dream, again.dream)
    assert first.beside is not None
    np.testing.assert_array_equal(first.beside, again.beside)
    game.back()
    game.back()
    with pytest.raises(ValueError, match="nothing to take back"):
        game.back()


def test_a_drive_is_saved_in_every_format_and_can_be_taken_over(
    game: Game, desk: WorldModel, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="nothing was driven"):
        save_game(game, tmp_path, "mp4")
    for inputs in (DOWN, DOWN, CLOSE):
        game.step(inputs)
    for kind in ("lerobot", "robotwin", "mp4"):
        assert save_game(game, tmp_path, kind).exists()
    assert save_game(game, tmp_path, "mp4").name == "drive-001.mp4"
    lerobot = open_dataset(tmp_path / "drive-000-lerobot")[0]
    assert lerobot.num_frames == 13
    assert lerobot.action_names == game.spec.action_names
    np.testing.assert_allclose(lerobot.robot_actions[-1], game.teleop.command, atol=1e-5)
    robotwin = open_dataset(tmp_path / "drive-000-robotwin", action_space="pose_commands")[0]
    expected = np.stack([moment.command for moment in game.moments])[1:]
    assert np.abs(robotwin.robot_actions[:, :3] - expected[:, :3]).max() < 5e-3  # where the arm could go
    assert game.start.camera is not None
    stored = robotwin.cameras[game.spec.camera].extrinsics
    np.testing.assert_allclose(stored.reshape(-1, 3, 4)[0], game.start.camera.extrinsics, atol=1e-5)
    with pytest.raises(ValueError, match="format"):
        save_game(game, tmp_path, "avi")


def test_a_recorded_episode_is_followed_until_a_key_is_pressed(game: Game, desk: WorldModel) -> None:
    for inputs in (DOWN, DOWN, CLOSE, DOWN):
        game.step(inputs)

    class Source:
        name = "one"

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int):
            return game_episode(game, list(game.moments))

    source = Source()
    other = Game(desk, dataset=source)
    recorded = source[0]
    other.load(0, 4)
    np.testing.assert_allclose(other.teleop.command, recorded.robot_actions[3], atol=1e-6)
    turn = other.step(IDLE, follow=True)
    np.testing.assert_allclose(other.teleop.command, recorded.robot_actions[7], atol=1e-6)
    assert turn.beside is not None
    np.testing.assert_array_equal(turn.beside, recorded.frames[game.spec.camera].read(range(5, 9)))
    taken = other.step(DOWN, follow=True)
    assert taken.beside is None
    assert np.abs(other.teleop.command - recorded.robot_actions[11]).max() > 1e-3
    with pytest.raises(ValueError, match="episode 3"):
        other.load(3, 0)


def test_sliders_move_a_dimension_at_a_bounded_pace(desk: WorldModel) -> None:
    spec = WorldSpec.of(desk.contract, desk.normalizer)
    teleop = Teleop(spec, TabletopScenes(spec)(0).camera)
    before = teleop.command.copy()
    rows = teleop.block(Inputs(sliders={0: float(spec.high[0])}), 4)
    steps = np.diff(np.concatenate([before[None], rows])[:, 0])
    assert (steps > 0).all()
    assert steps.max() < 0.1 * (spec.high[0] - spec.low[0])
    np.testing.assert_array_equal(rows[:, 1:], np.broadcast_to(before[1:], (4, len(before) - 1)))


@pytest.mark.parametrize("options", [{"history": 1}, {"history": 2}, {"causal": True}])
def test_a_robot_without_a_simulator_is_driven_by_sliders_from_recorded_frames(
    make_world_model: Callable[..., WorldModel], tmp_path: Path, options: dict[str, Any]
) -> None:
    source = synthetic_source(
        num_episodes=2, num_frames=40, size=(32, 32), embodiments=("a",), action_dim=6, fps=50 / 3
    )
    game = Game(make_world_model(**options), dataset=source)
    assert not game.has_simulator
    assert game.reset(1).beside is None
    assert game.teleop.sides == ()
    high = float(game.spec.high[2])
    before = game.teleop.command[2]
    turn = game.step(Inputs(sliders={2: high}))
    assert turn.dream.shape == (4, 32, 32, 3)
    assert game.teleop.command[2] > before
    followed = game.load(0, 7)
    assert followed.reading["frames"] == 0
    assert game.step(IDLE, follow=True).beside is not None
    assert save_game(game, tmp_path, "lerobot").is_dir()
    with pytest.raises(ValueError, match="joint angles"):
        save_game(game, tmp_path, "robotwin")
    alone = Game(make_world_model(**options))
    with pytest.raises(ValueError, match="--dataset"):
        alone.reset(0)


@pytest.mark.parametrize("head", [None, HeadConfig(width=8)])
def test_a_picture_head_is_driven_at_the_size_of_the_camera(
    make_world_model: Callable[..., WorldModel], tmp_path: Path, head: HeadConfig | None
) -> None:
    source = synthetic_source(
        num_episodes=2, num_frames=40, size=(64, 96), embodiments=("a",), action_dim=6, fps=50 / 3
    )
    objective = ObjectiveConfig(pixel_weight=1.0 if head else 0.0)
    game = Game(make_world_model(causal=True, head=head, objective=objective), dataset=source)
    size = (64, 96) if head else (32, 32)
    first = game.reset(1)
    assert first.dream.shape == (1, *size, 3)
    told = PlayServer(lambda: game, "a", tmp_path).describe(game)
    assert (told["height"], told["width"]) == size
    turn = game.step(IDLE, follow=True)
    assert turn.beside is not None
    assert turn.dream.shape == turn.beside.shape == (4, *size, 3)
    assert game.measure()["error"] >= 0
    assert game.back().dream.shape == first.dream.shape
    game.step(IDLE)
    assert save_game(game, tmp_path, "mp4").is_file()
