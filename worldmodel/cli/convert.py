"""Write any dataset as LeRobot v3.0 or RoboTwin 2.0 HDF5."""

import argparse
from collections.abc import Sequence

from worldmodel.cli_errors import one_way_out


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Command line: write a dataset in another format; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Write any dataset as LeRobot v3.0 or RoboTwin 2.0 HDF5.",
    )
    parser.add_argument("dataset", help="folder, tree of folders, .zip or .hdf5")
    parser.add_argument("out", help="new folder")
    parser.add_argument("--to", choices=("lerobot", "robotwin"), required=True)
    parser.add_argument("--episodes", metavar="LIST", help="positions such as 0,3,5-9 (default: all)")
    parser.add_argument("--on-bad", choices=("stop", "skip"), default="stop", help="unreadable episodes")
    parser.add_argument("--camera", help="keep this camera only (default: all)")
    parser.add_argument("--mapping", metavar="YAML", help="keys and names of the dataset (DataMapping)")
    run(parser.parse_args(argv))
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Write any dataset as LeRobot v3.0 or RoboTwin 2.0 HDF5."""
    from robotwin_adapters.open_dataset import open_dataset
    from robotwin_adapters.tools.convert import ChosenEpisodes, convert_dataset, readable_episodes
    from robotwin_adapters.tools.inspect_dataset import parse_positions
    from worldmodel.files import check_apart

    check_apart(arguments.out, arguments.dataset)
    skips = arguments.on_bad == "skip"
    source = open_dataset(
        arguments.dataset, camera=arguments.camera, mapping=arguments.mapping, verify=not skips
    )
    count = len(source)
    positions = parse_positions(arguments.episodes, count) if arguments.episodes else list(range(count))
    if skips:
        source, bad = readable_episodes(source, positions)
        print("".join(f"skipped {reason}\n" for reason in bad), end="")
    elif arguments.episodes:
        source = ChosenEpisodes(source, tuple(positions))
    print(f"wrote {convert_dataset(source, arguments.out, arguments.to)} episodes to {arguments.out}")
