"""Code blocks of Markdown pages, and what a test should do with each.

A comment on the line above a block may say otherwise than "run it":

    <!-- test: slow -->                       run with the slow tests; by default its commands are only parsed
    <!-- test: skip, needs a GPU -->          never run; its commands are parsed

A command ends with exit code 0, or with the one in a comment behind it: `# exit code 3`.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FENCE = re.compile(
    r"^(?:<!-- test: (?P<mode>slow|skip)(?:, (?P<reason>[^>]+?))? -->\n)?"
    r"^(?P<fence>`{3,})(?P<language>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
EXIT_CODE = re.compile(r"# exit code (\d+)")
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    title: str  # name of the file that the block shows; empty: none
    text: str
    mode: Literal["run", "slow", "skip"]
    reason: str

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.page.name}:{self.line}"


def code_blocks(page: Path) -> Iterator[Block]:
    """In the order of the page."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match["info"])
        yield Block(
            page,
            text[: match.start("fence")].count("\n") + 1,
            match["language"],
            title[1] if title else "",
            match["text"],
            match["mode"] or "run",
            match["reason"] or "",
        )


@dataclass(frozen=True)
class Call:
    """One command of a page."""

    words: list[str]  # without comments and leading VARIABLE=value
    exit_code: int  # that the page states


def commands(shell: str) -> Iterator[Call]:
    """In order; blank lines and those of comments alone are dropped."""
    for line in shell.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        if words:
            stated = EXIT_CODE.search(line)
            yield Call(words, int(stated[1]) if stated else 0)
