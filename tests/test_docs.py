"""Every command and code block of README and docs runs, and the prose keeps its bounds."""

import re
from pathlib import Path

import pytest

from tests.support import doc_commands
from tests.support.doc_blocks import Block, Call, code_blocks, commands
from tests.support.prose import measure
from worldmodel.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [
    page for page in PAGES if any(block.language in ("bash", "python") for block in code_blocks(page))
]
WITH_COMMANDS = [
    page
    for page in WITH_CODE
    if "results" not in page.parts and any(block.language == "bash" for block in code_blocks(page))
]
STATED = "Every command of this page ends with exit code 0, unless a comment beside it says otherwise."
SHOWN = {"", "text", "yaml", "bibtex"}  # languages that are only looked at
LONGEST_README = 120


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def go_through(page: Path, folder: Path, *, with_slow: bool, in_full: bool = False) -> int:
    """All blocks of a page in order, in one folder and one namespace, as a reader would: their number."""
    names: dict[str, object] = {"__name__": "__main__"}
    blocks = list(code_blocks(page))
    with doc_commands.scratch(folder):
        for block in blocks:
            # Pages of results tell of days of work: their commands are only parsed.
            is_run = "results" not in page.parts and block.mode in ("run", "slow" if with_slow else "run")
            try:
                follow(block, names, is_run, in_full)
            except Exception as error:
                raise AssertionError(f"{block.place} does not work: {error}") from error
    return len(blocks)


def follow(block: Block, names: dict[str, object], is_run: bool, in_full: bool) -> None:
    if block.title:
        Path(block.title).parent.mkdir(parents=True, exist_ok=True)
        Path(block.title).write_text(block.text)
    elif block.language == "python":
        code = compile(block.text, block.place, "exec")
        if is_run:
            exec(code, names)
    elif block.language == "bash":
        for call in commands(block.text):
            doc_commands.run(call, in_full=in_full) if is_run else doc_commands.parse(call.words)
    else:
        assert block.language in SHOWN, f"{block.place}: no test for {block.language!r}"


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    assert go_through(page, tmp_path, with_slow=False) > 0


SLOW = [page for page in WITH_CODE if any(block.mode == "slow" for block in code_blocks(page))]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", SLOW, ids=name_of)
def test_the_slow_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    assert go_through(page, tmp_path, with_slow=True) > 0


FIRST_PAGES = [ROOT / "docs/tutorial.md", ROOT / "docs/quickstart.md", ROOT / "docs/data.md"]


@pytest.mark.slow
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("page", FIRST_PAGES, ids=name_of)
def test_tutorial_and_quickstarts_in_full_end_as_they_say(page: Path, tmp_path: Path) -> None:
    """With all their episodes and steps, as a reader would: half an hour each."""
    assert go_through(page, tmp_path, with_slow=True, in_full=True) > 0


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_a_page_states_the_exit_code_of_its_commands(page: Path) -> None:
    assert "exit code" in page.read_text(), f"{page}: end it with {STATED!r}"


def test_a_command_ends_with_the_exit_code_beside_it() -> None:
    stated = [
        call.exit_code for call in commands("worldmodel a b \\\n    c  # exit code 3\nworldmodel d  # 2")
    ]
    assert stated == [3, 0]
    wrong = Call(["worldmodel", "presets", "no/such"], 0)
    with pytest.raises(AssertionError, match="exit code 2, the page says 0"):
        doc_commands.run(wrong)
    doc_commands.run(Call(wrong.words, 2))


def test_what_is_never_run_has_a_reason() -> None:
    silent = [
        block.place
        for page in PAGES
        for block in code_blocks(page)
        if block.mode == "skip" and not block.reason
    ]
    assert not silent, silent


def test_tests_that_the_pages_name_exist() -> None:
    known = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    named = {
        name for page in PAGES for name in re.findall(r"`(test_[a-z0-9]+_[a-z0-9]+_\w+)`", page.read_text())
    }
    assert named
    assert named <= known, named - known


def test_every_fault_of_the_first_attack_has_its_test() -> None:
    page = (ROOT / "docs/results/faults.md").read_text()
    rows = re.findall(r"^\| (F\d+) \| (.*)$", page, re.MULTILINE)
    assert {name for name, _ in rows} == {f"F{number}" for number in range(1, 18)}
    without = [row for row in rows if not re.search(r"`test_\w+`", row[1])]
    assert not without, without


def test_the_prose_is_plain() -> None:
    found = measure(page.read_text() for page in PAGES)
    assert found.median_words <= 17, found
    assert found.semicolons_per_100 <= 5, found
    assert found.long_share <= 0.02, found


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


def test_readme_activates_before_the_first_bare_command() -> None:
    text = (ROOT / "README.md").read_text()
    assert (
        text.index("source .venv/bin/activate")
        < re.search(r"^(worldmodel|python|import) ", text, re.M).start()
    )


def test_no_page_or_message_installs_from_an_index_that_has_no_such_package() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "worldmodel").rglob("*.py")]:
        assert not re.search(r"pip install [\"']?worldmodel", path.read_text()), path


def test_the_page_of_names_lists_every_command() -> None:
    page = (ROOT / "docs/api/index.md").read_text()
    assert not [command.name for command in COMMANDS if f"`{command.name}`" not in page]
