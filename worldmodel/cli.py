"""The `worldmodel` command: each sub-command parses its arguments and calls one function.

This is the one file of the library that may import the other packages, inside each command.
"""

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; bad input ends with one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="worldmodel", description="Robotics world models: data, estimates, diagnostics.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add_command in (_add_collect, _add_inspect):
        add_command(commands)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"worldmodel {arguments.command}: {error}", file=sys.stderr)
        return 2


def _add_collect(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    raise NotImplementedError


def _add_inspect(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    raise NotImplementedError
