import base64
import re

from worldmodel.report.html_page import (
    Figures,
    Page,
    Section,
    Table,
    Text,
    Verdict,
    to_html,
    to_markdown,
    write_page,
)


def page(tmp_path):
    picture, video = tmp_path / "a b.png", tmp_path / "v.mp4"
    picture.write_bytes(b"png")
    video.write_bytes(b"mp4")
    return Page(
        "A <title>",
        "lead & more",
        (
            Section("One", (Text("a < b"), Verdict("No.", ("because | so",), False))),
            Section(
                "Two",
                (
                    Table(
                        ("row", "dB"),
                        (("x|y", "1.0 [0.5, 1.5]"), ("best", "2.0")),
                        "T",
                        "N",
                        strong=("best",),
                    ),
                    Figures(((picture, "cap <1>"), (video, "cap 2"))),
                ),
            ),
        ),
    )


def test_html_is_escaped_and_self_contained(tmp_path):
    text = to_html(page(tmp_path))
    assert "A &lt;title&gt;" in text
    assert "a &lt; b" in text
    assert '<div class="verdict bad"><strong>No.</strong>' in text
    assert 'src="data:video/mp4;base64,' + base64.b64encode(b"mp4").decode() in text
    assert all(link.startswith("data:") for link in re.findall(r'(?:src|href)="([^"]*)"', text))
    assert '<td>1.0 <span class="interval">[0.5, 1.5]</span></td>' in text
    assert "<tr class=strong><td>best</td>" in text


def test_markdown_says_the_same_with_links(tmp_path):
    text = to_markdown(page(tmp_path), tmp_path)
    assert "| x\\|y | 1.0 [0.5, 1.5] |" in text
    assert "| **best** | **2.0** |" in text
    assert "![cap <1>](a b.png)" in text
    assert "[video: cap 2](v.mp4)" in text
    assert "> **No.**" in text


def test_both_files_are_written_and_nothing_else(tmp_path):
    content = page(tmp_path)
    path = write_page(content, tmp_path / "out")
    assert path.read_text() == to_html(content)
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.html", "report.md"]
    assert "](../a b.png)" in (path.parent / "report.md").read_text()
