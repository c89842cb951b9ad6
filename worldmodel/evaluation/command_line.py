"""CHECKPOINT DATA key=value ...: the command line shared by evaluation scripts."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from accelerate import PartialState

from robotwin_adapters.open_dataset import open_as_trained
from worldmodel.checkpoint.folder import describe_sources, locate, read_description
from worldmodel.cli_errors import one_way_out
from worldmodel.config import config_parser, load_config
from worldmodel.device import find_precision
from worldmodel.files import check_apart
from worldmodel.models.model import WorldModel
from worldmodel.signals import end_on_signals
from worldmodel.training.loop.distributed import COLLECTIVE_TIMEOUT
from worldmodel.types import EpisodeSource

C = TypeVar("C")


def open_for_model(model: str, path: str, mapping: str | None = None) -> EpisodeSource:
    """Open the dataset as the model's training read its own; prints what the model will load."""
    folder = locate(model)
    known = read_description(folder)
    print(f"model {describe_sources(folder, known.config)}", file=sys.stderr)
    # Checked when indexing.
    return open_as_trained(path, known.normalizer, known.trained_on, mapping=mapping, verify=False)


def add_allow_external(parser: argparse.ArgumentParser) -> None:
    """Add the --allow-external flag, which every command that loads a world model has."""
    parser.add_argument(
        "--allow-external",
        action="store_true",
        help="also load from other folders or hub ids that the model's config.yaml names",
    )


def settings_of(config: Any) -> dict[str, Any]:
    """The settings that affect the results: without output path, loading permissions and device."""
    settings = {**dataclasses.asdict(config), "output": ""}
    for name in ("allow_external", "device"):
        settings.pop(name, None)
    if settings.get("mixed_precision") == "no":  # so that results of older versions go on
        settings.pop("mixed_precision")
    return settings


def load_model(checkpoint: str, config: C) -> tuple[WorldModel, C, Path]:
    """The model on the device of the settings, these with what `auto` and 0 stand for, and its folder."""
    given, folder = vars(config), locate(checkpoint)
    model = WorldModel.from_pretrained(folder, allow_external=given["allow_external"], device=given["device"])
    settled = {
        "num_inference_steps": given["num_inference_steps"] or model.contract.num_inference_steps,
        "mixed_precision": find_precision(given["mixed_precision"], model.device),
    }
    return model, dataclasses.replace(config, **settled), folder  # type: ignore[type-var]


def joined_processes(model: WorldModel) -> PartialState:
    """The processes of this launch; one, where it was started without a launcher."""
    return PartialState(cpu=model.device.type == "cpu", timeout=COLLECTIVE_TIMEOUT)


@one_way_out
def run_on_data(
    schema: type[C],
    run: Callable[[str, EpisodeSource, C], int],
    description: str,
    argv: Sequence[str] | None = None,
) -> int:
    """Parse, open the dataset, run; returns the exit code of `run`, or 2 for incompatible inputs."""
    parser = config_parser(schema, description)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="world model folder or hub id")
    parser.add_argument("data", metavar="DATA", help="dataset of any supported format")
    parser.add_argument("--mapping", metavar="YAML", help="keys and names of the dataset (DataMapping)")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    add_allow_external(parser)
    arguments = parser.parse_intermixed_args(argv)
    given = ["allow_external=true"] if arguments.allow_external else []
    config = load_config(schema, None, [*arguments.overrides, *given])
    check_apart(vars(config)["output"], arguments.data, locate(arguments.checkpoint))
    source = open_for_model(arguments.checkpoint, arguments.data, arguments.mapping)
    with end_on_signals(f"what is done is in {vars(config)['output']}, the same command goes on"):
        return run(arguments.checkpoint, source, config)
