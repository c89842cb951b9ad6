"""Every example in the docstrings of public names runs, and every public function has one."""

import dataclasses
import doctest
import inspect
from typing import Any

import pytest

import worldmodel
import worldmodel.diagnostics as diagnostics

# Without a paper of their own: plain linear algebra, or made here.
OURS = {
    "action_channel",
    "check_alignment",
    "jacobian_blocks",
    "label_probe",
    "local_diffeomorphism",
    "mechanistic_report",
    "multi_view_laws",
    "simulate_temporal",
    "sparse_volume_loss",
}
FRONT_DOOR = [name for name in worldmodel.__all__ if not name.startswith("_")]
PUBLIC = {
    **{name: getattr(diagnostics, name) for name in diagnostics.__all__},
    # Dataclasses only hold values; their fields are explained one by one.
    **{name: one for name in FRONT_DOOR if not dataclasses.is_dataclass(one := getattr(worldmodel, name))},
}


@pytest.mark.parametrize(("name", "documented"), PUBLIC.items(), ids=PUBLIC)
def test_the_example_of_a_public_name_runs(name: str, documented: Any) -> None:
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
