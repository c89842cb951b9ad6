"""Every example in the docstrings of public names runs, and every public name has one."""

import doctest
import inspect

import pytest

import worldmodel.diagnostics as diagnostics

# Without a paper of their own: plain linear algebra, or made here.
OURS = {
    "action_channel",
    "check_alignment",
    "jacobian_blocks",
    "local_diffeomorphism",
    "mechanistic_report",
    "sparse_volume_loss",
}


@pytest.mark.parametrize("name", diagnostics.__all__)
def test_the_example_of_a_diagnostic_runs(name: str) -> None:
    documented = getattr(diagnostics, name)
    found = doctest.DocTestFinder(recurse=False).find(documented, name, globs={})
    assert [example for test in found for example in test.examples], f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in found:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("name", [name for name in diagnostics.__all__ if name not in OURS])
def test_a_published_measure_names_its_paper(name: str) -> None:
    text = inspect.getdoc(getattr(diagnostics, name)) or ""
    assert "References:\n" in text
