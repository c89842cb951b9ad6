import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from studies.arms.cells import ArmStudyConfig, plan, training_config
from studies.arms.report import table
from studies.arms.scores import EDITS, arm_pixels, predict, score_clip
from studies.context.cells import RowConfig

from robotwin_adapters.actions import POSE_NAMES
from worldmodel.config import load_config

ROOT = Path(__file__).parents[4]
NUM_FRAMES = 5


def clip(*arms: str) -> SimpleNamespace:
    """A picture of gray in which the left arm lights the left half and the right arm the right half."""
    frames = torch.full((NUM_FRAMES, 3, 8, 8), 0.5)
    actions = torch.zeros(NUM_FRAMES - 1, len(POSE_NAMES))
    for arm, half, columns in (("left", slice(0, 4), slice(0, 8)), ("right", slice(4, 8), slice(8, 16))):
        if arm in arms:
            actions[:, columns] = 0.1 * torch.arange(1.0, NUM_FRAMES)[:, None]
            frames[1:, :, :, half] += actions[:, columns.start].view(-1, 1, 1, 1)
    return SimpleNamespace(frames=frames, actions=actions, names=POSE_NAMES)


TRUTH = {"both": clip("left", "right"), "left": clip("left"), "right": clip("right")}


class ToyModel:
    """Draws each arm rightly, and adds an error where both move."""

    def __init__(self, error: float) -> None:
        self.error = error

    def __call__(self, given, actions, num_frames, seed, clip):
        left, right = actions[:, :, 0], actions[:, :, 8]
        halves = [part[:, :, None, None, None].expand(-1, -1, 3, 8, 4) for part in (left, right)]
        change = torch.cat(halves, -1) + self.error * ((left * right) != 0)[:, :, None, None, None]
        return torch.cat([given, given + change], 1)

    def commands(self, clip):
        return clip.actions

    def encode(self, frames):
        return frames

    def decode(self, frames):
        return frames


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ToyModel:
    monkeypatch.setattr("studies.arms.scores.ModelPredictor", lambda model, steps: model)
    return ToyModel(0.05)


def test_edits_hold_the_arms_that_do_not_move(toy: ToyModel) -> None:
    made = predict(toy, TRUTH, 0)
    assert list(made) == [*EDITS, "added"]
    for name in ("left", "right"):
        torch.testing.assert_close(made[name], TRUTH[name].frames[1:])
    torch.testing.assert_close(made["none"], TRUTH["both"].frames[:1].expand(4, -1, -1, -1))
    torch.testing.assert_close(made["both"], TRUTH["both"].frames[1:] + 0.05)
    torch.testing.assert_close(made["added"], TRUTH["both"].frames[1:])  # what each arm does, put together


def test_pixels_are_told_apart_by_the_arm_that_moved_them() -> None:
    masks = arm_pixels(TRUTH)
    assert masks["moving"].all()
    assert masks["left"].float().mean((0, 1)).tolist() == [1.0] * 4 + [0.0] * 4
    assert masks["right"].float().mean((0, 1)).tolist() == [0.0] * 4 + [1.0] * 4


def test_errors_are_those_of_the_marked_pixels(toy: ToyModel) -> None:
    errors = score_clip(toy, TRUTH, 0)
    assert errors["direct/left"] == pytest.approx(0.05**2, rel=1e-4)
    assert errors["added/moving"] == pytest.approx(0, abs=1e-10)
    assert errors["alone/right"] == pytest.approx(0, abs=1e-10)
    assert errors["ceiling/moving"] == 0
    assert errors["static/left"] == pytest.approx((0.01 + 0.04 + 0.09 + 0.16) / 4, rel=1e-4)


def test_the_table_says_how_much_of_the_gap_is_closed() -> None:
    study = ArmStudyConfig(rows=[RowConfig("plain"), RowConfig("context"), RowConfig("both")], seeds=(0, 1))
    levels = {"plain": 10.0, "context": 13.0, "both": 14.0}
    names = [
        f"{way}/{where}" for way in ("direct", "added", "static", "ceiling") for where in ("left", "right")
    ]
    records = {
        f"{row}/seed{seed}": {
            **dict.fromkeys([*names, "alone/left", "alone/right", "static/moving", "ceiling/moving"], 1.0),
            "direct/moving": level,
            "added/moving": 12.0,
            **{"type_d": 0.1, "contrast": 0.2},
        }
        for row, level in levels.items()
        for seed in (0, 1)
    }
    lines = table(study, records).splitlines()
    context = next(line for line in lines if line.startswith("| context | direct"))
    added = next(line for line in lines if line.startswith("| plain | added"))
    assert "| 13.00" in context
    assert "75 %" in context or "75%" in context
    assert "50 %" in added or "50%" in added


def test_all_rows_of_a_seed_come_before_the_next_and_every_config_is_whole(tmp_path: Path) -> None:
    training = (ROOT / "configs/context/arms_model.yaml").read_text()
    shipped = training.replace("outputs/arms/first_vae", str(ROOT / "worldmodel/weights/desk/vae"))
    (tmp_path / "model.yaml").write_text(shipped)
    study = load_config(
        ArmStudyConfig, str(ROOT / "configs/context/arms.yaml"), [f"training={tmp_path / 'model.yaml'}"]
    )
    cells = list(plan(study))
    assert [cell.key for cell in cells[:7]] == [
        *("plain/seed0", "context/seed0", "both/seed0", "untold/seed0", "no_effects/seed0", "mended/seed0"),
        "plain/seed1",
    ]
    assert math.prod((len(study.rows), len(study.seeds))) == len(cells)
    configs = {cell.row.name: training_config(study, cell) for cell in cells[:6]}
    assert configs["plain"].model.context is None
    assert configs["context"].model.context.is_told
    assert not configs["untold"].model.context.is_told
    assert not configs["no_effects"].model.context.effects
    assert configs["mended"].model.context.told_share == 0.5
    assert not configs["mended"].model.context.modulates
    assert len({configs[name].fit.steps for name in configs}) == 1
    assert configs["both"].data.paths == ("outputs/arms/both",)


def test_rows_that_start_from_others_are_refused() -> None:
    with pytest.raises(ValueError, match="start from scratch"):
        ArmStudyConfig(rows=[RowConfig("a"), RowConfig("b", start_from="a")])
