"""Results -> one HTML page that needs nothing beside it, and the same as Markdown."""

import base64
import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from worldmodel.files import write_text

STYLE = """
:root { color-scheme: light; --ink: #1c2430; --soft: #5d6b7c; --line: #dde3ea; --paper: #ffffff;
  --tint: #f5f7fa; --good: #15694a; --bad: #a3322a; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--tint); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 8px; }
h2 { font-size: 19px; margin: 0 0 12px; }
p { margin: 0 0 12px; max-width: 78ch; }
.lead { color: var(--soft); margin-bottom: 24px; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 20px 24px;
  margin: 0 0 20px; }
.verdict { border-left: 5px solid var(--soft); background: var(--tint); padding: 12px 16px;
  margin: 0 0 12px; }
.verdict.good { border-color: var(--good); } .verdict.bad { border-color: var(--bad); }
.verdict strong { display: block; font-size: 17px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin: 0 0 8px; }
caption { text-align: left; font-weight: 600; padding: 0 0 6px; }
th, td { text-align: right; padding: 6px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--soft); font-weight: 600; font-size: 13px; white-space: normal;
  vertical-align: bottom; }
tr.strong td { font-weight: 650; background: #eef4fb; }
.interval { display: block; color: var(--soft); font-weight: 400; font-size: 12px; line-height: 1.2; }
.note { color: var(--soft); font-size: 13px; }
figure { margin: 0 0 12px; }
figure img { max-width: 100%; height: auto; border-radius: 6px; }
figcaption { color: var(--soft); font-size: 13px; margin-top: 4px; overflow-wrap: anywhere; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(480px, 1fr)); gap: 18px; }
.grid video, .grid img { width: 100%; border-radius: 6px; background: #000; display: block; }
@media (max-width: 560px) { .grid { grid-template-columns: 1fr; } main { padding: 16px 10px; } }
"""


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
    strong: tuple[str, ...] = ()  # first cells of the rows to stand out

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.header), (row, self.header)


@dataclass(frozen=True)
class Figures:
    """Pictures (.png) and videos (.mp4, H.264) in a grid, with a caption each."""

    items: tuple[tuple[Path, str], ...]
    is_wide: bool = False  # one below the other instead of in a grid


Block = Text | Verdict | Table | Figures


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    lead: str
    sections: tuple[Section, ...]


def write_page(page: Page, folder: Path, name: str = "report") -> Path:
    """NAME.html with everything inside, NAME.md with links to the files; gives the HTML's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.md", to_markdown(page, folder))
    write_text(folder / f"{name}.html", to_html(page))
    return folder / f"{name}.html"


def to_html(page: Page) -> str:
    """One self-contained page."""
    sections = "\n".join(
        f"<section><h2>{html.escape(section.title)}</h2>\n"
        + "\n".join(_html_block(block) for block in section.blocks)
        + "</section>"
        for section in page.sections
    )
    title = html.escape(page.title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n<body><main><h1>{title}</h1>\n"
        f'<p class="lead">{html.escape(page.lead)}</p>\n{sections}\n</main></body></html>\n'
    )


def to_markdown(page: Page, folder: Path) -> str:
    """The same for people who read files; pictures are links relative to `folder`."""
    parts = [f"# {page.title}", page.lead]
    for section in page.sections:
        parts.append(f"## {section.title}")
        parts += [_markdown_block(block, folder) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _html_block(block: Block) -> str:
    if isinstance(block, Text):
        return f"<p>{html.escape(block.text)}</p>"
    if isinstance(block, Verdict):
        reasons = "".join(f"<div>{html.escape(reason)}</div>" for reason in block.reasons)
        kind = {True: "verdict good", False: "verdict bad", None: "verdict"}[block.is_good]
        return f'<div class="{kind}"><strong>{html.escape(block.title)}</strong>{reasons}</div>'
    if isinstance(block, Table):
        return _html_table(block)
    figures = "\n".join(_html_figure(path, caption) for path, caption in block.items)
    return figures if block.is_wide else f'<div class="grid">{figures}</div>'


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    rows = "".join(
        f"<tr{' class=strong' if row[0] in table.strong else ''}>" + "".join(map(_html_cell, row)) + "</tr>\n"
        for row in table.rows
    )
    caption = f"<caption>{html.escape(table.title)}</caption>" if table.title else ""
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    body = f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>"
    return f'<div class="scroll"><table>{caption}{body}</table></div>{note}'


def _html_cell(cell: str) -> str:
    number, mark, interval = cell.partition(" [")
    if not mark:
        return f"<td>{html.escape(cell)}</td>"
    return f'<td>{html.escape(number)} <span class="interval">[{html.escape(interval)}</span></td>'


def _html_figure(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    text = html.escape(caption)
    if path.suffix == ".mp4":
        media = (
            f'<video controls loop muted autoplay playsinline aria-label="{text}" '
            f'src="data:video/mp4;base64,{data}"></video>'
        )
    else:
        media = f'<img alt="{text}" src="data:image/png;base64,{data}">'
    return f"<figure>{media}<figcaption>{text}</figcaption></figure>"


def _markdown_block(block: Block, folder: Path) -> str:
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Verdict):
        return "\n".join([f"> **{block.title}**", *(f">\n> {reason}" for reason in block.reasons)])
    if isinstance(block, Table):
        return _markdown_table(block)
    return "\n\n".join(_markdown_figure(path, caption, folder) for path, caption in block.items)


def _markdown_table(table: Table) -> str:
    lines = [_markdown_row(table.header), "|---|" + "---:|" * (len(table.header) - 1)]
    lines += [
        _markdown_row([f"**{cell}**" for cell in row] if row[0] in table.strong else row)
        for row in table.rows
    ]
    parts = [f"**{table.title}**"] if table.title else []
    return "\n\n".join([*parts, "\n".join(lines), *([table.note] if table.note else [])])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _markdown_figure(path: Path, caption: str, folder: Path) -> str:
    link = os.path.relpath(path, folder)
    return f"[video: {caption}]({link})" if path.suffix == ".mp4" else f"![{caption}]({link})"
