import json
from dataclasses import replace
from pathlib import Path

import pytest
from studies.cells import check_settings
from studies.cells_file import read_cells
from studies.mcl.cells import WITHOUT, MclStudyConfig, arm_folder, comparisons, plan
from studies.mcl.gradients import measure_gradients
from studies.mcl.results import METRICS, choose_arms, holm, paired_gains, visible_effect, write_study
from studies.mcl.run import main

from worldmodel.config import load_config
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.training.world_model import load_train_config, train

ROOT = Path(__file__).parents[4]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MclStudyConfig:
    monkeypatch.chdir(ROOT)
    path = "configs/mcl/study.yaml"
    return load_config(MclStudyConfig, path, [f"output={tmp_path}", "chosen.acg=noisy_0.03"])


def test_choosing_tries_every_arm_and_confirming_the_chosen_one(config: MclStudyConfig) -> None:
    choose = plan(config, "choose")
    assert len({cell.name for cell in choose}) == len(choose) == (1 + 6 * 2) * 2
    confirm = plan(config, "confirm")
    assert len({cell.name for cell in confirm}) == len(confirm) == (3 * 2 + 2) * 5 * 3
    assert {cell.name.split("/")[1] for cell in confirm if "other_keys" in cell.name} == {"acg_full_25"}
    assert {cell.name.split("/")[1] for cell in confirm} == {"acg_full_5", "acg_full_25", "acg_lora_25"}
    both = load_config(
        MclStudyConfig, "configs/mcl/study.yaml", ["pretrained.lacg=x", "chosen.acg=noisy_0.3"]
    )
    with pytest.raises(ValueError, match="chosen has no arm for lacg"):
        plan(both, "confirm")
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
    assert len(check_settings(plan(config, "choose"))) == 1 + 6 * 2 + 1
    assert check_settings(plan(config, "confirm"))
    chosen = ["chosen.acg=direction_0.03", "chosen.lacg=action_0.3"]
    second = load_config(MclStudyConfig, "configs/mcl/second_model.yaml", chosen)
    assert check_settings(plan(second, "choose"))
    assert len({cell.name for cell in plan(second, "confirm")}) == 2 * 2 * 2 * 5 * 3


def write_reports(config: MclStudyConfig, gains: dict[str, float]) -> None:
    comparison = comparisons(config, "choose")[0]
    for arm, gain in {WITHOUT: 0.0, **gains}.items():
        for seed in config.choose_seeds:
            for task in ("target", "transfer"):
                folder = arm_folder(config, comparison, arm, seed) / task
                folder.mkdir(parents=True)
                value = {"mean": 20 + seed + gain * (1 + 0.1 * seed), "low": 0.0, "high": 0.0, "count": 60}
                rows = {"true": dict.fromkeys(("moving_psnr", "psnr"), value)}
                rows["hold"] = {"moving_psnr": {"mean": 15.0}}
                (folder / "results.json").write_text(
                    json.dumps({"rows": rows, "gripper_error": {"true": {"mean": 1 - gain}}})
                )


def test_gains_are_paired_and_the_best_arm_is_chosen(config: MclStudyConfig, tmp_path: Path) -> None:
    config = replace(config, choose_seeds=(0, 1))
    write_reports(config, {"noisy_0.03": 0.5, "history_0.3": 1.0, "action_0.3": -0.2})
    comparison = comparisons(config, "choose")[0]
    gains = {name: paired_gains(config, comparison, "history_0.3", "target", name) for name in METRICS}
    assert gains["psnr"] == gains["over_hold"] == pytest.approx([1.0, 1.1])
    assert gains["gripper"] == pytest.approx([-1.0, -1.0])
    assert gains["over_shuffled"] == []
    assert choose_arms(config) == {"acg": "history_0.3"}
    write_study(config)
    cells = read_cells(tmp_path)
    assert len(cells) == 4 * 2 * 2
    assert next(iter(cells)).split("/")[2] == WITHOUT
    page = (tmp_path / "report.md").read_text()
    assert "| acg_full_25 | history_0.3 | target |" in page
    assert "Visible is the smallest true gain" in page


def test_the_visible_effect_is_that_of_a_paired_t_test() -> None:
    # Five pairs, spread 1: textbook tables ask for a standardized effect of about 1.7 at 80 % power.
    gains = [-1.26, -0.63, 0.0, 0.63, 1.26]
    assert visible_effect(gains) == pytest.approx(1.68, abs=0.1)
    assert visible_effect([0.1]) != visible_effect([0.1])
    assert visible_effect([0.0, 1.0]) > 5  # two seeds see next to nothing


def test_p_values_are_corrected_for_their_number() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_share_of_the_gradient_is_measured_once(config: MclStudyConfig, tmp_path: Path) -> None:
    trained = arm_folder(config, comparisons(config, "choose")[0], "noisy_0.3", 0) / "trained"
    CausalAutoencoder(height=32, width=32, hidden=16, num_blocks=1).save_pretrained(tmp_path / "vae")
    settings = [f"output={trained}", f"model.vae={tmp_path / 'vae'}", f"data.latents={tmp_path / 'latents'}"]
    settings += ["model.mcl.mode=first_order", "fit.steps=1", "fit.trackers=[]", "validation.num_clips=0"]
    assert train(load_train_config("configs/debug/world_model.yaml", settings), resume=False)
    (written,) = measure_gradients(config, "choose", num_batches=1)
    found = json.loads(written.read_text())
    assert 0 < found["share"] < 1
    assert found["share"] == pytest.approx(found["mcl"] / (found["mcl"] + found["rest"]), rel=1e-5)
    write_study(config)
    assert list(measure_gradients(config, "choose", num_batches=1)) == []


def test_a_dry_run_lists_the_commands(config: MclStudyConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs/mcl/study.yaml", "--phase", "choose", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 26
    assert lines[0].startswith("worldmodel train configs/desk/demo.yaml")
