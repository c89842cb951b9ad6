import json
from pathlib import Path

import pytest
from studies.mcl.cells import WITHOUT, MclStudyConfig, arm_folder, comparisons, plan
from studies.mcl.results import choose_arms, paired_gains, visible_effect, write_study
from studies.mcl.run import main
from studies.table2.cells import check_settings

from worldmodel.config import load_config

ROOT = Path(__file__).parents[4]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MclStudyConfig:
    monkeypatch.chdir(ROOT)
    path = "configs/mcl/study.yaml"
    return load_config(MclStudyConfig, path, [f"output={tmp_path}", "chosen.acg=noisy_0.03"])


def test_choosing_tries_every_arm_and_confirming_the_chosen_one(config: MclStudyConfig) -> None:
    choose = plan(config, "choose")
    assert len({cell.name for cell in choose}) == len(choose) == 2 * 2 * (1 + 7 * 4) * 3
    with pytest.raises(ValueError, match="chosen has no arm for lacg"):
        plan(config, "confirm")
    only = load_config(
        MclStudyConfig, "configs/mcl/study.yaml", ["pretrained={acg: x}", "chosen.acg=history_0.3"]
    )
    assert len(only.pretrained) == 2  # settings of a YAML stay beside those of the command line
    with pytest.raises(ValueError, match="arms are READING_WEIGHT"):
        load_config(MclStudyConfig, "configs/mcl/study.yaml", ["chosen.acg=nothing_1"])


def test_arms_of_a_comparison_differ_by_mcl_alone(config: MclStudyConfig) -> None:
    told = {
        cell.name: set(cell.arguments) for cell in plan(config, "choose") if cell.name.endswith("trained")
    }
    place = "choose/acg_full_25"
    differ = told[f"{place}/{WITHOUT}/seed0/trained"] ^ told[f"{place}/history_0.3/seed0/trained"]
    names = {word.partition("=")[0] for word in differ if not word.startswith("output=")}
    assert names == {"model.mcl", "model.mcl.mode", "model.mcl.latent", "model.objective.mcl_weight"}


def test_the_settings_of_all_trainings_are_valid(config: MclStudyConfig) -> None:
    trained = [cell for cell in plan(config, "choose") if "acg_full" in cell.name and "seed0" in cell.name]
    check_settings([cell for cell in trained if "lacg" not in cell.name])


def write_reports(config: MclStudyConfig, gains: dict[str, float]) -> None:
    comparison = comparisons(config, "choose")[0]
    for arm, gain in {WITHOUT: 0.0, **gains}.items():
        for seed in config.choose_seeds:
            for task in ("target", "transfer"):
                folder = arm_folder(config, comparison, arm, seed) / task
                folder.mkdir(parents=True)
                value = {"mean": 20 + seed + gain * (1 + 0.1 * seed), "low": 0.0, "high": 0.0, "count": 60}
                rows = {"true": dict.fromkeys(("moving_psnr", "psnr", "ssim_last"), value)}
                (folder / "results.json").write_text(json.dumps({"rows": rows}))


def test_gains_are_paired_and_the_best_arm_is_chosen(config: MclStudyConfig, tmp_path: Path) -> None:
    write_reports(config, {"noisy_0.03": 0.5, "history_0.3": 1.0, "action_1": -0.2})
    comparison = comparisons(config, "choose")[0]
    assert paired_gains(config, comparison, "history_0.3", "target", "psnr") == pytest.approx([1.0, 1.1])
    assert choose_arms(config) == {"acg": "history_0.3"}
    write_study(config)
    page = (tmp_path / "report.md").read_text()
    assert "| acg_full_25 | history_0.3 | target |" in page
    assert "Visible is the smallest true gain" in page


def test_the_visible_effect_is_that_of_a_paired_t_test() -> None:
    # Five pairs, spread 1: textbook tables ask for a standardized effect of about 1.7 at 80 % power.
    gains = [-1.26, -0.63, 0.0, 0.63, 1.26]
    assert visible_effect(gains) == pytest.approx(1.68, abs=0.1)
    assert visible_effect([0.1]) != visible_effect([0.1])


def test_a_dry_run_lists_the_commands(config: MclStudyConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs/mcl/study.yaml", "--phase", "choose", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 348
    assert "train_world_model.py configs/desk/demo.yaml" in lines[0]
