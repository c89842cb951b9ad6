import json
import shutil
from pathlib import Path

from studies.cells_file import CELLS_FILE, finite, read_cells
from studies.identifiability.report import write_report

RESULTS = Path(__file__).parents[3] / "docs/results"
COUNTS = {
    "ablation": 20,
    "arms": 16,
    "context": 82,
    "disentanglement": 192,
    "identifiability": 98,
    "mcl": 93,
    "mechanistic_independence": 75,
    "near_identifiability": 8,
    "second_desk_model": 25,
    "sensitivity": 3,
    "tabletop": 2,
}


def test_published_tables_are_those_of_the_published_cells(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "identifiability" / CELLS_FILE, tmp_path)
    write_report(tmp_path)
    assert (tmp_path / "tables.md").read_text() == (RESULTS / "identifiability/tables.md").read_text()


def test_every_study_has_one_file_of_cells() -> None:
    assert {
        path.parent.name: len(read_cells(path.parent)) for path in RESULTS.glob(f"*/{CELLS_FILE}")
    } == COUNTS
    assert [path.name for path in RESULTS.rglob("*.json")] == []


def test_numbers_that_json_does_not_know_become_none() -> None:
    value = {"a": [1.5, float("nan"), (float("inf"), 2)], "b": "text"}
    assert json.dumps(finite(value), allow_nan=False) == '{"a": [1.5, null, [null, 2]], "b": "text"}'
