"""One page with tables and figures about a generator or a world model's action channel."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from worldmodel.cli_errors import one_way_out
from worldmodel.config import add_device


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description="One page with tables and figures about a generator or a world model's action channel. "
        "A generator: mechanistic independence of its factors (Types D, M, S, H, graphs, rank). "
        "A world model folder: which group of action dimensions moves which pixels, on clips of a dataset.",
    )
    parser.add_argument("source", help="world model folder, package.module:name or path/file.py:name")
    parser.add_argument("--blocks", type=int, nargs="+", default=(), help="coordinates of each factor")
    parser.add_argument("--points", type=int, default=16, help="number of latents (default: 16)")
    parser.add_argument("--dataset", help="clips for a world model: folder, .zip or .hdf5")
    parser.add_argument("--clips", type=int, default=4, help="number of clips (default: 4)")
    parser.add_argument("--camera", help="camera of the dataset (default: the one the model was trained on)")
    parser.add_argument("--mapping", metavar="YAML", help="keys and names of the dataset (DataMapping)")
    parser.add_argument(
        "--groups", default="", help='action groups such as "arm=0-5,gripper=6" (default: by action names)'
    )
    parser.add_argument("--seed", type=int, default=0, help="of latents or noise (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("outputs/diagnose.html"), help="*.html or *.md")
    parser.add_argument(
        "--allow-external", action="store_true", help="also load from other places that the model names"
    )
    add_device(parser)
    run(parser.parse_args(argv))
    return 0


def run(arguments: argparse.Namespace) -> None:
    """One page with tables and figures about a generator or a world model's action channel."""
    from worldmodel.diagnostics.actions.diagnose import diagnose_generator, diagnose_world_model, first_clips
    from worldmodel.files import check_apart
    from worldmodel.report.page import check_page_name

    check_page_name(arguments.out)
    check_apart(arguments.out, arguments.dataset or "")
    if ":" in arguments.source:
        written = diagnose_generator(
            arguments.source,
            arguments.out,
            block_sizes=arguments.blocks,
            num_points=arguments.points,
            seed=arguments.seed,
        )
    else:
        from robotwin_adapters.open_dataset import open_as_trained
        from worldmodel.models.model import WorldModel

        if not arguments.dataset:
            raise ValueError("a world model is diagnosed on clips: name a --dataset")
        model = WorldModel.from_pretrained(
            arguments.source, allow_external=arguments.allow_external, device=arguments.device
        )
        source = open_as_trained(
            arguments.dataset,
            model.normalizer,
            model.trained_on,
            camera=arguments.camera,
            mapping=arguments.mapping,
        )
        batch, view = first_clips(model, source, arguments.clips, camera=arguments.camera)
        written = diagnose_world_model(
            model, batch, arguments.out, view=view, groups=arguments.groups, seed=arguments.seed
        )
    print("\n".join(f"wrote {path}" for path in written))
