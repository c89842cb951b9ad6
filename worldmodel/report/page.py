"""Results as a page: Markdown with separate picture files, or a single self-contained HTML file.

    page = Page("Rollouts", "64 held-out episodes.", (
        Section("Quality", (
            Text("Generated frames only."),
            Table(("row", "PSNR dB"), (("true actions", "25.40 [24.90, 25.90]"),)),
            Figures(((Path("curves.png"), "PSNR along the horizon"),)),
        )),
    ))
    write_page(page, Path("report.html"))

All text is plain text. Names from data (tasks, robots, files) may contain HTML, Markdown or line breaks: they
are escaped. The HTML (page.html) loads nothing from outside, and its content security policy
enforces this.
"""

import base64
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.figure import Figure

from worldmodel.files import write_text
from worldmodel.plain_text import one_line
from worldmodel.report.figures import save_figure, to_png

MEDIA = {".png": "image/png", ".jpg": "image/jpeg", ".gif": "image/gif", ".mp4": "video/mp4"}
LONGEST_NUMBER = 40  # characters of a cell in a column of numbers, interval included
# How a cell with a number begins; "17 frames" and "0, 1" count as text.
NUMBER = re.compile(r"[-+]?(\.?\d(?![\d.,]* [a-z]{3,})|inf|nan)")
INTERVAL = re.compile(r"(.*\d(?: %)?) (\[[-+.\d][^\[\]]*\].*)")  # "25.4 [24.9, 25.9]", "48 % [40, 56] of 16"


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Verdict:
    """A conclusion that must not be overlooked."""

    title: str
    reasons: tuple[str, ...]
    is_good: bool | None  # None: neither


@dataclass(frozen=True)
class Table:
    """Rows of text; "25.4 [24.9, 25.9]" shows the interval smaller than the number."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    note: str = ""
    strong: tuple[str, ...] = ()  # first cells of the rows to emphasize

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.header), (row, self.header)

    @property
    def is_number(self) -> tuple[bool, ...]:
        """Which columns hold numbers: those whose cells mostly begin with one, except the first column."""
        return (
            False,
            *(_is_number([row[place] for row in self.rows]) for place in range(1, len(self.header))),
        )


@dataclass(frozen=True)
class Figures:
    """Pictures and videos with a caption each: matplotlib's figures, or files with a suffix in MEDIA."""

    items: tuple[tuple[Path | Figure, str], ...]
    is_wide: bool = False  # one below the other instead of in a grid


Block = Text | Verdict | Table | Figures


@dataclass(frozen=True)
class Section:
    """A heading and its content."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    lead: str
    sections: tuple[Section, ...]


def write_pages(page: Page, folder: Path, name: str = "report") -> Path:
    """Write NAME.md with links to its pictures, and NAME.html with everything inside.

    Returns the HTML's path.
    """
    write_page(page, folder / f"{name}.md")
    return write_page(page, folder / f"{name}.html")[-1]


def check_page_name(path: Path) -> None:
    """Refuse a page with another suffix; commands check this before they spend minutes."""
    if path.suffix not in (".html", ".md"):
        raise ValueError(f"{path}: expected a page named *.html or *.md")


def write_page(page: Page, path: Path) -> list[Path]:
    """Write a page named *.html or *.md; for Markdown, matplotlib figures are written as files next to it.

    Returns all files written, the page last.
    """
    check_page_name(path)
    if path.suffix == ".html":
        write_text(path, to_html(page))
        return [path]
    files = _files_of_figures(page, path)
    for figure, picture in files.items():
        save_figure(figure, picture)
    write_text(path, to_markdown(page, path.parent, files))
    return [*files.values(), path]


def to_html(page: Page) -> str:
    """Render one self-contained HTML page."""
    return _HTML.get_template("page.html").render(page=page)


def to_markdown(page: Page, folder: Path, files: Mapping[Figure, Path] | None = None) -> str:
    """Render as Markdown; pictures are links relative to `folder`.

    `files` maps matplotlib figures to the paths of their future files.
    """
    parts = [f"# {_inline(page.title)}", *([_paragraph(page.lead)] if page.lead else [])]
    for section in page.sections:
        parts.append(f"## {_inline(section.title)}")
        parts += [_markdown_block(block, folder, files or {}) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """A table as Markdown, for use outside a page."""
    marks = ["---:" if is_number else "---" for is_number in table.is_number]
    lines = [_markdown_row(map(_markdown_cell, table.header)), _markdown_row(marks)]
    for row in table.rows:
        cells = map(_markdown_cell, row)
        is_strong = row[0] in table.strong
        lines.append(_markdown_row(f"**{cell}**" if is_strong and cell else cell for cell in cells))
    title = [f"**{_inline(table.title)}**"] if table.title else []
    note = [_paragraph(table.note)] if table.note else []
    return "\n\n".join([*title, "\n".join(lines), *note])


def _files_of_figures(page: Page, path: Path) -> dict[Figure, Path]:
    """Paths next to the page for matplotlib figures, numbered by section and position."""
    return {
        figure: path.with_name(f"{path.stem}_{number}_{index}.png")
        for number, section in enumerate(page.sections)
        for index, figure in enumerate(_figures(section))
    }


def _figures(section: Section) -> Iterator[Figure]:
    for block in section.blocks:
        if isinstance(block, Figures):
            yield from (source for source, _ in block.items if isinstance(source, Figure))


def _is_number(cells: Sequence[str]) -> bool:
    """Whether most non-empty cells begin with a number, and none is a sentence."""
    said = [cell for cell in cells if cell not in ("", "-")]
    numbers = sum(NUMBER.match(cell) is not None for cell in said)
    return bool(said) and 2 * numbers > len(said) and max(map(len, said)) <= LONGEST_NUMBER


def _split_interval(cell: str) -> tuple[str, str]:
    """A cell's number and its interval, which may be empty."""
    found = INTERVAL.fullmatch(one_line(cell))
    return (found[1], found[2]) if found else (cell, "")


