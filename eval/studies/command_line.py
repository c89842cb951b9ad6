"""The command line that studies share."""

import argparse

from worldmodel.config import config_parser


def study_parser(schema: type, description: str | None) -> argparse.ArgumentParser:
    """Takes a config file and what differs from it; its help lists the settings."""
    parser = config_parser(schema, description)
    parser.add_argument("config", metavar="CONFIG.yaml", help="the study's settings")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="what differs from the file")
    return parser


def add_report(parser: argparse.ArgumentParser) -> None:
    """--report."""
    parser.add_argument(
        "--report", action="store_true", help="only write tables and pictures of what is there"
    )
