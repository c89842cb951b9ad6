import json
from pathlib import Path

import pytest
from studies.context.cells import ContextStudyConfig, RowConfig
from studies.context.run import main

ROOT = Path(__file__).parents[4]


def small_study(folder: Path) -> list[str]:
    return [
        str(ROOT / "configs/context/study.yaml"),
        *(
            f"training={ROOT}/configs/context/debug.yaml",
            f"output={folder}/runs",
            f"results={folder}/results",
        ),
        *("seeds=[0]", "datasets=[quad]", "scores.num_batches=2", "scores.batch=8"),
        "rows=[{name: base, settings: [model.variant=base]}, {name: end_to_end}, "
        "{name: frozen, start_from: base, settings: [train=module, model.has_head=true]}]",
    ]


def test_a_study_fills_its_cells_once_and_writes_tables_and_pictures(tmp_path: Path) -> None:
    words = small_study(tmp_path)
    assert main(words) == 0
    cells = (tmp_path / "results/cells.jsonl").read_text()
    keys = [json.loads(line).get("key") for line in cells.splitlines()[1:]]
    assert keys == ["quad/real", "quad/base/seed0", "quad/end_to_end/seed0", "quad/frozen/seed0"]
    table = (tmp_path / "results/tables.md").read_text()
    assert "| end_to_end |" in table
    assert ".063 / .081 / .519" in table  # published, in a column of its own
    assert (tmp_path / "results/quad.png").stat().st_size > 1000
    assert main(words) == 0  # nothing is done twice
    assert (tmp_path / "results/cells.jsonl").read_text() == cells


def test_wrong_studies_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no row 'b' stands above it"):
        ContextStudyConfig(rows=[RowConfig("a", (), "b"), RowConfig("b")])
    with pytest.raises(ValueError, match="rows need names"):
        ContextStudyConfig()
    words = [*small_study(tmp_path)[:-1], "rows=[{name: a, settings: [model.varaint=base]}]"]
    assert main(words) == 2
    assert "varaint" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
