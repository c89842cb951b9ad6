import dataclasses
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from studies.cells import Cell, check_settings, run_cells
from studies.table2.cells import ROWS, PretrainedModels, Table2Config, plan, rollout_folder, training_folder
from studies.table2.page import write_table
from studies.table2.results import collect, paired_spread, smallest_difference
from studies.table2.run import check_memory_of

from worldmodel.config import load_config
from worldmodel.evaluation.rollouts.page import estimate_of

PROJECT = Path(__file__).parents[4]
DATA = {"source": ("s",), "target": ("t",), "target_test": "t2", "transfer_test": "t3"}


def test_the_plan_holds_every_row_seed_and_task_once():
    cells = plan(Table2Config(**DATA, seeds=(0, 1)))
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names) == 3 + 2 * (5 + 6 * 2)  # LACG and LACG+controller share a model
    assert names[:3] == ["pretrained/no_action", "pretrained/acg", "pretrained/lacg"]
    by_name = {cell.name: cell for cell in cells}
    for cell in cells:
        assert all(names.index(need) < names.index(cell.name) for need in cell.needs)
    tuned = by_name["trained/acg_mcl/seed1"]
    assert tuned.needs == ("pretrained/acg",)
    assert {"fit.seed=1", "model.mcl.mode=first_order", "data.paths=[t]"} <= set(tuned.arguments)
    assert not any("mcl" in word for word in by_name["trained/acg/seed1"].arguments[2:])
    controller = by_name["rollouts/lacg_controller/seed0/transfer"]
    assert controller.arguments[:2] == ("outputs/table2/trained/lacg/seed0/model", "t3")
    assert "drive=robot" in controller.arguments
    assert "drive=latent" in by_name["rollouts/lacg/seed0/transfer"].arguments


def test_given_models_are_not_pretrained():
    given = PretrainedModels(acg="hub/acg")
    cells = plan(Table2Config(**{**DATA, "source": ()}, pretrained=given, rows=("acg",), seeds=(3,)))
    assert [cell.name for cell in cells] == [
        "trained/acg/seed3",
        "rollouts/acg/seed3/target",
        "rollouts/acg/seed3/transfer",
    ]
    assert "start_from=hub/acg" in cells[0].arguments


def test_from_the_backbone_nothing_is_pretrained():
    cells = plan(
        Table2Config(**{**DATA, "source": ()}, start="backbone", rows=("acg", "acg_mcl"), seeds=(0,))
    )
    assert [cell.name for cell in cells[:2]] == ["trained/acg/seed0", "trained/acg_mcl/seed0"]
    assert not any(word.startswith("start_from=") for cell in cells for word in cell.arguments)
    assert not cells[0].needs
    with pytest.raises(ValueError, match="start=backbone has no pretraining"):
        Table2Config(**DATA, start="backbone", mcl_pretraining=True)


def test_mcl_acts_in_pretraining_too_if_it_is_asked_to():
    cells = {cell.name: cell for cell in plan(Table2Config(**DATA, mcl_pretraining=True, seeds=(0,)))}
    pretrained = [name for name in cells if name.startswith("pretrained/")]
    assert pretrained == [
        f"pretrained/{name}" for name in ("no_action", "acg", "acg_mcl", "lacg", "lacg_mcl")
    ]
    assert "model.mcl.mode=first_order" in cells["pretrained/acg_mcl"].arguments
    assert not any("mcl" in word for word in cells["pretrained/acg"].arguments)
    assert cells["trained/acg_mcl/seed0"].needs == ("pretrained/acg_mcl",)
    assert cells["trained/acg/seed0"].needs == ("pretrained/acg",)
    with pytest.raises(ValueError, match="leave out `pretrained`"):
        Table2Config(**DATA, mcl_pretraining=True, pretrained=PretrainedModels(acg="hub/acg"))


def test_the_smallest_difference_is_that_of_a_paired_t_test():
    # Tables of the paired t test, two-sided 5 %, power 80 %: 34 pairs for d = 0.5, 199 for d = 0.2.
    assert smallest_difference(1.0, 34) == pytest.approx(0.5, abs=0.01)
    assert smallest_difference(1.0, 199) == pytest.approx(0.2, abs=0.002)
    assert smallest_difference(0.6, 34) == pytest.approx(0.6 * smallest_difference(1.0, 34))


