"""The rules of the tree, as tests: who may import whom, file names, plain ASCII, no pickles."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("worldmodel", "robotwin_adapters", "training", "eval")
ALLOWED = {
    "worldmodel": {"worldmodel", "robotwin_adapters"},
    "robotwin_adapters": {"robotwin_adapters", "worldmodel"},
    "training": {"robotwin_adapters", "worldmodel"},
    "eval": {"robotwin_adapters", "worldmodel"},
}
BAD_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}
TOP_LEVEL = {
    *PACKAGES,
    *("configs", "tests", "docs", ".ci"),
    *("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "Makefile", ".gitignore"),
}


def tracked_files() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listing.stdout.splitlines() if (ROOT / name).exists()]


def python_files(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def imported_roots(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0], node.lineno


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_downwards(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {root}"
        for path in python_files(package)
        if path != ROOT / "worldmodel" / "cli.py"
        for root, line in imported_roots(path)
        if root in PACKAGES and root not in ALLOWED[package]
    ]
    assert not wrong, "\n".join(wrong)


def test_eval_is_never_imported_as_a_name() -> None:
    # `import eval.x` would rebind the builtin `eval` in the importing module.
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files(*PACKAGES, "tests")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "eval" for alias in node.names)
    ]
    assert not wrong, wrong


def test_only_config_knows_omegaconf() -> None:
    users = [
        path.relative_to(ROOT)
        for path in python_files(*PACKAGES)
        if any(root == "omegaconf" for root, _ in imported_roots(path))
    ]
    assert users == [Path("worldmodel/config.py")]


def test_file_names_say_something() -> None:
    bad = [str(path.relative_to(ROOT)) for path in python_files(*PACKAGES) if path.name in BAD_NAMES]
    assert not bad, bad


def test_top_level_is_fixed() -> None:
    found = {name.split("/")[0] for name in tracked_files()}
    assert found <= TOP_LEVEL, found - TOP_LEVEL


def test_sources_are_ascii() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files(*PACKAGES, "tests")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if not line.isascii()
    ]
    assert not bad, bad


def test_nothing_unpickles() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and (
            (node.func.value.id in {"pickle", "joblib"} and node.func.attr in {"load", "loads"})
            or (node.func.value.id == "torch" and node.func.attr == "load")
        )
        and not any(keyword.arg == "weights_only" for keyword in node.keywords)
    ]
    assert not bad, bad
