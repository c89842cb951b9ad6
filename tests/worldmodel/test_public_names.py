import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import worldmodel

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [name for name in worldmodel.__all__ if name != "__version__"])
def test_public_names_are_there(name: str) -> None:
    found = getattr(worldmodel, name)
    assert found.__name__ == name
    assert found.__doc__
    assert name in dir(worldmodel)


def test_importing_the_package_is_light() -> None:
    script = "import sys, worldmodel; print(sorted({'torch', 'diffusers', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_other_names_are_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'WorldModle'"):
        _ = worldmodel.WorldModle
    assert worldmodel.__version__[0].isdigit()


def test_one_version_is_stated_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{version}}}" in (ROOT / "docs/citation.md").read_text()
    changelog = (ROOT / "docs/changelog.md").read_text()
    assert re.findall(r"^## (.+)", changelog, re.M)[0] == version
