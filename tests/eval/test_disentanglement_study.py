import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from eval import disentanglement as evaluation
from eval import disentanglement_study as study_module
from eval.disentanglement_report import ScoredModel, comparison_table, paper_table
from eval.disentanglement_study import main, read_study
from robotwin_adapters.tabletop import rooms as rendered
from training.command_line import run_script
from training.signals import EXIT_STOPPED
from training.train_vae_baseline import VaeBaselineConfig, train

ROOT = Path(__file__).parents[2]
FEW = ["num_votes=1000", "num_mig=500", "dci_train=0", "num_reconstructed=8"]
STUDY = """
# one model, scored in two ways
data data.path=rooms data.counts=[2,2,2,2,2,2] data.size=16 data.cache={cache}
train autoencoder training/train_vae_baseline.py {configs}/debug/autoencoder.yaml
score ae_ica autoencoder ica=true
"""


@pytest.fixture
def study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study on a few rooms, whose trainings run in this process instead of one of their own."""
    brightness = rendered.brightness
    ends = ([*rendered.SCALES[[0, -1]]], ("cube", "capsule"), [*rendered.ANGLES[[0, -1]]])

    def few(*geometry: object) -> np.ndarray:  # only what the study shows
        is_shown = all(value in kept for value, kept in zip(geometry, ends, strict=True))
        return brightness(*geometry) if is_shown else np.zeros((3, 64, 64), np.uint16)

    monkeypatch.setattr(rendered, "brightness", few)
    monkeypatch.setattr(evaluation, "check_alignment", lambda *_, **__: {})  # slow, and tested elsewhere
    started = []

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        started.append(command)
        return subprocess.CompletedProcess(command, run_script(VaeBaselineConfig, train, "", command[2:]))

    monkeypatch.setattr(study_module.subprocess, "run", run)
    monkeypatch.setattr(study_module, "started", started, raising=False)
    path = tmp_path / "study.txt"
    path.write_text(STUDY.format(cache=tmp_path / "cache", configs=ROOT / "configs/disentanglement"))
    return path


def started() -> list[list[str]]:
    return study_module.started  # type: ignore[attr-defined]


def test_a_study_trains_scores_reports_and_goes_on(study_file: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert main([str(study_file), "--out", str(runs), "--seeds", "2", *FEW]) == 0
    assert len(started()) == 2  # one a seed
    result = json.loads((runs / "autoencoder/seed1/scores_ae_ica_best.json").read_text())
    assert result["evaluation"]["ica"]
    page, text = (runs / "report.html").read_text(), (runs / "report.md").read_text()
    assert page.count("<img") >= 3
    assert "| ae ica | last | 2 |" in text
    assert "not computed" in text
    kept = runs / "autoencoder/seed0/scores_autoencoder_last.json"
    stamp = kept.stat().st_mtime_ns
    (runs / "autoencoder/seed1/scores_autoencoder_last.json").unlink()  # as if it had been killed before
    assert main([str(study_file), "--out", str(runs), "--seeds", "2", *FEW]) == 0
    assert len(started()) == 2
    assert kept.stat().st_mtime_ns == stamp
    assert (runs / "autoencoder/seed1/scores_autoencoder_last.json").exists()
    assert main([str(study_file), "--out", str(runs), "--seeds", "2", *FEW, "num_votes=2000"]) == 2


def test_placeholders_seed_and_data_reach_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.txt").write_text(
        "data data.path=rooms\nprepare vq a.py v.yaml\n"
        "train m b.py m.yaml start_from={runs}/vq/seed{seed}/model\n"
    )
    seen = []

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        seen.append(command[1:])
        return subprocess.CompletedProcess(command, 0 if len(seen) == 1 else EXIT_STOPPED)

    monkeypatch.setattr(study_module.subprocess, "run", run)
    assert main([str(tmp_path / "s.txt"), "--out", str(tmp_path / "r")]) == EXIT_STOPPED
    first, second = seen
    assert first[:3] == ["a.py", "v.yaml", "data.path=rooms"]
    assert second[2] == f"start_from={tmp_path / 'r'}/vq/seed0/model"
    assert second[-2:] == ["fit.seed=0", "--resume"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tarin a b.py c.yaml", "line 1: expected data, prepare, train or score"),
        ("score a b", "no row 'b' stands above it"),
        ("train a b.py c.yaml\ntrain a b.py c.yaml", "same name"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "s.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_study(tmp_path / "s.txt")


@pytest.mark.parametrize("name", ["rooms", "dsprites"])
def test_shipped_studies_name_files_that_exist(name: str) -> None:
    study = read_study(ROOT / f"configs/disentanglement/{name}.txt")
    for row in study.rows:
        for word in row.command[:2]:
            assert (ROOT / word).is_file(), word
    assert {"beta_vae", "factor_vae", "beta_tcvae", "ae_ica"} <= {row.name for row in study.rows}


def scored(name: str, values: list[float]) -> ScoredModel:
    results = tuple(
        {
            "scores": {key: {"value": value} for key in ("factor_vae", "dci", "mig")},
            "pictures": {
                "ssim": {"mean": 0.5},
                "psnr": {"mean": 20.0},
                "mse": {"mean": 0.01},
                "lpips": "not computed",
                "fid": "not computed",
            },
            "evaluation": {"num_votes": 10, "dci_train": 20, "dci_test": 5},
            "num_pictures": 7,
        }
        for value in values
    )
    return ScoredModel(name, "last", results, ())


def test_tables_state_means_and_intervals_over_seeds() -> None:
    (row,) = comparison_table([scored("beta_vae", [0.5, 0.6, 0.7])]).rows
    # t interval of three values: 0.6 +- 4.303 * 0.1 / sqrt(3)
    assert row[:4] == ("beta vae", "last", "3", "0.600 [0.352, 0.848]")
    assert row[-2:] == ("not computed", "not computed")
    (alone,) = comparison_table([scored("x", [0.5])]).rows
    assert alone[3] == "0.500"


def test_the_papers_numbers_are_marked_as_such() -> None:
    table = paper_table()
    assert "not run by us" in table.note
    assert table.rows[-1][:4] == ("MDDiff", ".985 +- .048", ".493 +- .025", "1.000 +- .000")
