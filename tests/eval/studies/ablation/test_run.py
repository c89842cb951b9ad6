import json
from dataclasses import replace
from pathlib import Path

import pytest
from studies.ablation.cells import AblationConfig, AblationRow, plan, report_folder
from studies.ablation.changed_model import ModelChange, write_changed
from studies.ablation.run import write_results
from studies.cells import check_settings
from studies.cells_file import read_cells

from worldmodel.config import load_config
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.place_map import PlaceMapConfig
from worldmodel.models.actions.pose_maps import PoseMapsConfig
from worldmodel.models.model import WorldModel
from worldmodel.training.world_model import TrainConfig

PROJECT = Path(__file__).parents[4]
ROWS = [
    AblationRow("all"),
    AblationRow("less", settings=("model.causal=false",)),
    AblationRow("old", model="m"),
]


def test_rows_of_a_seed_come_before_the_next_and_a_given_model_counts_once():
    cells = plan(AblationConfig(test="t", seeds=(0, 1), rows=ROWS))
    names = [cell.name for cell in cells]
    assert names == [
        *("all/seed0/trained", "all/seed0/report", "less/seed0/trained", "less/seed0/report"),
        "old/seed0/report",
        *("all/seed1/trained", "all/seed1/report", "less/seed1/trained", "less/seed1/report"),
    ]
    by_name = {cell.name: cell for cell in cells}
    assert by_name["old/seed0/report"].arguments[:2] == ("m", "t")
    assert by_name["less/seed1/report"].needs == ("less/seed1/trained",)
    told = set(by_name["less/seed1/trained"].arguments)
    assert {"model.causal=false", "fit.seed=1", "model.seed=1", "model.backbone.seed=1"} <= told


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "rows need names"),
        ([AblationRow("a"), AblationRow("a")], "rows need names"),
        ([AblationRow("a", model="m")], "the first row is trained here"),
        ([AblationRow("a"), AblationRow("b", settings=("x=1",), model="m")], "has no settings"),
        ([AblationRow("a", against="b")], "against names"),
        ([AblationRow("a"), AblationRow("b", change=ModelChange(command_lag=0.0))], "rows that name a model"),
    ],
)
def test_rows_that_cannot_be_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        AblationConfig(test="t", rows=rows)


def test_the_rows_of_the_desk_differ_by_one_thing_each(monkeypatch):
    monkeypatch.chdir(PROJECT)
    config = load_config(AblationConfig, "configs/desk/ablation.yaml")
    loaded = {
        cell.name.split("/")[0]: one for cell, one in check_settings(plan(config)) if "trained" in cell.name
    }
    base = loaded["pose_maps"]
    assert isinstance(base, TrainConfig)
    assert base.model.actions.pose_maps == PoseMapsConfig(command_lag=0.37)
    assert base.data.action_space == "pose_commands"
    paths = {"adaln": ActionConfig(), "map": ActionConfig(place_map=PlaceMapConfig())}
    for name, actions in paths.items():
        assert loaded[name].model == replace(base.model, actions=actions)
    assert loaded["measured"].data == replace(base.data, action_space="measured_poses")
    assert loaded["chunk"].data == base.data
    assert not loaded["chunk"].model.causal
    assert all(one.fit == base.fit for one in loaded.values())


def test_a_changed_model_keeps_its_weights_and_scales(tmp_path):
    change = ModelChange(action_space="measured_poses", command_lag=0.0)
    write_changed("desk", change, tmp_path / "changed")
    shipped, changed = WorldModel.from_pretrained("desk"), WorldModel.from_pretrained(tmp_path / "changed")
    assert changed.config.actions.pose_maps.command_lag == 0
    assert {entry.action_space for entry in changed.normalizer.stats.values()} == {"measured_poses"}
    assert changed.normalizer.stats["heron"].q01 == shipped.normalizer.stats["heron"].q01
    for name, weight in changed.fdm.state_dict().items():
        assert weight.equal(shipped.fdm.state_dict()[name])


def write_report(config: AblationConfig, row: AblationRow, seed: int, error: float) -> None:
    folder = report_folder(config, row, seed)
    folder.mkdir(parents=True)
    lines = [{"settings": {}}]
    for number in range(4):
        levels = {"static": 0.1, "autoencoder": 0.001, "true": error * (1 + number)}
        rows = {
            name: {
                "psnr": [20.0],
                "ssim": [0.9],
                "edges_moving": [0.5],
                **{key: [level] for key in ("mse", "moving_mse")},
            }
            for name, level in levels.items()
        }
        record = {"uid": f"e{number}", "rows": rows, "gripper_error": {"true": 1.0}}
        lines.append({"key": f"e{number}#0", "record": record})
    (folder / "clips.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "report.html").touch()


def test_the_table_pairs_rows_by_seed_and_episode(tmp_path):
    config = AblationConfig(
        output=str(tmp_path / "cells"), results=str(tmp_path / "results"), test="t", seeds=(0, 1), rows=ROWS
    )
    for seed, error in ((0, 0.001), (1, 0.002)):
        write_report(config, ROWS[0], seed, error)
    write_report(config, ROWS[1], 0, 0.01)  # ten times the error in every episode: 10 dB less
    lines = write_results(config).read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| static frame", "| all", "| less"]
    assert lines[-2].endswith("| - | - | - |")
    assert lines[-1].endswith("| all | -10.00 [-10.00, -10.00] | -10.00 |")
    cells = read_cells(tmp_path / "results")
    assert set(cells) == {"all/seed0", "all/seed1", "less/seed0"}
    assert cells["less/seed0"]["static"]["clip_psnr"]["mean"] == pytest.approx(10)
    assert cells["less/seed0"]["episodes"] == 4
