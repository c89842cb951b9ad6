"""Figures in one style, and those of rollouts: horizon curves, gripper paths, sheets, points and bars.

Draw inside `styled` and write with `save_figure`:

    @styled
    def draw_losses(path: Path, losses: Sequence[float]) -> None:
        figure = Figure(figsize=(5, 3))
        figure.subplots().plot(losses)
        save_figure(figure, path)

Figures are made without pyplot, so that nothing has to be closed and no display is needed.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
from cycler import cycler
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from worldmodel.files import atomic_file
from worldmodel.report.intervals import Estimate
from worldmodel.types import evenly_spread

# Okabe and Ito's colors (without yellow, which is too pale on white), then three of Tol's. They are
# distinguishable for people with red-green color blindness.
PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#882255", "#999933", "#332288", "#777777"),
)
INK, SOFT = "#222222", "#8a8a8a"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.edgecolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.5,
    "image.cmap": "viridis",
    "figure.facecolor": "white",
}
DPI = 130
ROW_COLORS = {"true": PALETTE[0], "static": INK, "autoencoder": SOFT}
POINT_COLORS = PALETTE[:3]  # left gripper, right gripper, object
STRONGEST, LONGEST_NAME = 12, 20  # names whose changes are drawn, and their characters
WIDE_BAR: dict[str, Any] = {"color": "#a9c4e6", "elinewidth": 5}  # drawn below a thin one

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorator that draws in this style; the user's own matplotlib settings are restored afterwards."""
    return matplotlib.rc_context(STYLE)(draw)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(to_png(figure))