def _data_url(source: Path | Figure) -> Markup:
    """A picture or video as a URL that needs no file."""
    kind = "image/png" if isinstance(source, Figure) else _media(source)
    content = to_png(source) if isinstance(source, Figure) else source.read_bytes()
    return Markup(f"data:{kind};base64,{base64.b64encode(content).decode()}")


# All text is escaped, after `one_line`; what Markup holds is no text.
_HTML = Environment(
    loader=PackageLoader("worldmodel", "report"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    finalize=lambda value: one_line(value) if type(value) is str else value,
)
_HTML.filters |= {"split_interval": _split_interval, "data_url": _data_url}


def _media(path: Path) -> str:
    if path.suffix not in MEDIA:
        raise ValueError(f"{path}: expected a picture or video named {', '.join(f'*{end}' for end in MEDIA)}")
    return MEDIA[path.suffix]


def _inline(text: str) -> str:
    """Escape plain text for Markdown: no HTML, links, emphasis, code or attributes."""
    escaped = re.sub(r"([\\`*{])", r"\\\1", one_line(text))
    escaped = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", escaped)  # inside a word it is a letter
    return re.sub(r"&(?=#?\w+;)", "&amp;", escaped).replace("<", "&lt;").replace("](", r"]\(")


def _paragraph(text: str) -> str:
    """Escape text at the start of a line, so that it is no heading, list, quote or reference."""
    escaped = re.sub(r"^(#|\[|[-+](?=[\s-]|$))", r"\\\1", _inline(text))
    escaped = re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", escaped)
    return re.sub(r"^>", "&gt;", escaped)


def _markdown_block(block: Block, folder: Path, files: Mapping[Figure, Path]) -> str:
    if isinstance(block, Text):
        return _paragraph(block.text)
    if isinstance(block, Verdict):
        lines = [
            f"> **{_inline(block.title)}**",
            *(f">\n> {_paragraph(reason)}" for reason in block.reasons),
        ]
        return "\n".join(lines)
    if isinstance(block, Table):
        return markdown_table(block)
    places = [(files[source] if isinstance(source, Figure) else source, text) for source, text in block.items]
    return "\n\n".join(_markdown_figure(path, caption, folder) for path, caption in places)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_cell(cell: str) -> str:
    return _inline(cell).replace("|", "\\|")


def _markdown_figure(path: Path, caption: str, folder: Path) -> str:
    link, text = quote(os.path.relpath(path, folder)), re.sub(r"\\?([\[\]])", r"\\\1", _inline(caption))
    return f"[video: {text}]({link})" if _media(path).startswith("video/") else f"![{text}]({link})"