def test_what_cannot_be_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="rows are no_action, acg"):
        Table2Config(**DATA, rows=("acgg",))
    with pytest.raises(ValueError, match="transfer_test must not be empty"):
        Table2Config(**{**DATA, "transfer_test": ""})
    with pytest.raises(ValueError, match="source must name datasets"):
        Table2Config(**{**DATA, "source": ()})
    training = str(PROJECT / "configs/debug/world_model.yaml")
    good = Table2Config(**DATA, training=training, training_settings=("data.synthetic_episodes=0",))
    check_settings(plan(good))
    bad = dataclasses.replace(good, rollout_settings=("num_steps=3",))
    with pytest.raises(ValueError, match=r"rollouts/no_action/seed0/target: .*num_steps"):
        check_settings(plan(bad))


def script_cell(tmp_path: Path, name: str, *needs: str, setting: str = "1") -> Cell:
    """Counts its runs in a file; fails while a file named NAME.bad is there."""
    script = (
        "import sys; from pathlib import Path; folder = Path(sys.argv[4])\n"  # behind -m worldmodel train
        "print('working on', folder.name); (folder / 'runs').open('a').write('x')\n"
        "sys.exit(3) if folder.with_suffix('.bad').exists() else (folder / 'result').touch()\n"
    )
    folder, launch = tmp_path / name, (sys.executable, "-c", script)
    return Cell(name, folder, "train", (str(folder), setting), launch, folder / "result", needs)


def test_a_failed_cell_blocks_only_what_needs_it_and_is_tried_again(tmp_path):
    cells = [script_cell(tmp_path, "a"), script_cell(tmp_path, "b", "a"), script_cell(tmp_path, "c")]
    (tmp_path / "a.bad").touch()
    logs = tmp_path / "logs"
    assert [state for _, state in run_cells(cells, logs)] == ["failed", "blocked", "done"]
    assert (logs / "a.log").read_text() == "working on a\n"
    (tmp_path / "a.bad").unlink()
    assert [state for _, state in run_cells(cells, logs)] == ["done", "done", "done"]
    assert [(tmp_path / name / "runs").read_text() for name in "abc"] == ["xx", "x", "x"]


def test_a_launcher_that_is_not_there_fails_its_cell_only(tmp_path):
    cell = dataclasses.replace(script_cell(tmp_path, "a"), launch=("no_such_launcher",))
    assert [state for _, state in run_cells([cell, script_cell(tmp_path, "b")], tmp_path)] == [
        "failed",
        "done",
    ]
    assert "no_such_launcher" in (tmp_path / "a.log").read_text()


def test_results_of_other_settings_are_not_mistaken_for_ours(tmp_path):
    assert [state for _, state in run_cells([script_cell(tmp_path, "a")], tmp_path)] == ["done"]
    with pytest.raises(ValueError, match="another run: 1 2 differ"):
        list(run_cells([script_cell(tmp_path, "a", setting="2")], tmp_path))


FRAMES, EPISODES = 4, 12
GAIN = {"no_action": 1.0, "acg": 5.0, "acg_mcl": 5.5, "lacg": 6.0, "lacg_mcl": 6.0, "lacg_controller": 4.0}


