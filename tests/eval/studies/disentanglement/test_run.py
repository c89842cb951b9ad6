import hashlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from studies.cells_file import read_cells
from studies.disentanglement import work
from studies.disentanglement.dynamics import read_curves
from studies.disentanglement.effect import effect_section
from studies.disentanglement.report import best_run, failure_blocks
from studies.disentanglement.rows import read_study
from studies.disentanglement.run import main
from studies.disentanglement.tables import ScoredModel, comparison_table, paper_table, seed_scores, total_cost
from studies.disentanglement.work import read_failures

from worldmodel.cli_errors import STOPPED
from worldmodel.config import load_config
from worldmodel.mddiff.data import render_rooms as rendered
from worldmodel.mddiff.evaluation import scores as evaluation
from worldmodel.mddiff.training.concept_run import ConceptTrainConfig
from worldmodel.mddiff.training.cost import Cost
from worldmodel.mddiff.training.vae_baseline import VaeBaselineConfig, train
from worldmodel.training.command_line import run_script

ROOT = Path(__file__).parents[4]
FEW = ["num_votes=1000", "num_mig=500", "dci_train=0", "num_reconstructed=8"]
STUDY = """
# one model, scored in two ways
presets: {configs}/debug
data: [data.path=rooms, "data.counts=[2,2,2,2,2,2]", data.size=16, data.cache={cache}]
groups:
  - command: train-vae
    rows: [{{name: autoencoder}}]
  - scores_of: autoencoder
    rows: [{{name: ae_ica, scoring: [ica=true]}}]
"""


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The command sets its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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

    def run(command: list[str], log: Path) -> int:
        started.append(command)
        return run_script(VaeBaselineConfig, train, "", command[4:])

    monkeypatch.setattr(work, "run_logged", run)
    monkeypatch.setattr(work, "started", started, raising=False)
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(cache=tmp_path / "cache", configs=ROOT / "configs/disentanglement"))
    return path


def started() -> list[list[str]]:
    return work.started  # type: ignore[attr-defined]


