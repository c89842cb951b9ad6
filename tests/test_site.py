"""The docs site builds without a warning, and its pages ask no other server for anything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(https?:)?//[^\"' >]+", re.I
)
IN_STYLES = re.compile(r"url\([\"']?https?://|@import[^;]*https?://")


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed; `make docs` installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert (tmp_path / "tutorial.html") in pages
    asked = [page.name for page in pages if LOADED.search(page.read_text())]
    asked += [style.name for style in tmp_path.rglob("*.css") if IN_STYLES.search(style.read_text())]
    assert not asked, asked