def write_cell(config: Table2Config, row: str, seed: int, task: str) -> None:
    """A report in which the row gains GAIN dB over a static frame of 20 dB, the ceiling 10 dB."""
    folder = rollout_folder(Path(config.output), row, seed, task)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)  # the same episodes in every cell
    noise = np.random.default_rng([seed, *row.encode()])
    lines = [{"settings": {}}]
    for number in range(EPISODES):
        base = 20 + rng.normal()
        levels = {"static": base, "autoencoder": base + 10, "true": base + GAIN[row] + 0.1 * seed}
        levels |= {"true": levels["true"] + 0.01 * noise.normal(), "zero": base + 0.5}
        rows = {name: curves(level) for name, level in levels.items()}
        carried = {"moved": number % 2 == 0, "in_place": dict.fromkeys(levels, number % 4 == 0)}
        record = {
            "uid": f"e{number}",
            "rows": rows,
            "gripper_error": {"true": 6 / GAIN[row]},
            "action_error": {"truth": 0.1, "true": 1 / GAIN[row], "static": 0.9},
            "object": carried,
        }
        lines.append({"key": f"e{number}#0", "record": record})
    (folder / "clips.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "report.html").touch()


def curves(level: float) -> dict[str, list[float]]:
    error = 10 ** (-level / 10)
    values = {
        "psnr": level,
        "ssim": level / 40,
        "mse": error,
        "moving_psnr": level - 6,
        "moving_mse": 4 * error,
        "edges_moving": level / 50,
    }
    return {name: [value] * FRAMES for name, value in values.items()}


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Table2Config:
    config = Table2Config(**DATA, output=str(tmp_path_factory.mktemp("table2")), seeds=(0, 1, 2))
    for row in ROWS:
        for seed in config.seeds:
            for task in ("target", "transfer"):
                if (row, seed) != ("lacg_mcl", 2):  # not finished yet
                    write_cell(config, row, seed, task)
    return config


def test_rows_that_see_the_true_future_say_how_many_bits_of_it(config, tmp_path):
    assert collect(config)["kl_bits"] == {}  # no training was validated
    for seed, bits in ((0, 10.0), (2, 12.0)):
        folder = training_folder(Path(config.output), "lacg", seed)
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps({"kl": bits * math.log(2), "kl_bits": bits}))
    results = collect(config)
    assert results["kl_bits"].keys() == {"lacg"}
    write_table(results, tmp_path)
    assert "standard normal, in validation: LACG 11.0 [-1.7, 23.7]." in (tmp_path / "table2.md").read_text()


def test_the_table_gives_back_what_the_reports_hold(config):
    results = collect(config)
    target = results["tasks"]["target"]
    assert target["episodes"] == EPISODES
    acg = target["rows"]["acg"]
    assert acg["seeds"] == [0, 1, 2]
    static = target["floors"]["static"]["psnr"]["episodes"]["mean"]
    assert acg["psnr"]["episodes"]["mean"] - static == pytest.approx(5.1, abs=0.02)
    # Episodes differ by a normal number each, seeds by 0.1 dB: t(0.975, 2) = 4.303.
    over_seeds = estimate_of(acg["psnr"]["seeds"])
    assert over_seeds.count == 3
    assert over_seeds.high - over_seeds.mean == pytest.approx(4.303 * 0.1 / 3**0.5, rel=0.1)
    over_episodes = estimate_of(acg["psnr"]["episodes"])
    assert 0.3 < over_episodes.high - over_episodes.mean < 1.2
    assert acg["gap_closed"]["clip_psnr"]["episodes"]["mean"] == pytest.approx(0.51, abs=0.002)
    assert acg["gap_closed"]["clip_psnr"]["seeds"]["count"] == 3
    assert acg["wins"]["zero"]["clip_psnr"]["mean"] == 1.0
    assert target["rows"]["no_action"]["wins"]["static"]["clip_psnr"]["mean"] == 1.0
    assert acg["gripper_error_to_no_action"]["mean"] == pytest.approx(1 / 5)
    assert acg["action_error"]["seeds"]["mean"] == pytest.approx(1 / 5)
    assert target["floors"]["static"]["action_error"]["episodes"]["mean"] == pytest.approx(0.9)
    carried = acg["object_in_place"]["episodes"]
    assert (carried["mean"], carried["count"]) == (0.5, 6)


