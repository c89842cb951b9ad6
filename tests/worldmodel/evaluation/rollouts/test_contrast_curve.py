import json
from pathlib import Path

from worldmodel.evaluation.rollouts.contrast_curve import contrast_records, contrast_section
from worldmodel.report.page import Page, write_page


def write_log(folder: Path, accuracies: list[float], by_generator: float | None) -> Path:
    chance = {"mcl_chance": 1 / 64, "mcl_chance_high": 0.03, "mcl_direct": 0.5, "mcl_generator_share": 0.2}
    lines = [
        {"kind": "train", "step": step, "mcl": 4.0 - a, "mcl_accuracy": a, "loss": 1.0, **chance}
        for step, a in enumerate(accuracies)
    ]
    measured = {} if by_generator is None else {"mcl_generator": by_generator}
    lines.append({"kind": "validation", "step": 9, "mcl": 1.0, "mcl_accuracy": 1.0, **measured})
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder / "model"


def test_the_report_asks_what_the_network_alone_reaches(tmp_path: Path) -> None:
    learned = [0.02] * 5 + [0.9] * 5
    for accuracies, by_generator, words in (
        (learned, 0.8, "The contrast is learned by the network"),
        (learned, 0.03, "The contrast is not learned by the network"),
        (learned, 0.11, "The contrast is mostly solved without the network"),
        (learned, None, "was not measured"),
        ([0.02] * 10, 0.02, "is not learned"),
    ):
        records = contrast_records(write_log(tmp_path, accuracies, by_generator))
        assert len(records) == 10  # validation has other rows
        sections = contrast_section(records, tmp_path / "contrast.png")
        write_page(Page("demo", "", tuple(sections)), tmp_path / "page.md")
        text = (tmp_path / "page.md").read_text()
        assert words in text
        assert "by chance 1.6% would" in text
        assert (tmp_path / "contrast.png").stat().st_size > 1000


def test_a_run_without_a_contrast_has_no_such_section(tmp_path: Path) -> None:
    assert contrast_records(tmp_path / "nowhere/model") == []
    assert contrast_section([], tmp_path / "contrast.png") == []
