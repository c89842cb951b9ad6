import pytest

from worldmodel.plain_text import folded, one_line, printable, unbroken

HOSTILE = "put\x1b]0;owned\x07 it\r\ndown \u202eeht \x9b31m\ud800"


def test_nothing_is_left_that_a_terminal_obeys() -> None:
    for clean in (printable, one_line, unbroken):
        text = clean(HOSTILE)
        assert not any(sign in text for sign in "\x1b\x07\r\u202e\x9b")
        text.encode("utf-8")
    assert printable(HOSTILE).count("\n") == 1


@pytest.mark.parametrize("clean", [one_line, unbroken])
def test_one_line_is_one_line(clean) -> None:
    text = clean("a\nb\r\nc\u2028d\x85e\vf")
    assert len(text.splitlines()) == 1


def test_ordinary_text_of_any_script_stays() -> None:
    for text in ("place a2b", "\u7f6e\u304f", "\u0627\u0644\u0639", "caf\u00e9"):
        assert printable(text) == one_line(text) == unbroken(text) == text
    assert unbroken("a   b") == "a   b"
    assert one_line(" a \t b ") == "a b"


def test_lines_that_differ_in_numbers_alone_are_one_kind() -> None:
    lines = {
        "no video at 0.mp4": 1,
        "no video at 17.mp4": 2,
        "other": 1,
        "steps of 0.5 s": 1,
        "steps of 3 s": 1,
    }
    assert folded(lines) == {"no video at 0.mp4": 3, "other": 1, "steps of 0.5 s": 2}
