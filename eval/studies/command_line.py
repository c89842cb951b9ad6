"""The command line shared by studies."""

import argparse

from worldmodel.config import config_parser


def study_parser(schema: type, description: str | None) -> argparse.ArgumentParser:
    """A parser for a config file and overrides; its help lists the settings."""
    parser = config_parser(schema, description)
    parser.add_argument("config", metavar="CONFIG.yaml", help="the study's settings")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="what differs from the file")
    return parser
