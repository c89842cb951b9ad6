"""Turn a published robot world model into a model folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from worldmodel.cli_errors import one_way_out


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Command line: turn a published robot world model into a model folder; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Turn a published robot world model into a model folder, which all other commands take. "
        "Pickles are read as tensors only, and no published code or config is executed.",
    )
    parser.add_argument("kind", choices=("bwm", "open-world"), help="whose model it is")
    parser.add_argument("source", metavar="SOURCE", help="hub id, or folder with the published files")
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL", help="folder to write")
    parser.add_argument(
        "--file", default="", metavar="PART", help="part of the weight file's path, if there are several"
    )
    parser.add_argument(
        "--stats", default="", metavar="JSON", help="quantiles of its actions (default: beside)"
    )
    parser.add_argument("--vae", default="", help="its autoencoder (default: that of its Wan, from the hub)")
    parser.add_argument("--embodiment", default="", help="name of its robot (default: robotwin or franka)")
    parser.add_argument(
        "--camera", help="name, or several joined by + (default: any of bwm, exterior_1+wrist of open-world)"
    )
    for name, meaning in (("height", "pixels"), ("width", "pixels"), ("num-frames", "of a clip, 1 + 4k")):
        parser.add_argument(f"--{name}", type=int, help=f"{meaning} (default: as published)")
    parser.add_argument("--fps", type=float, help="frames per second (default: 24 of bwm, 5 of open-world)")
    run(parser.parse_args(argv))
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Write the model folder and print what it takes."""
    from dataclasses import replace

    from worldmodel.checkpoint.published import KINDS, import_model
    from worldmodel.data.layouts import JOINT

    named = {name: getattr(arguments, name) for name in ("height", "width", "num_frames", "fps", "camera")}
    changes = {name: value for name, value in named.items() if value is not None}
    contract = replace(KINDS[arguments.kind].contract, **changes)
    if JOINT not in contract.camera:
        contract = replace(contract, layout=None)
    texts = {name: getattr(arguments, name) for name in ("file", "stats", "vae", "embodiment")}
    import_model(arguments.kind, arguments.source, arguments.out, contract=contract, **texts)
    print((arguments.out / "README.md").read_text().partition("---\n# ")[2].partition("## Use")[0].strip())
    print(f"\nwritten to {arguments.out}")
