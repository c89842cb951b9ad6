"""The command line shared by studies."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from worldmodel.config import config_parser, load_config

C = TypeVar("C")


def study_parser(schema: type, description: str | None) -> argparse.ArgumentParser:
    """A parser for a config file and overrides; its help lists the settings."""
    parser = config_parser(schema, description)
    parser.add_argument("config", metavar="CONFIG.yaml", help="the study's settings")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="what differs from the file")
    return parser


def run_and_report(
    schema: type[C],
    description: str | None,
    run: Callable[[C], None],
    write_report: Callable[[C], Iterable[Path]],
    argv: Sequence[str] | None,
) -> int:
    """Parse, run the study unless --report is given, and write its report; returns the exit code."""
    parser = study_parser(schema, description)
    parser.add_argument(
        "--report", action="store_true", help="only write tables and pictures of what is there"
    )
    arguments = parser.parse_intermixed_args(argv)
    study = load_config(schema, arguments.config, arguments.overrides)
    if not arguments.report:
        run(study)
    for path in write_report(study):
        print(path)
    return 0
