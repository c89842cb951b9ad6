"""Sentences of Markdown pages, and how long they are."""

import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MIN_WORDS = 4  # shorter pieces are labels, not sentences
MIN_CELL_WORDS = 8  # a table cell of this many words is read as prose
LONG_WORDS = 40
FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(\[*_]*[A-Z0-9`])")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|et al|cf|No|Fig|Eq)\.$")


@dataclass(frozen=True)
class ProseStatistics:
    """What the rules of style bound."""

    num_sentences: int
    median_words: float
    semicolons_per_100: float  # semicolons for 100 sentences
    long_share: float  # of sentences with more than 40 words


def measure(texts: Iterable[str]) -> ProseStatistics:
    """Of all sentences of these pages together."""
    found = [sentence for text in texts for sentence in sentences(text)]
    lengths = [len(sentence.split()) for sentence in found]
    semicolons = sum(sentence.count(";") for sentence in found)
    return ProseStatistics(
        len(found),
        statistics.median(lengths),
        100 * semicolons / len(found),
        sum(length > LONG_WORDS for length in lengths) / len(found),
    )


def sentences(markdown: str) -> Iterator[str]:
    """Of paragraphs, list items and long table cells; code, headings and labels are left out."""
    for block in _blocks(_without_code(markdown)):
        start = 0
        for end in SENTENCE_END.finditer(block):
            piece = block[start : end.start()]
            if not ABBREVIATION.search(piece):
                yield from _if_long_enough(piece)
                start = end.end()
        yield from _if_long_enough(block[start:])


def _if_long_enough(piece: str) -> Iterator[str]:
    if len(piece.split()) >= MIN_WORDS:
        yield piece.strip()


def _without_code(markdown: str) -> str:
    text = re.sub(r"\A---\n.*?\n---\n", "", markdown, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("\n", text), flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)(\{[^}]*\})?", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"</?\w[^>]*>", " ", text)


def _blocks(text: str) -> Iterator[str]:
    """Each paragraph, list item or long cell as one line."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        content = line.strip()
        is_item = bool(re.match(r"([-*+]|\d+\.) ", content))
        is_apart = not content or content.startswith(("#", "|", "!!!", "???", "===", ":::"))
        if (is_apart or is_item) and lines:
            yield " ".join(lines)
            lines = []
        if content.startswith("|"):
            cells = (cell.strip() for cell in content.strip("|").split("|"))
            yield from (cell for cell in cells if len(cell.split()) >= MIN_CELL_WORDS)
        elif content and not is_apart:
            lines.append(re.sub(r"^([-*+]|\d+\.) ", "", content))
