"""The command line of all training scripts: CONFIG.yaml key=value ... --show --help --resume.

Exit codes: 0 finished; 143 saved and stopped by a signal; others as in `worldmodel/cli_errors.py`.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from worldmodel.cli_errors import STOPPED, one_way_out
from worldmodel.config import config_parser, config_to_yaml, load_config
from worldmodel.signals import end_on_signals, ignore_signals

C = TypeVar("C")


@one_way_out
def run_script(
    schema: type[C],
    train: Callable[[C, bool], bool],
    description: str,
    argv: Sequence[str] | None = None,
    load: Callable[[str, Sequence[str]], C] | None = None,
) -> int:
    """Parse, load the config and call `train(config, resume)`, which returns whether the run is finished.

    `load(path, overrides)` replaces `load_config` for configs that need more.
    """
    arguments = _parser(schema, description).parse_intermixed_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    read = load or partial(load_config, schema)
    config = read(arguments.config, arguments.overrides)
    if arguments.show:
        print(config_to_yaml(config), end="")
        return 0
    with end_on_signals("the same command with --resume goes on from what is saved"):
        is_finished = train(config, arguments.resume)
    if not is_finished:
        ignore_signals()
    return 0 if is_finished else STOPPED


def _parser(schema: type, description: str) -> argparse.ArgumentParser:
    parser = config_parser(schema, description)
    parser.add_argument("config", metavar="CONFIG.yaml", help="what differs from the defaults")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="what differs from the file")
    parser.add_argument("--show", action="store_true", help="print the resolved config and stop")
    parser.add_argument("--resume", action="store_true", help="continue the newest whole checkpoint, if any")
    return parser
