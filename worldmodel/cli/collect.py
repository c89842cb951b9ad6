"""Simulate robot episodes on the embedded tabletop and write them as a RoboTwin 2.0 dataset."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from worldmodel.cli_errors import one_way_out


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description="Simulate robot episodes on the embedded tabletop, as a RoboTwin 2.0 dataset. "
        "The same command resumes an interrupted collection. Several tasks or embodiments go to "
        "OUT/<task>/<embodiment>. The files do not depend on the number of workers.",
    )
    parser.add_argument(
        "--task",
        nargs="+",
        default=["place_a2b_left"],
        help="place_a2b_left (default), place_a2b_right, babble, carry",
    )
    parser.add_argument(
        "--embodiment",
        nargs="+",
        default=["finch"],
        help="finch (default), heron, wren, swift, crane (7 joints)",
    )
    parser.add_argument("--episodes", type=int, default=50, help="how many to keep (default: 50)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the dataset")
    parser.add_argument(
        "--size", type=int, nargs=2, default=(64, 64), metavar=("WIDTH", "HEIGHT"), help="pixels"
    )
    parser.add_argument(
        "--camera", nargs="+", default=["desk"], help="desk (default), head, front, left_wrist, right_wrist"
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed to try; they count up (default: 0)")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    parser.add_argument(
        "--randomize", action="store_true", help="vary colors, light, table, camera and clutter by the seed"
    )
    parser.add_argument(
        "--keep-failures", action="store_true", help='keep failed episodes, marked "success": false'
    )
    parser.add_argument("--hold", default="", metavar="ARM", help="babble: left or right does not move")
    parser.add_argument("--renderer", default="ray", help="ray (default), or gl where MUJOCO_GL names one")
    parser.add_argument("--no-supersample", action="store_true", help="one ray per pixel instead of four")
    run(parser.parse_args(argv))
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Simulate robot episodes on the embedded tabletop and write them as a RoboTwin 2.0 dataset."""
    try:
        from robotwin_adapters.tabletop.collect import collect_all
        from robotwin_adapters.tabletop.record import RecordingConfig
    except ModuleNotFoundError as error:
        if error.name != "mujoco":
            raise
        raise ValueError('the tabletop needs MuJoCo: pip install -e ".[sim]"') from error

    width, height = arguments.size
    configs = [
        RecordingConfig(
            task,
            embodiment,
            cameras=tuple(arguments.camera),
            width=width,
            height=height,
            supersample=not arguments.no_supersample,
            renderer=arguments.renderer,
            randomize=arguments.randomize,
            keep_failures=arguments.keep_failures,
            hold=arguments.hold,
        )
        for task in dict.fromkeys(arguments.task)
        for embodiment in dict.fromkeys(arguments.embodiment)
    ]
    summaries = collect_all(
        arguments.out, configs, episodes=arguments.episodes, seed=arguments.seed, workers=arguments.workers
    )
    for summary in summaries:
        print(f"{summary.folder}: {summary.episodes} episodes, {summary.tried} seeds tried")
