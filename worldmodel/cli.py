"""The `worldmodel` command: each sub-command parses its arguments and calls one function.

This is the one file of the library that may import the other packages, inside each command.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; bad input ends with one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="worldmodel", description="Robotics world models: data, estimates, diagnostics."
    )
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
    command = commands.add_parser(
        "inspect",
        help="print what is in a dataset; write a contact sheet and a video with the actions",
        description="Reads RoboTwin (folder, .zip, .hdf5), LeRobot v2.0 to v3.0, videos with annotations.",
    )
    command.add_argument("dataset", help="folder, tree of folders, .zip or .hdf5")
    command.add_argument("--episodes", metavar="LIST", help="positions such as 0,3,5-9 (default: all)")
    command.add_argument("--camera", help="camera to show (default: the overview camera)")
    command.add_argument("--mapping", metavar="YAML", help="keys of a folder of videos with annotations")
    command.add_argument("--out", help="folder for the pictures (default: outputs/inspect/NAME)")
    command.add_argument("--on-bad", choices=("stop", "skip"), default="stop", help="unreadable episodes")
    command.set_defaults(run=_inspect)


def _inspect(arguments: argparse.Namespace) -> None:
    from tqdm import tqdm

    from robotwin_adapters.inspect_dataset import format_summary, parse_positions, summarise, write_pictures
    from robotwin_adapters.open_dataset import open_dataset

    source = open_dataset(arguments.dataset, camera=arguments.camera, mapping=arguments.mapping)
    count = len(source)
    positions = parse_positions(arguments.episodes, count) if arguments.episodes else list(range(count))
    progress = tqdm(positions, desc="reading", unit="episode", disable=None, leave=False)
    summary = summarise(source, progress, arguments.on_bad)
    out = Path(arguments.out) if arguments.out else Path("outputs") / "inspect" / source.name
    written = write_pictures(source, summary, out, arguments.on_bad)
    print(format_summary(summary))
    print("\n".join(f"wrote        {path}" for path in written))