def test_a_study_trains_scores_reports_and_goes_on(study_file: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert main([str(study_file), "--out", str(runs), "--seeds", "2", *FEW]) == 0
    assert len(started()) == 2  # one a seed
    result = json.loads((runs / "autoencoder/seed1/scores_ae_ica_best.json").read_text())
    assert result["evaluation"]["ica"]
    assert Path(result["evaluation"]["out"]).name == "scores_ae_ica_best.json"  # also where best is the last
    page, text = (runs / "report.html").read_text(), (runs / "report.md").read_text()
    assert page.count("<img") >= 3
    assert "| ae ica | last | 2 |" in text
    assert "not computed" in text
    assert f"Command: python eval/study.py disentanglement {study_file}" in text
    assert "Seeds: 0, 1" in text
    assert "highest FactorVAE score of the row" in text
    cells = read_cells(runs)
    assert len(cells) == 2 * 2 * 2  # rows, points of training, seeds
    assert cells["study/ae_ica/best/seed1"]["mig"] == round(result["scores"]["mig"]["value"], 5)
    kept = runs / "autoencoder/seed0/scores_autoencoder_last.json"
    stamp = kept.stat().st_mtime_ns
    (runs / "autoencoder/seed1/scores_autoencoder_last.json").unlink()  # as if it had been killed before
    assert main([str(study_file), "--out", str(runs), "--seeds", "2", *FEW]) == 0
    again = [
        str(study_file),
        "--out",
        str(runs),
        "--seeds",
        "2",
        *FEW,
        "jobs=2",
        "batch=100",
        "--only",
        "ae_ica",
        "--results",
        str(tmp_path / "kept"),
    ]
    assert main(again) == 0  # the same scores, otherwise computed
    assert read_cells(tmp_path / "kept") == cells == read_cells(runs)
    assert len(started()) == 2
    assert kept.stat().st_mtime_ns == stamp
    assert (runs / "autoencoder/seed1/scores_autoencoder_last.json").exists()
    assert main([str(study_file), "--out", str(runs), "--seeds", "2", *FEW, "num_votes=2000"]) == 2


CHAIN = """
presets: some
data: [data.path=rooms]
groups:
  - {command: train, is_scored: false, rows: [{name: vq}]}
  - {command: train, start_from: vq, rows: [{name: m, steps: 9}]}
  - {command: train, start_from: m, preset: m, rows: [{name: longer}]}
  - {command: train, rows: [{name: alone}]}
"""


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of scripts that write their words, and fail while a file named ROW.bad is there."""
    script = tmp_path / "work.py"
    script.write_text(
        "import sys; from pathlib import Path\n"
        "folder = Path([word for word in sys.argv if word.startswith('output=')][0][7:])\n"
        "if Path(__file__).with_name(folder.parent.name + '.bad').exists(): sys.exit('error: no such luck')\n"
        "(folder / 'model').mkdir(); (folder / 'words').write_text(chr(10).join(sys.argv[2:]))\n"
    )
    monkeypatch.setattr(work, "WORLDMODEL", (sys.executable, str(script)))
    monkeypatch.setattr(work, "score_folder", lambda *_: {"scores": {}})
    monkeypatch.setattr("studies.disentanglement.run.report", lambda *_: "page")
    (tmp_path / "s.yaml").write_text(CHAIN)
    return tmp_path


def test_placeholders_seed_and_data_reach_the_training(chain: Path) -> None:
    assert main([str(chain / "s.yaml"), "--out", str(chain / "r"), "--seeds", "2"]) == 0
    words = (chain / "r/m/seed1/words").read_text().splitlines()
    start = f"start_from={chain / 'r'}/vq/seed1/model"
    assert words[:4] == ["some/m.yaml", start, "fit.steps=9", "data.path=rooms"]
    assert words[-2:] == ["fit.seed=1", "--resume"]
    assert [row.name for row in read_study(chain / "s.yaml").stages("longer")] == ["vq", "m", "longer"]


def test_a_failed_row_is_recorded_and_costs_only_what_needs_it(chain: Path) -> None:
    (chain / "m.bad").touch()
    command = [str(chain / "s.yaml"), "--out", str(chain / "r"), "--seeds", "1"]
    assert main(command) == 1
    failed, skipped = read_failures(chain / "r")
    assert (failed.row, failed.state, skipped.row, skipped.state) == ("m", "failed", "longer", "skipped")
    assert failed.error.startswith("exit code 1, error: no such luck (")
    assert (chain / "r/alone/seed0/model").exists()
    (verdict,) = failure_blocks([failed, skipped])
    assert verdict.reasons[1] == "longer, seed 0 skipped: m has no model"
    (chain / "m.bad").unlink()
    assert main(command) == 0
    assert read_failures(chain / "r") == []


def test_a_score_that_breaks_leaves_its_model_to_others(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise IndexError("7")

    monkeypatch.setattr(work, "score_folder", broken)
    assert main([str(chain / "s.yaml"), "--out", str(chain / "r"), "--seeds", "1"]) == 1
    assert [failure.text for failure in read_failures(chain / "r")] == ["failed: IndexError: 7"] * 3
    assert "IndexError: 7" in (chain / "r/logs/longer_seed0.log").read_text()


@pytest.mark.parametrize(
    ("end", "code"),
    [(lambda *_: STOPPED, STOPPED), (lambda *_: signal.default_int_handler(2, None), 130)],
)
def test_a_stopped_study_ends_without_a_traceback(
    chain: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[..., int], code: int
) -> None:
    monkeypatch.setattr(work, "run_logged", end)
    assert main([str(chain / "s.yaml"), "--out", str(chain / "r")]) == code


def test_results_of_another_command_are_refused_before_anything_runs(
    chain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(chain / "s.yaml"), "--out", str(chain / "r"), "--seeds", "1"]
    assert main([*command, "--only", "alone"]) == 0
    text = (chain / "s.yaml").read_text()
    (chain / "s.yaml").write_text(text.replace("name: alone", "name: alone, steps: 7"))
    assert main(command) == 2
    assert "alone/seed0 belongs to another run: fit.steps=7 differ" in capsys.readouterr().err
    assert not (chain / "r/vq").exists()
    assert main([*command, "--only", "nobody"]) == 2


ROWS = "rows: [{name: a}]"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (f"{{comand: b, {ROWS}}}", "Did you mean: 'command'"),
        (f"{{command: b, scores_of: b, {ROWS}}}", "either a command or scores_of"),
        (f"{{scores_of: b, {ROWS}}}", "row a: no row 'b' stands above it"),
        (f"{{command: b, {ROWS}}}, {{command: c, {ROWS}}}", "a name of its own, got 'a'"),
        ("{command: b, rows: [{steps: 3}]}", "a name of its own, got ''"),
    ],
)
def test_wrong_studies_are_refused_by_name(tmp_path: Path, groups: str, message: str) -> None:
    (tmp_path / "s.yaml").write_text(f"groups: [{groups}]")
    with pytest.raises(ValueError, match=message):
        read_study(tmp_path / "s.yaml")


JVP = ["start_from={runs}/mddiff/seed{seed}/model", "model.contrast.mcl.mode=jvp"]
FEW_STEPS = [
    "objective.mcl_weight=0.1",
    "fit.steps=200",
    "fit.validate_every=100",
    "fit.checkpoint_every=100",
]


@pytest.mark.parametrize(
    ("name", "count", "jvp", "digest"),
    [
        ("rooms", 15, JVP, "96173810f076c7e5"),
        ("dsprites", 19, [*JVP, *FEW_STEPS], "9140bface5b29fb5"),
    ],
)
def test_shipped_studies_have_the_published_rows(name: str, count: int, jvp: list[str], digest: str) -> None:
    study = read_study(ROOT / f"configs/disentanglement/{name}.yaml")
    assert len(study.rows) == count
    row = next(row for row in study.rows if row.name.startswith("mcl_jvp"))
    assert row.command[2:] == tuple(jvp)
    # Word for word: runs/ROW/seedN/command.json of an earlier study must be the same to go on.
    rows = [study.data, *(tuple(vars(row).values()) for row in study.rows)]
    assert hashlib.sha256(repr(rows).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize(("name", "weight"), [("rooms", ""), ("dsprites", "_0.1")])
def test_shipped_studies_name_files_that_exist(name: str, weight: str) -> None:
    study = read_study(ROOT / f"configs/disentanglement/{name}.yaml")
    for row in study.rows:
        if row.command:
            command, config, *words = row.command
            schema = {"train-concepts": ConceptTrainConfig, "train-vae": VaeBaselineConfig}[command]
            words = [word.replace("{runs}", "runs").replace("{seed}", "0") for word in words]
            load_config(schema, str(ROOT / config), [*words, *study.data])
    names = {row.name for row in study.rows}
    assert {"beta_vae", "factor_vae", "beta_tcvae", "ae_ica", "encdiff", "mddiff_longer"} <= names
    modes = {"exact", "detached", "finite_difference", "jvp", "hessian_diag"}
    assert {f"mcl_{mode}{weight}" for mode in modes} <= names  # every mode at one weight
    assert {"mcl_exact", "mcl_detached", "mcl_exact_0.1"} <= names


def scored(name: str, values: list[float], point: str = "last") -> ScoredModel:
    results = tuple(
        {
            "scores": {
                "factor_vae": {"value": value, "num_active": 7},
                "dci": {"value": value, "comparable": False},
                "mig": {"value": 1 - value},
            },
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
    folders = tuple(Path(f"{name}/seed{seed}") for seed in range(len(values)))
    return ScoredModel(name, point, results, folders, (Cost(60.0, 1000, 5, 32),) * len(values))


def test_tables_state_means_and_intervals_over_seeds() -> None:
    (row,) = comparison_table([scored("beta_vae", [0.5, 0.6, 0.7])]).rows
    # t interval of three values: 0.6 +- 4.303 * 0.1 / sqrt(3)
    assert row[:4] == ("beta vae", "last", "3", "0.600 [0.352, 0.848]")
    assert row[4] == "0.600 [0.352, 0.848] *"  # DCI on few points
    assert row[-6:] == ("not computed", "not computed", "7.0", "1.0", "1,000", "5")
    (alone,) = comparison_table([scored("x", [0.5])]).rows
    assert alone[3] == "0.500"


def test_scores_of_every_seed_are_kept_without_what_was_not_computed() -> None:
    numbers = seed_scores([scored("beta_vae", [0.5, 0.6]), scored("m", [0.25], "best")])
    assert list(numbers) == ["beta_vae/last/seed0", "beta_vae/last/seed1", "m/best/seed0"]
    expected = {"factor_vae": 0.6, "dci": 0.6, "mig": 0.4, "ssim": 0.5, "psnr": 20.0, "mse": 0.01}
    assert numbers["beta_vae/last/seed1"] == {"seed": 1, **expected}
    json.dumps(numbers, allow_nan=False)


def test_the_effect_of_mcl_is_paired_by_seed_and_said_in_words() -> None:
    control, same = scored("mddiff_longer", [0.2, 0.5, 0.8]), scored("mcl_detached", [0.3, 0.5, 0.7])
    better = scored("mcl_exact", [0.3, 0.61, 0.9])  # far from significant unless seeds are paired
    section = effect_section([scored("beta_vae", [0.9]), control, better, same])
    assert section is not None
    table, first, second = section.blocks
    # differences 0.10, 0.11, 0.10: 0.1033 +- 4.303 * 0.00577 / sqrt(3)
    assert table.rows[0] == (
        "mcl exact",
        "3",
        "0.103 [0.089, 0.118]",
        "0.103 [0.089, 0.118]",
        "-0.103 [-0.118, -0.089]",
        "0.00 [0.00, 0.00]",
    )
    assert first.text.startswith("mcl exact: It raises DCI disentanglement (0.103 ")
    assert "It lowers MIG (-0.103 " in first.text
    assert "No difference in PSNR" in first.text
    assert "No difference in DCI disentanglement is shown" in second.text
    assert "mddiff longer" in section.title
    assert effect_section([better]) is None
    (alone,) = effect_section([scored("mddiff_longer", [0.2]), scored("mcl_exact", [0.3])]).blocks[1:]
    assert "One seed cannot show a difference in DCI disentanglement" in alone.text


def test_pictures_are_of_the_best_run() -> None:
    last, best = scored("m", [0.2, 0.5]), scored("m", [0.6, 0.5], "best")
    assert best_run([last, best]) == (best, 0)


def test_costs_add_up_over_stages(chain: Path) -> None:
    study, runs = read_study(chain / "s.yaml"), chain / "r"
    for number, name in enumerate(("vq", "m", "longer"), 1):
        assert total_cost(runs, study, "longer", "seed0") is None
        (runs / name / "seed0").mkdir(parents=True)
        cost = {"cpu_seconds": 10.0 * number, "pictures": number, "parameters": 5 * number, "batch": 32}
        (runs / name / "seed0/cost.json").write_text(json.dumps(cost))
    assert total_cost(runs, study, "longer", "seed0") == Cost(60.0, 6, 15, 32)
    assert [(curve.name, curve.family, curve.start) for curve in read_curves(runs, study)] == [
        ("m", "m", 0),
        ("longer", "m", 2),  # after stage 1; first stages do not count
    ]


def test_the_papers_numbers_are_marked_as_such() -> None:
    table = paper_table()
    assert "not run by us" in table.note
    assert "Factored Generative Models through Mechanism Diversity" in table.note
    assert len(table.rows) == 9
    assert table.rows[-1][:4] == ("MDDiff", ".985 +- .048", ".493 +- .025", "1.000 +- .000")
