"""Runs, or only parses, the commands of the docs, inside this process: an import of torch takes seconds."""

import argparse
import contextlib
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from omegaconf import OmegaConf

import worldmodel.cli
from tests.support.doc_blocks import Call
from worldmodel.evaluation import compare_models

ROOT = Path(__file__).parents[2]
LAUNCHERS = {("accelerate", "launch"), ("torchrun",)}
WITH_VALUE = {"--config_file", "--num_processes", "--nproc_per_node"}  # options of launchers
# Appended to commands that have the word among their first three: the same way in small.
TINY = {
    "train": ["fit.steps=1", "fit.compile=false", "fit.validate_every=0"],
    "desk/own_robot": [
        "data.splits.train_uids=[run000]",
        "data.splits.val_uids=[run001]",
        "validation.num_clips=1",
        "fit.global_batch=2",
        "fit.micro_batch=2",
    ],
    "rollout": ["held_out.split=all", "held_out.episodes=1", "controls=[null]", "videos=1"],
    "sensitivity": ["held_out.split=all", "held_out.episodes=1", "response_clips=1", "scales=[1.0]"],
}
OTHERS = ("pip", "source", "git", "cd", "mkdocs", "mkdir", "mv", "sed", "hf", "for")  # not checked
NOT_FOLLOWED = 3  # by a model that was trained for one step, or judged by one episode


class ParsedError(BaseException):
    """Raised instead of doing the work, once arguments and config have been accepted."""


def run(call: Call, *, in_full: bool = False) -> None:
    """Run one command, in small unless told otherwise; it must end as the page states."""
    words = call.words
    if words[0] in ("make", "pytest", "sh", *OTHERS):
        return parse(words)
    if words[:2] == ["worldmodel", "quickstart"] and not in_full:
        return parse(words)  # it refuses so few episodes as are made in small
    program, arguments = _program(words)
    is_judged_in_small = "sensitivity" in words[:2] and not in_full
    stated = NOT_FOLLOWED if is_judged_in_small else call.exit_code
    code = _exit_code(program, arguments if in_full else _in_small(arguments, words))
    assert code == stated, f"exit code {code}, the page says {stated}: {' '.join(words)}"
    return None


def parse(words: Sequence[str]) -> None:
    """Check that the command exists and takes these arguments, without doing the work."""
    if words[0] == "make":
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    elif words[0] in ("pytest", "sh"):
        for path in (word for word in words[1:] if "/" in word):
            assert (ROOT / path).exists(), path
    elif words[0] not in OTHERS:
        program, arguments = _program(words)
        with _stop_before_work():
            try:
                code = _exit_code(program, [_existing(word) for word in arguments])
            except ParsedError:
                return
        assert code == 0, " ".join(words)


def _program(words: Sequence[str]) -> tuple[Callable[[list[str]], Any], list[str]]:
    """What to call, with which arguments; scripts are found from the top of the project."""
    if words[0] == "worldmodel":
        return worldmodel.cli.main, list(words[1:])
    for launcher in LAUNCHERS:
        if tuple(words[: len(launcher)]) == launcher:
            words = _without_launcher(list(words[len(launcher) :]))
    assert words[0] == "python", f"unknown program {words[0]!r}"
    if words[1] == "-m":
        return partial(_run_module, words[2]), list(words[3:])
    script = ROOT / words[1]
    assert script.is_file(), f"no script {words[1]}"

    def call(arguments: list[str]) -> int:
        with mock.patch.object(sys, "argv", [words[1], *arguments]):
            runpy.run_path(str(script), run_name="__main__")
        return 0

    return call, list(words[2:])


def _run_module(name: str, arguments: list[str]) -> int:
    with mock.patch.object(sys, "argv", [name, *arguments]):
        runpy.run_module(name, run_name="__main__")
    return 0


def _existing(word: str) -> str:
    """The shipped model where a config is read from one that an earlier command would have made."""
    key, _, path = word.partition("=")
    return "start_from=desk" if key == "start_from" and not Path(path).exists() else word


def _without_launcher(words: list[str]) -> list[str]:
    """`python SCRIPT ARGUMENTS`; the options of the launcher must name files that exist."""
    while words[0].startswith("-") and words[0] != "-m":
        option = words.pop(0)
        if option in WITH_VALUE:
            value = words.pop(0)
            assert option != "--config_file" or (ROOT / value).is_file(), value
    return ["python", *words]


def _exit_code(program: Callable[[list[str]], Any], arguments: list[str]) -> int:
    try:
        return int(program(arguments) or 0)
    except SystemExit as end:
        return int(end.code or 0)


def _in_small(arguments: list[str], words: Sequence[str]) -> list[str]:
    if "collect" in words[:2]:
        number = arguments.index("--episodes") + 1
        return [*arguments[:number], "1", *arguments[number + 1 :], "--workers", "1", "--no-supersample"]
    if {"--show", "--help"} & set(arguments):
        return arguments
    return [*arguments, *(word for name, added in TINY.items() if name in words[:3] for word in added)]


@contextlib.contextmanager
def _stop_before_work() -> Iterator[None]:
    """Inside, a program ends with ParsedError once its arguments and its first config are accepted."""
    real_config = OmegaConf.to_object
    depth = 0

    def stopping(real: Callable[..., Any]) -> Callable[..., Any]:
        def parse(*arguments: Any, **options: Any) -> Any:
            nonlocal depth
            depth += 1  # a parser calls itself and those of sub-commands
            try:
                parsed = real(*arguments, **options)
            finally:
                depth -= 1
            if depth == 0 and not any("=" in word or word.endswith(".yaml") for word in _texts(parsed)):
                raise ParsedError
            return parsed

        return parse

    def to_object(config: Any) -> None:
        real_config(config)
        raise ParsedError

    with contextlib.ExitStack() as patches:
        for name in ("parse_args", "parse_intermixed_args", "parse_known_args"):
            method = stopping(getattr(argparse.ArgumentParser, name))
            patches.enter_context(mock.patch.object(argparse.ArgumentParser, name, method))
        patches.enter_context(mock.patch.object(OmegaConf, "to_object", to_object))
        # Earlier commands would have made the data and models that are named.
        patches.enter_context(mock.patch.object(worldmodel.cli, "check_names"))
        # Its models are NAME=FOLDER, which looks like a setting; no config follows.
        patches.enter_context(mock.patch.object(compare_models, "compare", side_effect=ParsedError))
        yield


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, argparse.Namespace):
        yield from _texts(list(vars(value).values()))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[None]:
    """A working folder with the read-only parts of the project in it."""
    for name in ("configs", "training", "eval", "worldmodel"):
        (folder / name).symlink_to(ROOT / name)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
