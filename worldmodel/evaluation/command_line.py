"""CHECKPOINT DATA key=value ...: what the scripts that evaluate a world model on a dataset share."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from robotwin_adapters.open_dataset import action_space_for, open_dataset
from worldmodel.config import describe_config, load_config
from worldmodel.models.world_model.folder import locate, read_description
from worldmodel.types import EpisodeSource

C = TypeVar("C")


def open_for_model(model: str, path: str, mapping: str | None = None) -> EpisodeSource:
    """The dataset with actions of the kind that the model was trained on."""
    known = read_description(locate(model))
    return open_dataset(path, mapping=mapping, action_space=action_space_for(known.normalizer))


def run_on_data(
    schema: type[C],
    run: Callable[[str, EpisodeSource, C], int],
    description: str,
    argv: Sequence[str] | None = None,
) -> int:
    """Parse, open the dataset, run; gives the exit code of `run`, or 2 when things do not fit together."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog="keys:\n" + "\n".join(describe_config(schema)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="world model folder or hub id")
    parser.add_argument("data", metavar="DATA", help="dataset of any supported format")
    parser.add_argument("--mapping", metavar="YAML", help="keys and names of the dataset (DataMapping)")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_intermixed_args(argv)
    try:
        config = load_config(schema, None, arguments.overrides)
        source = open_for_model(arguments.checkpoint, arguments.data, arguments.mapping)
        return run(arguments.checkpoint, source, config)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
