"""Estimate parameters, memory by component and time of a training config without loading a model."""

import argparse
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from worldmodel.cli_errors import one_way_out


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description="Parameters, memory by part and time of a training config, before anything is loaded.",
    )
    parser.add_argument("config", metavar="CONFIG.yaml", help="config of worldmodel train")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="what differs from the file")
    parser.add_argument("--gpus", required=True, metavar="NxNAME", help="for example 4xH100, 1xA100, 2xCPU")
    parser.add_argument(
        "--action-dim", type=int, default=14, help="action dimensions of the data (default: 14)"
    )
    run(parser.parse_intermixed_args(argv))
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Estimate parameters, memory by component and time of a training config without loading a model."""
    with _no_garbage_in_imports():
        from worldmodel.estimate.cost import check_memory, describe, estimate, parse_gpus
        from worldmodel.estimate.run_shape import assumption, load_run, run_shape

    num_gpus, device = parse_gpus(arguments.gpus)
    config = load_run(arguments.config, arguments.overrides)
    shape = run_shape(config, num_gpus, device, arguments.action_dim)
    result = estimate(shape, num_gpus, device)
    if said := assumption(config):
        print(said, file=sys.stderr)
    print("\n".join(describe(result, num_gpus, device)), flush=True)
    check_memory(result, device)


@contextmanager
def _no_garbage_in_imports() -> Iterator[None]:
    """Exclude imported objects from garbage collection, which would spend a second on them."""
    if "torch" in sys.modules:  # called inside a longer-lived process
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