@styled
def to_png(figure: Figure) -> bytes:
    """The figure as PNG bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, bbox_inches="tight")
    return buffer.getvalue()


def plain(text: str) -> str:
    """A name from data as a label: dollar signs do not start a formula, underscores become blanks."""
    return text.replace("_", " ").replace("$", r"\$")


@styled
def draw_curves(path: Path, panels: Mapping[str, Mapping[str, Sequence[Estimate]]], first_frame: int) -> None:
    """One panel per metric (title -> row -> one estimate per frame), bands are 95 % intervals."""
    figure = Figure(figsize=(4.0 * len(panels), 3.4))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        others = sorted(rows.keys() - ROW_COLORS.keys())
        for name, curve in rows.items():
            frames = np.arange(first_frame, first_frame + len(curve))
            means, lows, highs = np.array([(e.mean, e.low, e.high) for e in curve]).T
            if name in ROW_COLORS:
                axis.plot(frames, means, label=plain(name), color=ROW_COLORS[name], linewidth=2.2)
                axis.fill_between(frames, lows, highs, alpha=0.15, color=ROW_COLORS[name], linewidth=0)
            else:
                color = f"C{1 + others.index(name)}"
                axis.plot(frames, means, "--", label=plain(name), color=color, linewidth=1.2)
        axis.set(title=title, xlabel="frame")
    axes[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    save_figure(figure, path)


@styled
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
    figure = Figure(figsize=(7.2, 3.7))
    axes = figure.subplots(1, 2)
    for axis, frame, title in ((axes[0], real[-1], "truth"), (axes[1], made[-1], "prediction")):
        axis.imshow(frame.clamp(0, 1).permute(1, 2, 0).numpy(), alpha=0.75, interpolation="nearest")
        for points, style in ((real_points, "-"), (made_points, "--")):
            for point, color in zip(range(points.shape[1]), POINT_COLORS, strict=False):
                x, y = points[:, point, 0].numpy() - 0.5, points[:, point, 1].numpy() - 0.5
                axis.plot(x, y, style, color=color, linewidth=1.6)
                axis.plot(x[-1:], y[-1:], "o" if style == "-" else "x", color=color, markersize=5)
        axis.set(title=title, xlim=(-0.5, frame.shape[2] - 0.5), ylim=(frame.shape[1] - 0.5, -0.5))
        axis.axis("off")
    save_figure(figure, path)


def draw_sheet(path: Path, videos: Mapping[str, Float[Tensor, "t 3 H W"]], num_columns: int = 7) -> None:
    """One row of evenly spaced frames per video."""
    chosen = evenly_spread(min(len(video) for video in videos.values()), num_columns)
    rows = {name: video[chosen] for name, video in videos.items()}
    draw_rows(path, rows, [f"frame {frame}" for frame in chosen], cell=1.15)


@styled
def draw_rows(
    path: Path,
    rows: Mapping[str, Float[Tensor, "n 3 H W"]],
    titles: Sequence[str] = (),
    *,
    cell: float = 0.8,
) -> None:
    """A labeled row of pictures each, `cell` inches per side, with titles above the columns."""
    columns, size = max(len(row) for row in rows.values()), next(iter(rows.values())).shape
    wide = cell * max(1.0, size[-1] / size[-2])
    figure = Figure(figsize=(wide * columns, cell * len(rows)))
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for axis, picture in zip(line, pictures, strict=False):
            axis.imshow(picture.clamp(0, 1).permute(1, 2, 0).numpy(), interpolation="nearest")
        for axis in line:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        line[0].set_ylabel(plain(name), rotation=0, ha="right", va="center")
    for axis, title in zip(axes[0], titles, strict=False):
        axis.set_title(title, fontsize=8)
    figure.subplots_adjust(0, 0, 1, 1, wspace=0.04, hspace=0.04)  # labels are outside
    save_figure(figure, path)


@styled
def draw_responses(
    path: Path, frame: Float[Tensor, "3 H W"], changes: Mapping[str, Float[Tensor, "H W"]], columns: int = 6
) -> None:
    """A gray frame for each of the strongest names with what changes in it, all in one scale."""
    order = sorted(changes, key=lambda name: -changes[name].mean().item())[:STRONGEST]
    rows, size = -(-len(order) // columns), frame.shape[-2:]
    most = max(change.max().item() for change in changes.values()) or 1.0
    wide = 1.5 * size[1] / size[0]
    figure = Figure(figsize=(wide * min(columns, len(order)), 1.75 * rows))
    axes = figure.subplots(rows, min(columns, len(order)), squeeze=False).flatten()
    gray = 0.55 + 0.4 * frame.mean(0).numpy()
    for axis, name in zip(axes, order, strict=False):
        change = changes[name].numpy()
        axis.imshow(gray, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.imshow(change, cmap="inferno_r", vmin=0, vmax=most, alpha=np.minimum(1, 3 * change / most))
        short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 2]}.."
        axis.set_title(f"{plain(short)}  {change.mean():.4f}", fontsize=7)
    for axis in axes:
        axis.axis("off")
    figure.subplots_adjust(0, 0, 1, 0.93, wspace=0.05, hspace=0.2)
    save_figure(figure, path)


@dataclass(frozen=True)
class PointPanel:
    """Rows of a table as points, each with one or more intervals."""

    title: str
    floor: float  # drawn as a line
    rows: Mapping[str, Sequence[Estimate]]  # of the same number, the widest bar first


@styled
def draw_points(path: Path, panels: Sequence[PointPanel]) -> None:
    """Panels next to each other, rows from top to bottom."""
    count = max(len(panel.rows) for panel in panels)
    figure = Figure(figsize=(3.4 * len(panels) + 1.2, 1.2 + 0.42 * count))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        axis.axvline(panel.floor, color=INK, linewidth=1, linestyle=":")
        for place, estimates in enumerate(panel.rows.values()):
            for number, estimate in enumerate(estimates):
                look = {"color": PALETTE[0], "elinewidth": 1.4} if number else WIDE_BAR
                axis.errorbar(estimate.mean, place, xerr=_errors([estimate]), fmt="o", ms=4, **look)
        axis.set(title=panel.title, yticks=range(len(panel.rows)), yticklabels=list(map(plain, panel.rows)))
        axis.grid(visible=False, axis="y")
    axes[0].invert_yaxis()
    save_figure(figure, path)


@styled
def draw_bars(path: Path, values: Mapping[str, Estimate], label: str) -> None:
    """A horizontal bar per name, with its interval."""
    figure = Figure(figsize=(6.4, 0.8 + 0.26 * len(values)))
    axis = figure.subplots()
    means, places = [estimate.mean for estimate in values.values()], range(len(values))
    error_style = {"linewidth": 1, "alpha": 0.6}
    axis.barh(places, means, xerr=_errors(list(values.values())), color=PALETTE[0], error_kw=error_style)
    axis.set(xlabel=label, yticks=places, yticklabels=list(map(plain, values)))
    axis.grid(visible=False, axis="y")
    axis.invert_yaxis()
    save_figure(figure, path)


def _errors(estimates: Sequence[Estimate]) -> Float[np.ndarray, "2 n"]:
    """Lengths of the error bars below and above; 0 where there is no interval."""
    ends = np.array([(e.mean - e.low, e.high - e.mean) for e in estimates]).T
    return np.where(np.isfinite(ends), ends, 0.0)
