import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.figure
import pytest

from worldmodel.report.page import (
    MEDIA,
    Figures,
    Page,
    Section,
    Table,
    Text,
    Verdict,
    markdown_table,
    to_html,
    to_markdown,
    write_page,
    write_pages,
)

HOSTILE = (
    'task <script>alert(1)</script>\n\n# heading [x](http://x.y "t") ![i](//x.y/i.png) *b* `c` | {: #id}'
)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    picture, video = tmp_path / "a b.png", tmp_path / "v.mp4"
    picture.write_bytes(b"png")
    video.write_bytes(b"mp4")
    rows = (
        ("x|y", "1.0 [0.5, 1.5]", "holds at 5 of the points, says the reading of a long row"),
        ("best", "2.0", ""),
    )
    table = Table(("row", "dB", "reading"), rows, "T", "N", strong=("best",))
    figures = Figures(((picture, "cap <1>"), (video, "cap [2]")))
    first = Section("One", (Text("a < b"), Verdict("No.", ("because | so",), False)))
    return Page("A <title>", "lead & more", (first, Section("Two", (table, figures))))


def drawn() -> matplotlib.figure.Figure:
    figure = matplotlib.figure.Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1])
    return figure


class Tags(HTMLParser):
    """Every start tag with its attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def test_html_is_escaped_and_self_contained(page: Page) -> None:
    text = to_html(page)
    assert "A &lt;title&gt;" in text
    assert "a &lt; b" in text
    assert '<div class="verdict bad"><strong>No.</strong>' in text
    assert 'src="data:video/mp4;base64,' + base64.b64encode(b"mp4").decode() in text
    links = [value for _, found in Tags(text).found for key, value in found.items() if key in ("src", "href")]
    assert links
    assert all(link is not None and link.startswith(("data:", "#")) for link in links)
    assert '<td class="number">1.0 <span class="interval">[0.5, 1.5]</span></td>' in text
    assert "<tr class=strong><td>best</td>" in text
    assert "url(" not in text
    assert "default-src 'none'; img-src data:; media-src data:;" in text


def test_markdown_says_the_same_with_links(page: Page, tmp_path: Path) -> None:
    text = to_markdown(page, tmp_path)
    assert "| row | dB | reading |\n| --- | ---: | --- |" in text
    assert "| x\\|y | 1.0 [0.5, 1.5] | holds at" in text
    assert "| **best** | **2.0** |  |" in text
    assert "![cap &lt;1>](a%20b.png)" in text
    assert "[video: cap \\[2\\]](v.mp4)" in text
    assert "> **No.**\n>\n> because | so" in text


def hostile_page(picture: Path) -> Page:
    """Data in every place that takes text."""
    table = Table((HOSTILE, "n"), ((HOSTILE, "1"),), HOSTILE, HOSTILE, strong=(HOSTILE,))
    blocks = (Text(HOSTILE), Verdict(HOSTILE, (HOSTILE,), True), table, Figures(((picture, HOSTILE),)))
    return Page(HOSTILE, HOSTILE, (Section(HOSTILE, blocks),) * 3)


def test_nothing_in_data_becomes_a_tag_of_the_html(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(b"png")
    tags = Tags(to_html(hostile_page(tmp_path / "p.png"))).found
    assert {tag for tag, _ in tags} == {
        *("html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section", "div"),
        *("h1", "h2", "p", "a", "strong", "figure", "img", "figcaption"),
        *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    }
    assert {key for _, found in tags for key in found} <= {
        *("lang", "charset", "http-equiv", "content", "name", "class", "aria-label", "href"),
        *("id", "tabindex", "scope", "alt", "src"),
    }


def test_nothing_in_data_is_obeyed_by_markdown(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(b"png")
    text = to_markdown(hostile_page(tmp_path / "p.png"), tmp_path)
    assert "<" not in text
    assert len(re.findall(r"^#", text, re.MULTILINE)) == 4  # the title and three sections
    assert re.findall(r"(?<!\\)\]\(([^)]*)\)", text) == ["p.png"] * 3  # no link but to the picture
    assert not re.search(r"(?<!\\)[`{]", text)
    cells = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in cells)
    assert len(cells) == 9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("48 episodes of place_a2b_left", "48 episodes of place_a2b_left"),
        ("# no heading", r"\# no heading"),
        ("- no list", r"\- no list"),
        ("-0.5 dB", "-0.5 dB"),
        ("1. no list", r"1\. no list"),
        ("> no quote", "&gt; no quote"),
        ("[r]: http://x.y", r"\[r]: http://x.y"),
        ("_no_ __emphasis__", r"\_no\_ \_\_emphasis\_\_"),
        ("a &lt; b & c", "a &amp;lt; b & c"),
        ("line\r\nbreak\u2028here\tand\x00\ud800", "line break here and??"),
    ],
)
def test_plain_text_in_markdown(text: str, expected: str, tmp_path: Path) -> None:
    page = Page("T", "", (Section("S", (Text(text),)),))
    assert to_markdown(page, tmp_path) == f"# T\n\n## S\n\n{expected}\n"
    write_pages(page, tmp_path)  # what no encoding holds does not end the run


def test_numbers_stand_right_and_words_left() -> None:
    rows = (
        ("1", "48 % [40, 56] of 16", "-", "0.1 0.2 0.3", "", "7"),
        ("2", "not run", "-", "a 1", "", "x" * 50),
    )
    table = Table(("n", "share", "none", "mixed", "empty", "long"), (*rows, ("3", "5", "-", "b", "", "8")))
    assert table.is_number == (False, True, False, False, False, False)
    assert markdown_table(table).splitlines()[1] == "| --- | ---: | --- | --- | --- | --- |"
    chosen = (("camera", "0"), ("clip", "17 frames"), ("episodes", "train 6, test 3"), ("batch", "16 clips"))
    assert Table(("setting", "chosen"), chosen).is_number == (False, False)  # words, which may wrap


def test_both_files_are_written_and_nothing_else(page: Page, tmp_path: Path) -> None:
    path = write_pages(page, tmp_path / "out")
    assert path.read_text() == to_html(page)
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.html", "report.md"]
    assert "](../a%20b.png)" in (path.parent / "report.md").read_text()


def test_markdown_has_its_figures_beside_it(tmp_path: Path) -> None:
    blocks = (Text("t"), Figures(((drawn(), "A line"), (drawn(), "B"))))
    written = write_page(
        Page("Title", "", (Section("S", ()), Section("N", blocks))), tmp_path / "deep" / "page.md"
    )
    assert [path.name for path in written] == ["page_1_0.png", "page_1_1.png", "page.md"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert "![A line](page_1_0.png)" in written[-1].read_text()
    assert sorted(written[0].parent.iterdir()) == sorted(written)


def test_html_has_its_figures_inside(tmp_path: Path) -> None:
    (written,) = write_page(
        Page("T", "", (Section("N", (Figures(((drawn(), "A"),)),)),)), tmp_path / "p.html"
    )
    assert "data:image/png;base64,iVBOR" in written.read_text()
    assert "<nav" not in written.read_text()  # one section needs no contents
    assert list(tmp_path.iterdir()) == [written]


def test_what_is_no_page_or_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page.pdf: expected a page named \*.html or \*.md"):
        write_page(Page("T", "", ()), tmp_path / "page.pdf")
    (tmp_path / "x.svg").write_text("<svg/>")
    page = Page("T", "", (Section("S", (Figures(((tmp_path / "x.svg", "c"),)),)),))
    for name in ("p.html", "p.md"):
        with pytest.raises(ValueError, match=r"x.svg: expected a picture or video named \*.png"):
            write_page(page, tmp_path / name)
    assert set(MEDIA) == {".png", ".jpg", ".gif", ".mp4"}
