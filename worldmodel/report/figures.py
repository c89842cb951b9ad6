"""Pictures of rollouts: horizon curves, gripper trajectories, sheets, points and bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float
from torch import Tensor

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from worldmodel.files import atomic_file
from worldmodel.report.intervals import Estimate
from worldmodel.types import evenly_spread

MAIN_COLORS = {"true": "#0b3d91", "static": "#222222", "autoencoder": "#8a8a8a"}
COLORS = ("#1f6fb4", "#d1592a", "#4f8f3a")  # left gripper, right gripper, object


def draw_curves(path: Path, panels: Mapping[str, Mapping[str, Sequence[Estimate]]], first_frame: int) -> None:
    """One panel per metric (title -> row -> one estimate per frame), bands are 95 % intervals."""
    figure, axes = plt.subplots(1, len(panels), figsize=(4.0 * len(panels), 3.4), squeeze=False)
    for axis, (title, rows) in zip(axes[0], panels.items(), strict=True):
        for name, curve in rows.items():
            frames = np.arange(first_frame, first_frame + len(curve))
            means, lows, highs = (
                np.array([getattr(e, part) for e in curve]) for part in ("mean", "low", "high")
            )
            color = MAIN_COLORS.get(name) or f"C{sorted(rows.keys() - MAIN_COLORS.keys()).index(name)}"
            style = {"linewidth": 2.2} if name in MAIN_COLORS else {"linewidth": 1.2, "linestyle": "--"}
            (line,) = axis.plot(frames, means, label=name.replace("_", " "), color=color, **style)
            if name in MAIN_COLORS:
                axis.fill_between(frames, lows, highs, alpha=0.15, color=line.get_color(), linewidth=0)
        axis.set(title=title, xlabel="frame")
        axis.grid(alpha=0.25)
    axes[0][-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    save_figure(figure, path)


def draw_trajectories(
    path: Path,
    real: Float[Tensor, "t 3 H W"],
    made: Float[Tensor, "t 3 H W"],
    real_points: Float[Tensor, "t p 2"],
    made_points: Float[Tensor, "t p 2"],
) -> None:
    """The paths of grippers (and object) over the last true and the last predicted frame.

    Solid: located in the true frames; dashed: located in the predicted ones. A dot marks the end.
    """
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.7))
    for axis, frame, title in ((axes[0], real[-1], "truth"), (axes[1], made[-1], "prediction")):
        axis.imshow(frame.clamp(0, 1).permute(1, 2, 0).numpy(), alpha=0.75, interpolation="nearest")
        for points, style in ((real_points, "-"), (made_points, "--")):
            for point, color in zip(range(points.shape[1]), COLORS, strict=False):
                x, y = points[:, point, 0].numpy() - 0.5, points[:, point, 1].numpy() - 0.5
                axis.plot(x, y, style, color=color, linewidth=1.6)
                axis.plot(x[-1:], y[-1:], "o" if style == "-" else "x", color=color, markersize=5)
        axis.set(title=title, xlim=(-0.5, frame.shape[2] - 0.5), ylim=(frame.shape[1] - 0.5, -0.5))
        axis.axis("off")
    save_figure(figure, path)


def draw_sheet(path: Path, videos: Mapping[str, Float[Tensor, "t 3 H W"]], num_columns: int = 7) -> None:
    """One row of evenly spaced frames per video."""
    length = min(len(video) for video in videos.values())
    chosen = evenly_spread(length, num_columns)
    figure, axes = plt.subplots(
        len(videos), len(chosen), figsize=(1.15 * len(chosen) + 1, 1.15 * len(videos)), squeeze=False
    )
    for row, (name, video) in zip(axes, videos.items(), strict=True):
        for axis, frame in zip(row, chosen, strict=True):
            axis.imshow(video[frame].clamp(0, 1).permute(1, 2, 0).numpy(), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name.replace("_", " "), rotation=0, ha="right", va="center", fontsize=9)
    for axis, frame in zip(axes[0], chosen, strict=True):
        axis.set_title(f"frame {frame}", fontsize=8)
    figure.subplots_adjust(wspace=0.04, hspace=0.04)
    save_figure(figure, path)


@dataclass(frozen=True)
class PointPanel:
    """Rows of a table as points, each with one or more intervals."""

    title: str
    floor: float  # drawn as a line
    rows: Mapping[str, Sequence[Estimate]]  # of the same number, the widest bar first


def draw_points(path: Path, panels: Sequence[PointPanel]) -> None:
    """One panel beside the other, rows from top to bottom."""
    count = max(len(panel.rows) for panel in panels)
    size = (3.4 * len(panels) + 1.2, 1.2 + 0.42 * count)
    figure, axes = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        axis.axvline(panel.floor, color=MAIN_COLORS["static"], linewidth=1, linestyle=":")
        for place, estimates in enumerate(panel.rows.values()):
            for number, estimate in enumerate(estimates):
                ends = np.abs(np.array([[estimate.low], [estimate.high]]) - estimate.mean)
                width, color = (5, "#a9c4e6") if not number else (1.4, MAIN_COLORS["true"])
                error = np.where(np.isfinite(ends), ends, 0)
                axis.errorbar(estimate.mean, place, xerr=error, color=color, elinewidth=width, fmt="o", ms=4)
        axis.set(title=panel.title, yticks=range(len(panel.rows)), yticklabels=list(panel.rows))
        axis.title.set_size(10)
        axis.grid(axis="x", alpha=0.25)
    axes[0][0].invert_yaxis()
    save_figure(figure, path)


def draw_bars(path: Path, values: Mapping[str, Estimate], label: str) -> None:
    """A horizontal bar per name, with its interval."""
    figure, axis = plt.subplots(figsize=(6.4, 0.8 + 0.26 * len(values)))
    means = np.array([estimate.mean for estimate in values.values()])
    ends = np.array([(estimate.low, estimate.high) for estimate in values.values()]).T
    errors = np.nan_to_num(np.abs(ends - means), posinf=0.0)
    axis.barh(list(values), means, xerr=errors, color=COLORS[0], error_kw={"linewidth": 1, "alpha": 0.6})
    axis.invert_yaxis()
    axis.set_xlabel(label)
    axis.grid(axis="x", alpha=0.25)
    save_figure(figure, path)


def save_figure(figure: plt.Figure, path: Path) -> None:
    """Write a PNG, whole or not at all, and free the figure."""
    with atomic_file(path) as temporary:
        figure.savefig(temporary, dpi=110, bbox_inches="tight", format="png")
    plt.close(figure)
