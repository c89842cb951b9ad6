import re
from pathlib import Path

import worldmodel.diagnostics as diagnostics

PAGE = Path(__file__).parents[3] / "docs/diagnostics.md"


def test_the_page_and_the_package_name_the_same_things() -> None:
    named = set(re.findall(r"`(\w+)[`(]", PAGE.read_text()))
    table = PAGE.read_text().split("| question | names |")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", table)) <= set(diagnostics.__all__)
    assert set(diagnostics.__all__) <= named
    assert all(callable(getattr(diagnostics, name)) for name in diagnostics.__all__)
