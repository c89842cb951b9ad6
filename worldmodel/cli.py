"""The `worldmodel` command: each sub-command parses its arguments and calls one function.

This is the one file of the library that may import the other packages, inside each command.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; bad input ends with one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="worldmodel", description="Robotics world models: data, estimates, diagnostics."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add_command in (_add_collect, _add_inspect, _add_convert, _add_estimate, _add_diagnose):
        add_command(commands)
    arguments, rest = parser.parse_known_args(argv)
    # argparse gives up on key=value after an option, which is where people write it.
    if rest and not (hasattr(arguments, "overrides") and all(_is_override(entry) for entry in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    try:
        return int(arguments.run(arguments) or 0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"worldmodel {arguments.command}: {error}", file=sys.stderr)
        return 2


def _is_override(entry: str) -> bool:
    return "=" in entry and not entry.startswith("-")


def _add_collect(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "collect",
        help="simulate robot episodes on the embedded tabletop and write them as a RoboTwin 2.0 dataset",
        description="The same command again goes on where it stopped. Several tasks or embodiments go to "
        "OUT/<task>/<embodiment>. The files do not depend on the number of workers.",
    )
    command.add_argument("--task", nargs="+", required=True, help="place_a2b_left, place_a2b_right, babble")
    command.add_argument(
        "--embodiment", nargs="+", required=True, help="finch, heron, wren, crane (7 joints)"
    )
    command.add_argument("--episodes", type=int, default=50, help="how many to keep (default: 50)")
    command.add_argument("--out", type=Path, required=True, help="folder of the dataset")
    command.add_argument(
        "--size", type=int, nargs=2, default=(64, 64), metavar=("WIDTH", "HEIGHT"), help="pixels"
    )
    command.add_argument(
        "--camera", nargs="+", default=["desk"], help="desk (default), head, front, left_wrist, right_wrist"
    )
    command.add_argument("--seed", type=int, default=0, help="first seed to try; they count up (default: 0)")
    command.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    command.add_argument(
        "--randomize", action="store_true", help="vary colours, light, table, camera and clutter by the seed"
    )
    command.add_argument(
        "--keep-failures", action="store_true", help='keep failed episodes, marked "success": false'
    )
    command.add_argument("--renderer", default="ray", help="ray (default), or gl where MUJOCO_GL names one")
    command.add_argument("--no-supersample", action="store_true", help="one ray a pixel instead of four")
    command.set_defaults(run=_collect)


def _collect(arguments: argparse.Namespace) -> None:
    from robotwin_adapters.tabletop.collect import collect_all
    from robotwin_adapters.tabletop.record import RecordingConfig

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
        )
        for task in dict.fromkeys(arguments.task)
        for embodiment in dict.fromkeys(arguments.embodiment)
    ]
    summaries = collect_all(
        arguments.out, configs, episodes=arguments.episodes, seed=arguments.seed, workers=arguments.workers
    )
    for summary in summaries:
        print(f"{summary.folder}: {summary.episodes} episodes, {summary.tried} seeds tried")


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

    from robotwin_adapters.inspect_dataset import format_summary, parse_positions, summarize, write_pictures
    from robotwin_adapters.open_dataset import open_dataset

    source = open_dataset(arguments.dataset, camera=arguments.camera, mapping=arguments.mapping)
    count = len(source)
    positions = parse_positions(arguments.episodes, count) if arguments.episodes else list(range(count))
    progress = tqdm(positions, desc="reading", unit="episode", disable=None, leave=False)
    summary = summarize(source, progress, arguments.on_bad)
    out = Path(arguments.out) if arguments.out else Path("outputs") / "inspect" / source.name
    written = write_pictures(source, summary, out, arguments.on_bad)
    print(format_summary(summary))
    print("\n".join(f"wrote        {path}" for path in written))


def _add_convert(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser("convert", help="write any dataset as LeRobot v3.0 or RoboTwin 2.0 HDF5")
    command.add_argument("dataset", help="folder, tree of folders, .zip or .hdf5")
    command.add_argument("out", help="new folder")
    command.add_argument("--to", choices=("lerobot", "robotwin"), required=True)
    command.add_argument("--camera", help="keep this camera only (default: all)")
    command.add_argument("--mapping", metavar="YAML", help="keys of a folder of videos with annotations")
    command.set_defaults(run=_convert)


def _convert(arguments: argparse.Namespace) -> None:
    from robotwin_adapters.convert import convert_dataset
    from robotwin_adapters.open_dataset import open_dataset

    source = open_dataset(arguments.dataset, camera=arguments.camera, mapping=arguments.mapping)
    print(f"wrote {convert_dataset(source, arguments.out, arguments.to)} episodes to {arguments.out}")


def _add_estimate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "estimate", help="parameters, memory by part and time of a training config, before anything is loaded"
    )
    command.add_argument("config", metavar="CONFIG.yaml", help="config of training/train_world_model.py")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="what differs from the file")
    command.add_argument("--gpus", required=True, metavar="NxNAME", help="for example 4xH100, 1xA100, 2xCPU")
    command.add_argument(
        "--action-dim", type=int, default=14, help="action dimensions of the data (default: 14)"
    )
    command.set_defaults(run=_estimate)


def _estimate(arguments: argparse.Namespace) -> None:
    from worldmodel.config import load_config
    from worldmodel.estimate.cost import describe, estimate, parse_gpus
    from worldmodel.estimate.run_shape import run_shape
    from worldmodel.training.runs.world_model import TrainConfig

    num_gpus, device = parse_gpus(arguments.gpus)
    config = load_config(TrainConfig, arguments.config, arguments.overrides)
    shape = run_shape(config, num_gpus, device, arguments.action_dim)
    print("\n".join(describe(estimate(shape, num_gpus, device), num_gpus, device)))


def _add_diagnose(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "diagnose",
        help="one page with tables and figures about a generator or a world model's action channel",
        description="A generator: mechanistic independence of its factors (Types D, M, S, H, graphs, rank). "
        "A world model folder: which group of action dimensions moves which pixels, on clips of a dataset.",
    )
    command.add_argument("source", help="world model folder, package.module:name or path/file.py:name")
    command.add_argument("--blocks", type=int, nargs="+", default=(), help="coordinates of each factor")
    command.add_argument("--points", type=int, default=16, help="latents to look at (default: 16)")
    command.add_argument("--dataset", help="clips for a world model: folder, .zip or .hdf5")
    command.add_argument("--clips", type=int, default=4, help="clips to look at (default: 4)")
    command.add_argument("--camera", help="camera of the dataset (default: the one the model was trained on)")
    command.add_argument("--mapping", metavar="YAML", help="keys of a folder of videos with annotations")
    command.add_argument(
        "--groups", default="", help='action groups such as "arm=0-5,gripper=6" (default: by action names)'
    )
    command.add_argument("--seed", type=int, default=0, help="of latents or noise (default: 0)")
    command.add_argument("--out", type=Path, default=Path("outputs/diagnose.html"), help="*.html or *.md")
    command.set_defaults(run=_diagnose)


def _diagnose(arguments: argparse.Namespace) -> None:
    from worldmodel.diagnostics.actions.diagnose import diagnose_generator, diagnose_world_model, first_clips

    if ":" in arguments.source:
        written = diagnose_generator(
            arguments.source,
            arguments.out,
            block_sizes=arguments.blocks,
            num_points=arguments.points,
            seed=arguments.seed,
        )
    else:
        from robotwin_adapters.open_dataset import action_space_for, open_dataset
        from worldmodel.models.world_model.model import WorldModel

        if not arguments.dataset:
            raise ValueError("a world model is diagnosed on clips: name a --dataset")
        model = WorldModel.from_pretrained(arguments.source)
        source = open_dataset(
            arguments.dataset,
            camera=arguments.camera,
            mapping=arguments.mapping,
            action_space=action_space_for(model.normalizer),
        )
        batch = first_clips(model, source, arguments.clips, camera=arguments.camera)
        written = diagnose_world_model(
            model, batch, arguments.out, groups=arguments.groups, seed=arguments.seed
        )
    print("\n".join(f"wrote {path}" for path in written))
