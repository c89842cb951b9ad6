"""From a folder of robot data to a report in one command."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from worldmodel.cli_errors import one_way_out
from worldmodel.config import add_device


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description="Inspect a dataset, choose camera and clip settings, fine-tune the shipped desk model, "
        "train a picture head for it, roll out on held-out episodes and write a report. Says what it chose "
        "and why, and before the training how long each part takes. A stopped run goes on with the same "
        "command.",
    )
    parser.add_argument("data", metavar="DATA", help="folder of any supported format, or a dataset's hub id")
    parser.add_argument("--out", help="new folder for everything (default: outputs/quickstart/NAME)")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="wall time from files to report (default: 60)"
    )
    parser.add_argument("--camera", help="camera to learn (default: the overview camera)")
    parser.add_argument("--mapping", metavar="YAML", help="keys and names of the dataset (DataMapping)")
    parser.add_argument(
        "--config",
        default="desk/own_robot",
        help="training config or preset that the choices complete (default: desk/own_robot)",
    )
    parser.add_argument(
        "--baseline", action="store_true", help="also train a plain predictor for as long, after --minutes"
    )
    add_device(parser)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="further training settings")
    run(parser.parse_intermixed_args(argv))
    return 0


def run(arguments: argparse.Namespace) -> None:
    """From a folder of robot data to a report in one command."""
    from robotwin_adapters.open_dataset import find_dataset
    from worldmodel.quickstart.commands import Quickstart
    from worldmodel.quickstart.run import run

    if not arguments.minutes > 0:
        raise ValueError(f"--minutes is positive, got {arguments.minutes}")
    name = Path(arguments.data).resolve().name
    asked = Quickstart(
        data=str(find_dataset(arguments.data)),
        name=name,
        out=Path(arguments.out or f"outputs/quickstart/{name}"),
        minutes=arguments.minutes,
        preset=arguments.config,
        camera=arguments.camera,
        mapping=arguments.mapping,
        baseline=arguments.baseline,
        device=arguments.device,
        extra=tuple(arguments.overrides),
    )
    print(f"report: {run(asked)}")
