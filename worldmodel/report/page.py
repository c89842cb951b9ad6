"""One page of tables and figures, as Markdown or as a single HTML file."""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from worldmodel.files import atomic_file


@dataclass(frozen=True)
class Section:
    """A heading, a few sentences, a table and figures; each part but the heading may be empty."""

    title: str
    text: str = ""
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    figures: tuple[tuple[str, Figure], ...] = ()  # (caption, figure)


def write_page(path: Path, title: str, sections: Sequence[Section]) -> list[Path]:
    """Write the page and, for Markdown, its pictures beside it; the suffix .html or .md decides.

    Returns all files written, the page last.
    """
    if path.suffix not in (".html", ".md"):
        raise ValueError(f"{path}: expected a page named *.html or *.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        _replace(path, _html(title, sections).encode())
        return [path]
    pictures, lines = [], [f"# {title}", ""]
    for number, section in enumerate(sections):
        lines += [f"## {section.title}", ""]
        lines += [section.text, ""] if section.text else []
        lines += [*_markdown_table(section), ""] if section.rows else []
        for index, (caption, figure) in enumerate(section.figures):
            picture = path.with_name(f"{path.stem}_{number}_{index}.png")
            _replace(picture, _png(figure))
            pictures.append(picture)
            lines += [f"![{caption}]({picture.name})", ""]
    _replace(path, "\n".join(lines).encode())
    return [*pictures, path]


def _markdown_table(section: Section) -> list[str]:
    lines = [section.header, ("---",) * len(section.header), *section.rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _html(title: str, sections: Sequence[Section]) -> str:
    parts = [
        "<!doctype html><meta charset='utf-8'>",
        f"<title>{html.escape(title)}</title>",
        "<style>body{font:15px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ccc}img{max-width:100%}</style>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    for section in sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        if section.text:
            parts.append(f"<p>{html.escape(section.text)}</p>")
        if section.rows:
            rows = [_html_row("th", section.header), *(_html_row("td", row) for row in section.rows)]
            parts.append("<table>" + "".join(rows) + "</table>")
        for caption, figure in section.figures:
            picture = base64.b64encode(_png(figure)).decode()
            caption = html.escape(caption)
            parts.append(f"<p><img alt='{caption}' src='data:image/png;base64,{picture}'><br>{caption}</p>")
    return "\n".join(parts) + "\n"


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    return buffer.getvalue()


def _replace(path: Path, content: bytes) -> None:
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)
