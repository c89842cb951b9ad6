import json
import shutil
from pathlib import Path

import pytest
from studies.cells_file import CELLS_FILE, finite, read_cells
from studies.identifiability.report import write_report as identifiability
from studies.mechanistic_independence.figures import write_report as mechanistic
from studies.mechanistic_independence.run import chosen_weights, score_name, study_cells
from studies.near_identifiability.report import write_report as near_identifiability

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


def mechanistic_independence(folder: Path) -> None:
    mechanistic(folder, study_cells(chosen_weights(folder)), score_name)


REPORTS = {
    "identifiability": identifiability,
    "mechanistic_independence": mechanistic_independence,
    "near_identifiability": near_identifiability,
}


@pytest.mark.parametrize("study", REPORTS)
def test_published_tables_are_those_of_the_published_cells(study: str, tmp_path: Path) -> None:
    shutil.copy(RESULTS / study / CELLS_FILE, tmp_path)
    REPORTS[study](tmp_path)
    assert (tmp_path / "tables.md").read_text() == (RESULTS / study / "tables.md").read_text()


def test_every_study_has_one_file_of_cells() -> None:
    assert {
        path.parent.name: len(read_cells(path.parent)) for path in RESULTS.glob(f"*/{CELLS_FILE}")
    } == COUNTS
    assert not list(RESULTS.rglob("*.json"))


def test_numbers_that_json_does_not_know_become_none() -> None:
    value = {"a": [1.5, float("nan"), (float("inf"), 2)], "b": "text"}
    assert json.dumps(finite(value), allow_nan=False) == '{"a": [1.5, null, [null, 2]], "b": "text"}'
