"""Print what is in a dataset; write a contact sheet and a video with the actions."""

import argparse
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from worldmodel.cli_errors import one_way_out

WAY_OUT = ". To leave such episodes out: --on-bad skip"


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description="Print what is in a dataset; write a contact sheet and a video with the actions. "
        "Reads RoboTwin (folder, .zip, .hdf5), LeRobot v2.0 to v3.0, videos with annotations.",
    )
    parser.add_argument("dataset", help="folder, tree of folders, .zip or .hdf5")
    parser.add_argument("--episodes", metavar="LIST", help="positions such as 0,3,5-9 (default: all)")
    parser.add_argument("--camera", help="camera to show (default: the overview camera)")
    parser.add_argument("--mapping", metavar="YAML", help="keys and names of the dataset (DataMapping)")
    parser.add_argument("--out", help="folder for the pictures (default: outputs/inspect/NAME)")
    parser.add_argument("--on-bad", choices=("stop", "skip"), default="stop", help="unreadable episodes")
    run(parser.parse_args(argv))
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Print what is in a dataset; write a contact sheet and a video with the actions."""
    from tqdm import tqdm

    from robotwin_adapters.open_dataset import open_dataset
    from robotwin_adapters.tools.inspect_dataset import (
        check_videos,
        config_line,
        format_summary,
        lag_lines,
        parse_positions,
        summarize,
        write_pictures,
    )
    from worldmodel.files import check_apart

    opened = partial(
        open_dataset, arguments.dataset, camera=arguments.camera, mapping=arguments.mapping, verify=False
    )
    source = opened()
    out = Path(arguments.out) if arguments.out else Path("outputs") / "inspect" / source.name
    check_apart(out, arguments.dataset)
    count = len(source)
    positions = parse_positions(arguments.episodes, count) if arguments.episodes else list(range(count))
    progress = tqdm(positions, desc="reading", unit="episode", disable=None, leave=False)
    summary = summarize(source, progress, arguments.on_bad, WAY_OUT)
    print(format_summary(summary))
    lags = lag_lines(summary, source, lambda space: opened(action_space=space))
    print("".join(f"command lag  {line}\n" for line in lags), end="", flush=True)
    for reason in check_videos(summary, arguments.on_bad, WAY_OUT):  # decodes, after the first answer
        print(f"damaged      {reason}")
    written = write_pictures(source, summary, out, arguments.on_bad)
    if summary.picture_lag:
        print(f"picture lag  {summary.picture_lag}")
    print("\n".join(f"wrote        {path}" for path in written))
    line = config_line(summary, arguments.dataset, arguments.mapping)
    print(f"to train     {line}")
    print(f"or           worldmodel train desk/own_robot {shlex.quote(line.replace(': ', '=', 1))}")
