from pathlib import Path

import pytest
from matplotlib.figure import Figure

from worldmodel.report.page import Section, write_page


def sections() -> list[Section]:
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1])
    table = (("a | b", "1 < 2"),)
    return [Section("Numbers", "Some & text.", ("name", "value"), table, (("A line", figure),))]


def test_markdown_has_its_pictures_beside_it(tmp_path: Path) -> None:
    written = write_page(tmp_path / "deep" / "page.md", "Title", sections())
    picture, page = written
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert text.startswith("# Title\n")
    assert r"| a \| b | 1 < 2 |" in text
    assert f"![A line]({picture.name})" in text
    assert sorted(page.parent.iterdir()) == sorted(written)


def test_html_is_one_file_with_escaped_text(tmp_path: Path) -> None:
    (page,) = write_page(tmp_path / "page.html", "A <b>", sections())
    text = page.read_text()
    assert "<h1>A &lt;b&gt;</h1>" in text
    assert "Some &amp; text." in text
    assert "<td>1 &lt; 2</td>" in text
    assert "data:image/png;base64," in text


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page.pdf: expected a page named"):
        write_page(tmp_path / "page.pdf", "Title", sections())
