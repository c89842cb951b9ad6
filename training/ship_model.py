"""Make a small folder to publish out of a finished run:

python training/ship_model.py RUN TARGET [--model best]

RUN is the output folder of train_world_model.py. TARGET gets its world model with weights in half precision
(single again when loaded), the config of the run, and its curves.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from safetensors.torch import load_file

from worldmodel import checkpoint

CURVES = {"reconstruction": "latent error", "rollout_psnr": "PSNR of rollouts, dB"}


def ship(run: Path, target: Path, name: str = "model") -> int:
    """Write the folder; how many bytes it takes."""
    source, config = run / name, run / "config.yaml"
    for needed in (source / checkpoint.CONTRACT_FILE, config, run / "log.jsonl"):
        if not needed.is_file():
            raise ValueError(f"{run} is not a finished run: {needed} is missing")
    with checkpoint.replaced_folder(target) as new:
        shutil.copytree(source, new, dirs_exist_ok=True)
        for path in new.rglob("*.safetensors"):
            tensors = {key: value.half() for key, value in load_file(path).items()}
            checkpoint.write_tensors(path, tensors)
        shutil.copy(config, new / "training.yaml")
        draw_curves(run / "log.jsonl", new / "curves.png")
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def draw_curves(log: Path, picture: Path) -> None:
    """Training and validation numbers against steps."""
    records = [json.loads(line) for line in log.read_text().splitlines()]
    figure, axes = pyplot.subplots(1, len(CURVES), figsize=(9, 3), layout="constrained")
    for axis, (key, title) in zip(axes, CURVES.items(), strict=True):
        for kind, style in (("train", {"alpha": 0.35}), ("validation", {"marker": "o", "markersize": 3})):
            rows = [record for record in records if record["kind"] == kind and key in record]
            axis.plot([row["step"] for row in rows], [row[key] for row in rows], label=kind, **style)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(picture, dpi=110)
    pyplot.close(figure)


def main() -> int:
    """Exit code 2 for a folder that is not a finished run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("target", type=Path, metavar="TARGET")
    parser.add_argument("--model", default="model", help="model (last step, default) or best")
    arguments = parser.parse_args()
    try:
        size = ship(arguments.run, arguments.target, arguments.model)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.target}: {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
