"""Texts that come from data, made fit for a terminal, a picture or a page: shown as they are, never obeyed.

The name of a task may hold escape sequences that recolor or rewrite a terminal, line breaks that forge lines
of a log, or marks that turn the direction of writing.
"""

import re

BREAKS = "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
# Control characters (C0, DEL, C1) and marks of the writing direction, breaks aside.
OBEYED = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with '?' for what a terminal would obey and for broken characters; line breaks stay."""
    whole = text.encode("utf-8", "replace").decode()
    return OBEYED.sub("?", whole).replace("\r", "?")


def one_line(text: str) -> str:
    """The same on one line: every run of white space is one blank."""
    return " ".join(OBEYED.sub("?", text.encode("utf-8", "replace").decode()).split())


def unbroken(text: str) -> str:
    """The same on one line with its blanks as they are, for tables: a line break is one blank."""
    return printable(text.translate(dict.fromkeys(map(ord, BREAKS), " ")))