def test_wins_are_counted_in_every_seed(tmp_path):
    """True actions win by 9 dB in one seed and lose by 1 dB in the other: half of the time, not always."""
    config = Table2Config(**DATA, output=str(tmp_path), seeds=(0, 1), rows=("acg",))
    for seed, level in enumerate((29.0, 19.0)):
        folder = rollout_folder(tmp_path, "acg", seed, "target")
        folder.mkdir(parents=True)
        rows = {
            "static": curves(15.0),
            "autoencoder": curves(40.0),
            "true": curves(level),
            "zero": curves(20.0),
        }
        lines = [{"settings": {}}, {"key": "e#0", "record": {"uid": "e", "rows": rows}}]
        (folder / "clips.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "report.html").touch()
    won = collect(config)["tasks"]["target"]["rows"]["acg"]["wins"]
    assert (won["zero"]["clip_psnr"]["mean"], won["zero"]["clip_psnr"]["count"]) == (0.5, 1)
    assert won["static"]["moving_clip_psnr"]["mean"] == 1.0


def test_the_effect_of_mcl_is_paired(config):
    effects = collect(config)["mcl"]
    gain = estimate_of(effects["ACG"]["target"]["psnr"]["episodes"])
    assert gain.mean == pytest.approx(0.5, abs=0.01)
    assert gain.high - gain.low < 0.05  # episodes differ by 1 dB, but the pairs do not
    assert effects["ACG"]["target"]["psnr"]["seeds"]["count"] == 3
    assert effects["LACG"]["transfer"]["psnr"]["seeds"]["count"] == 2  # seeds that both rows have
    assert abs(effects["LACG"]["transfer"]["psnr"]["episodes"]["mean"]) < 0.01


def test_the_spread_of_an_earlier_run_is_that_of_its_pairs(config):
    spread = paired_spread(config, "target", "acg_mcl", "acg")
    assert 0.001 < spread < 0.03  # noise of 0.01 dB in each row, three seeds averaged
    assert np.isnan(paired_spread(dataclasses.replace(config, output="none"), "target", "acg_mcl", "acg"))


def test_the_page_shows_ours_and_marks_the_papers(config):
    output = Path(config.output)
    page = write_table(collect(config), output)
    text = (output / "table2.md").read_text()
    assert json.loads((output / "table2.json").read_text())["tasks"]["transfer"]["episodes"] == EPISODES
    assert "ACG, target task: MCL helps." in text
    assert "LACG, target task: MCL makes no difference" in text
    assert "| LACG+MCL (paper) | 0.772 | 18.99 | 0.0125 | 0.749 | 0.784 | 19.33 | 0.0115 | 0.758 |" in text
    assert "Factored Generative Models through Mechanism Diversity', not run by us" in text
    assert "LACG rows latent actions, which are inferred from the true future video" in text
    assert "action error, half ranges" in text
    assert "LACG+MCL (2 seeds)" in text
    assert page.read_text().count("data:image/png;base64,") == 1


def test_reports_on_other_episodes_cannot_stand_in_one_table(config, tmp_path):
    other = Table2Config(**DATA, output=str(tmp_path), seeds=(0,), rows=("acg", "lacg"))
    for row in other.rows:
        write_cell(other, row, 0, "target")
    path = rollout_folder(tmp_path, "lacg", 0, "target") / "clips.jsonl"
    path.write_text(path.read_text().replace('"e3"', '"e33"'))
    with pytest.raises(ValueError, match="target task were not evaluated on the same episodes"):
        collect(other)


@pytest.mark.parametrize("path", ["configs/wan/table2.yaml", "configs/desk/table2.yaml"])
def test_pairs_differ_by_mcl_alone(path, monkeypatch):
    monkeypatch.chdir(PROJECT)
    told = {cell.name: set(cell.arguments) for cell in plan(load_config(Table2Config, path))}
    for without, with_ in (("acg", "acg_mcl"), ("lacg", "lacg_mcl")):
        differ = told[f"trained/{without}/seed0"] ^ told[f"trained/{with_}/seed0"]
        assert all(
            setting.startswith("model.mcl.")
            for setting in {word for word in differ if not word.startswith("output=")}
        )


def test_the_desk_config_is_valid(monkeypatch):
    monkeypatch.chdir(PROJECT)
    config = load_config(Table2Config, "configs/desk/table2.yaml")
    check_settings(plan(config))
    assert len(config.seeds) >= 3
    assert config.rows == tuple(ROWS)


def test_a_row_that_does_not_fit_its_gpus_is_refused_by_name():
    large = ("model.backbone.num_layers=40", "model.backbone.num_heads=40", "model.backbone.head_dim=128")
    cells = plan(Table2Config(**DATA, seeds=(0,), training_settings=large))
    settings = check_settings([cell for cell in cells if cell.name.startswith("trained/acg_mcl")])
    with pytest.raises(ValueError, match=r"trained/acg_mcl/seed0: one RTX4090 has 24 GiB, this run needs"):
        list(check_memory_of(settings, "1xRTX4090"))
