import json
from pathlib import Path

from worldmodel.evaluation.rollouts.contrast_curve import contrast_records, contrast_section
from worldmodel.report.page import Page, write_page


def write_log(folder: Path, accuracies: list[float]) -> Path:
    lines = [
        {"kind": "train", "step": step, "mcl": 4.0 - a, "mcl_accuracy": a, "mcl_chance": 1 / 64, "loss": 1.0}
        for step, a in enumerate(accuracies)
    ]
    lines.append({"kind": "validation", "step": 9, "mcl": 1.0, "mcl_accuracy": 1.0, "mcl_chance": 0.1})
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder / "model"


def test_the_report_says_whether_the_contrast_was_learned(tmp_path: Path) -> None:
    for accuracies, words in (([0.02] * 5 + [0.9] * 5, "is learned"), ([0.02] * 10, "is not learned")):
        records = contrast_records(write_log(tmp_path, accuracies))
        assert len(records) == 10  # validation has other rows
        sections = contrast_section(records, tmp_path / "contrast.png")
        write_page(Page("demo", "", tuple(sections)), tmp_path / "page.md")
        text = (tmp_path / "page.md").read_text()
        assert f"The contrast {words}" in text
        assert "by chance 1.6% would" in text
        assert (tmp_path / "contrast.png").stat().st_size > 1000


def test_a_run_without_a_contrast_has_no_such_section(tmp_path: Path) -> None:
    assert contrast_records(tmp_path / "nowhere/model") == []
    assert contrast_section([], tmp_path / "contrast.png") == []
