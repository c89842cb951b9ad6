"""Escapes untrusted text for terminals, pictures and pages.

A task's name may contain escape sequences that recolor or rewrite a terminal, line breaks that forge log
lines, or marks that change the writing direction.
"""

import re
from collections import Counter
from collections.abc import Mapping

BREAKS = "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")
# Control characters (C0, DEL, C1) and marks of the writing direction, except line breaks.
OBEYED = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Replace control sequences and invalid characters by '?'; line breaks stay."""
    whole = text.encode("utf-8", "replace").decode()
    return OBEYED.sub("?", whole).replace("\r", "?")


def one_line(text: str) -> str:
    """Printable text on one line; runs of white space become one blank."""
    return " ".join(OBEYED.sub("?", text.encode("utf-8", "replace").decode()).split())


def unbroken(text: str) -> str:
    """Printable text on one line with its blanks unchanged, for tables; a line break becomes one blank."""
    return printable(text.translate(dict.fromkeys(map(ord, BREAKS), " ")))


def folded(lines: Mapping[str, int]) -> Counter[str]:
    """Count lines; those that differ only in numbers are counted together under the first of them."""
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for line, count in lines.items():
        counts[first.setdefault(NUMBER.sub("#", line), line)] += count
    return counts
