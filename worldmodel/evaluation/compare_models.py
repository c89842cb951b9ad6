"""One figure of the true video and those of several models over time, with the path of the gripper:

worldmodel compare-models DATA ACG=run1/model ACG+MCL=run2/model --locator worldmodel/weights/locator

All models get the same first frames, actions and noise. A row shows one of them at several times; the dashed
line is the path, up to that time, of the gripper that moves most, as found by the locator.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from robotwin_adapters.open_dataset import open_as_trained
from worldmodel.cli_errors import one_way_out
from worldmodel.config import add_device
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.evaluation.predictors import ModelPredictor, predict_each
from worldmodel.evaluation.rollouts.results import TRUE
from worldmodel.locator.model import Locator
from worldmodel.models.model import WorldModel
from worldmodel.report.figures import save_figure, styled
from worldmodel.types import evenly_spread

NUM_GRIPPERS = 2
PATH_COLOR = "#ffd400"


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="held-out episodes of a robot that all models know")
    parser.add_argument(
        "models", nargs="+", metavar="NAME=FOLDER", help="rows below the truth, in this order"
    )
    parser.add_argument("--mapping", metavar="YAML", help="keys and names of the dataset (DataMapping)")
    parser.add_argument("--locator", default="worldmodel/weights/locator", help="finds the grippers")
    parser.add_argument("--clip", type=int, default=0, help="number of the clip (default: 0)")
    parser.add_argument("--moments", type=int, default=6, help="pictures in a row (default: 6)")
    parser.add_argument("--steps", type=int, default=1, help="sampling steps (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise (default: 0)")
    add_device(parser)
    parser.add_argument("--out", type=Path, default=Path("outputs/compare_models.png"), help="*.png")
    arguments = parser.parse_args(argv)
    folders = dict(_named(text) for text in arguments.models)
    videos = compare(
        *(folders, arguments.data, arguments.clip, arguments.steps, arguments.seed, arguments.mapping),
        device=arguments.device,
    )
    locator = Locator.from_pretrained(arguments.locator, arguments.device)
    draw_comparison(arguments.out, videos, gripper_paths(videos, locator), arguments.moments)
    print(f"wrote {arguments.out}")
    return 0


def _named(text: str) -> tuple[str, str]:
    name, sign, folder = text.partition("=")
    if not sign or not name or not folder:
        raise ValueError(f"models are given as NAME=FOLDER, got {text!r}")
    return name, folder


def compare(
    folders: Mapping[str, str],
    data: str,
    number: int,
    num_inference_steps: int,
    seed: int,
    mapping: str | None = None,
    *,
    device: str = "auto",
) -> dict[str, Float[Tensor, "t 3 H W"]]:
    """The true video of a clip, and each model's prediction from its first frames and actions."""
    videos: dict[str, Tensor] = {}
    for name, folder in folders.items():
        model = WorldModel.from_pretrained(folder, device=device)
        source = open_as_trained(data, model.normalizer, model.trained_on, mapping=mapping)
        clips = held_out_clips(
            source, model.contract, model.normalizer, HeldOutConfig(split="all"), model.trained_on
        )
        if not 0 <= number < len(clips):
            raise ValueError(f"--clip is 0 to {len(clips) - 1} in {data}, got {number}")
        predictor, clip = ModelPredictor(model, num_inference_steps), clips[number]
        commands: dict[str, Tensor | None] = {TRUE: predictor.commands(clip)}
        made = predict_each(predictor, clip, commands, num_given=predictor.num_given, seed=seed, max_batch=1)
        truth = videos.setdefault("truth", clip.frames)
        if truth.shape != clip.frames.shape:
            raise ValueError(f"{name} takes clips of another length or size than {next(iter(folders))}")
        videos[name] = made[TRUE]
    return videos


def gripper_paths(
    videos: Mapping[str, Float[Tensor, "t 3 H W"]], locator: Locator
) -> dict[str, Float[Tensor, "t 2"]]:
    """Positions in each video of the gripper that moves most in the truth, frame by frame, in pixels."""
    found = {name: locator.locate(video).points[:, :NUM_GRIPPERS] for name, video in videos.items()}
    moves = found["truth"].diff(dim=0).norm(dim=-1).sum(0)
    busy = int(moves.argmax())
    return {name: points[:, busy] for name, points in found.items()}


@styled
def draw_comparison(
    path: Path,
    videos: Mapping[str, Float[Tensor, "t 3 H W"]],
    paths: Mapping[str, Float[Tensor, "t 2"]],
    num_moments: int,
) -> None:
    """Draw one row per video and one column per time, with the path so far as a dashed line."""
    moments = evenly_spread(min(map(len, videos.values())), num_moments)
    figure = Figure(figsize=(1.5 * len(moments), 1.6 * len(videos)))
    axes = figure.subplots(len(videos), len(moments), squeeze=False)
    for axis, frame in zip(axes[0], moments, strict=True):
        axis.set_title(f"frame {frame}")
    for row, (name, video) in zip(axes, videos.items(), strict=True):
        row[0].set_ylabel(name)
        for axis, frame in zip(row, moments, strict=True):
            axis.imshow(video[frame].clamp(0, 1).permute(1, 2, 0).numpy(), interpolation="nearest")
            so_far = paths[name][: frame + 1].numpy() - 0.5
            axis.plot(so_far[:, 0], so_far[:, 1], "--", color=PATH_COLOR, linewidth=1.4)
            axis.plot(so_far[-1:, 0], so_far[-1:, 1], "o", color=PATH_COLOR, markersize=3)
            axis.set(xticks=[], yticks=[])
            axis.grid(visible=False)
    save_figure(figure, path)
