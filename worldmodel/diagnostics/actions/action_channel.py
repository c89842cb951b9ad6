"""The effect of actions on a generated video: which group of action dimensions moves which pixels, and when.

Works on any callable `generator(latent[b ...], actions[b n a]) -> frames[b t c H W]` whose samples do not
depend on each other. Columns of the Jacobian are action dimensions, with the same offset in all n
transitions. Axes: b samples, n transitions, a action size, t frames, g groups of action dimensions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor
from torch.func import jvp

from worldmodel.diagnostics.mechanisms.jacobians import jacobian_blocks
from worldmodel.diagnostics.mechanisms.mechanism_diversity import MechanismDiversity, mechanism_diversity
from worldmodel.diagnostics.mechanisms.mechanistic import (
    CompositionalContrast,
    Criterion,
    compositional_contrast,
    type_d,
)
from worldmodel.report.figures import PALETTE, plain, styled
from worldmodel.report.intervals import Interval, interval_text, mean_interval
from worldmodel.report.page import Figures, Section, Table, Text
from worldmodel.types import evenly_spread

VideoGenerator = Callable[[Tensor, Tensor], Tensor]  # (latent[b ...], actions[b n a]) -> frames[b t c H W]
Derivative = Literal["forward", "difference"]
MOVED = 0.05  # share of the strongest effect above which a pixel counts as moved
GROUP_COLORS = (*PALETTE, *colormaps["Set3"].colors)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class ActionChannel:
    """Effect of each group of action dimensions on each pixel, and the overlap of groups."""

    groups: tuple[str, ...]
    num_samples: int
    maps: Float[np.ndarray, "g t H W"]  # root mean square change of a pixel per unit of action
    strength: Float[np.ndarray, "g t"]  # the same over the whole frame: at which frames a group acts
    per_sample: Float[np.ndarray, "b g"]  # the same over all frames, for each sample
    intervals: tuple[Interval, ...]  # 95 % of the mean over samples, per group
    type_d: Criterion  # shared pixels between groups; the threshold is MOVED
    contrast: CompositionalContrast  # between groups
    diversity: MechanismDiversity | None  # GMD contrasts of the actions, if requested

    def sections(self) -> list[Section]:
        """Tables and figures of the report."""
        rows = [
            (name, f"{values.mean():.3g}", between, " ".join(f"{v:.2g}" for v in by_frame))
            for name, values, between, by_frame in zip(
                self.groups, self.per_sample.T, map(self._between, self.intervals), self.strength, strict=True
            )
        ]
        header = ("action group", "change per unit", "95 % interval", "frame by frame")
        text = f"{self.num_samples} samples; root mean square change of a pixel per unit of action."
        shared, contrast = self.type_d, self.contrast
        between = (
            ("Type D: pixels moved by several groups", shared.score, shared.interval),
            ("compositional contrast, normalized", contrast.normalized, contrast.interval),
        )
        parts = tuple((name, f"{value:.3g}", self._between(interval)) for name, value, interval in between)
        picture = Figures(((self.figure(), "Who moves what"),), is_wide=True)
        sections = [
            Section("Action channel", (Text(text), Table(header, tuple(rows)), picture)),
            Section("Do the groups keep apart?", (Text(HEADROOM), Table(MEASURE, parts))),
        ]
        if self.diversity is not None:
            sections.append(diversity_section(self.diversity))
        return sections

    def _between(self, interval: Interval) -> str:
        return interval_text(interval, self.num_samples)

    @styled
    def figure(self) -> Figure:
        """One row per group, one column per frame, all on one scale; the last row is the strongest group."""
        num_groups, num_frames = self.strength.shape
        columns = evenly_spread(num_frames, 6)
        figure = Figure(figsize=(2 * len(columns), 2 * (num_groups + 1)))
        axes = figure.subplots(num_groups + 1, len(columns), squeeze=False)
        top = max(float(self.maps.max()), 1e-12)
        colors = [GROUP_COLORS[number % len(GROUP_COLORS)] for number in range(num_groups)]
        for column, frame in enumerate(columns):
            for row, name in enumerate(self.groups):
                axes[row][column].imshow(self.maps[row, frame], vmin=0, vmax=top, cmap="magma")
                axes[row][column].set_title(f"{plain(name)}, frame {frame}", fontsize=8)
            axes[-1][column].imshow(
                self.owners()[frame], cmap=ListedColormap(["black", *colors]), vmin=-1, vmax=num_groups - 1
            )
            axes[-1][column].set_title("strongest", fontsize=8)
        for axis in axes.flat:
            axis.set_axis_off()
        names = map(plain, self.groups)
        keys = [Patch(color=color, label=name) for color, name in zip(colors, names, strict=True)]
        figure.legend(handles=[*keys, Patch(color="black", label="none")], loc="lower center", ncols=8)
        return figure

    def owners(self) -> np.ndarray:
        """[t H W] index of the group that moves each pixel most, -1 if none does."""
        strongest = self.maps.argmax(0)
        return np.where(self.maps.max(0) > MOVED * self.maps.max(), strongest, -1)


MEASURE = ("measure", "value", "95 % interval")
HEADROOM = (
    "A pixel counts as shared when two groups each move it by more than 5 % of the strongest effect. Arms "
    "that never cross share none. The joints of one arm move the same pixels, and share most of them."
)


def action_channel(
    generator: VideoGenerator,
    latent: Float[Tensor, "b ..."],
    actions: Float[Tensor, "b n a"],
    groups: Mapping[str, Sequence[int]],
    *,
    derivative: Derivative = "forward",
    step: float = 0.05,
    num_directions: int = 0,
    seed: int = 0,
) -> ActionChannel:
    """Measure the effect of each action group on each pixel.

    Args:
        generator: differentiable for derivative="forward"; any callable for "difference".
        latent: the other inputs of the video (noise, first frames, a state).
        actions: normalized, about [-1, 1].
        groups: name -> action dimensions, for instance from `group_actions`; dimensions may be omitted.
        derivative: forward-mode differentiation, or central differences for non-differentiable generators.
        step: half width of the differences, in units of normalized action.
        num_directions: latent directions for the GMD contrasts of the actions; 0 skips them. They need third
            derivatives in double precision.
        seed: of those directions.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import action_channel
        >>> def video(latent, actions):  # each action lights its own pixel
        ...     return latent + actions.cumsum(1)[:, :, None, None, :]
        >>> latent, actions = torch.zeros(2, 4, 1, 1, 2), torch.zeros(2, 4, 2)
        >>> channel = action_channel(video, latent, actions, {"left": [0], "right": [1]})
        >>> channel.owners()[-1].tolist(), channel.type_d.score
        ([[0, 1]], 0.0)
    """
    chosen = [int(index) for indices in groups.values() for index in indices]
    if not chosen or len(set(chosen)) < len(chosen) or max(chosen) >= actions.shape[2]:
        raise ValueError(f"groups must name different dimensions below {actions.shape[2]}, got {groups}")
    columns, shape = _columns(generator, latent, actions, chosen, derivative, step)
    ends = np.cumsum([len(indices) for indices in groups.values()])
    blocks = [range(end - len(indices), end) for end, indices in zip(ends, groups.values(), strict=True)]
    jacobians = jacobian_blocks(columns, blocks=blocks)
    power = jacobians.row_norms.square().unflatten(1, shape).mean(2)
    per_sample = power.mean((1, 2, 3)).sqrt().cpu().numpy()
    return ActionChannel(
        groups=tuple(groups),
        num_samples=len(actions),
        maps=power.mean(0).sqrt().permute(3, 0, 1, 2).cpu().numpy(),
        strength=power.mean((0, 2, 3)).sqrt().T.cpu().numpy(),
        per_sample=per_sample,
        intervals=tuple(mean_interval(values) for values in per_sample.T),
        type_d=type_d(jacobians, threshold=MOVED),
        contrast=compositional_contrast(jacobians),
        diversity=action_diversity(generator, latent, actions, num_directions=num_directions, seed=seed)
        if num_directions
        else None,
    )


def diversity_section(diversity: MechanismDiversity, text: str = "") -> Section:
    """Report section with `text`, the verdict on the actions' GMD contrasts, and their spectrum."""
    header = ("point", "rank", "effective rank", "condition number", "singular values")
    columns = (diversity.rank, diversity.effective_rank, diversity.condition_number)
    rows = tuple(
        (
            str(point),
            f"{rank:d}",
            f"{effective:.3g}",
            f"{condition:.3g}",
            " ".join(f"{v:.3g}" for v in values),
        )
        for point, (rank, effective, condition, values) in enumerate(
            zip(*(column.tolist() for column in (*columns, diversity.singular_values)), strict=True)
        )
    )
    size = f"Largest contrast {diversity.largest_contrast:.3g} before scaling."
    lines = f"{text} {diversity.verdict()}. {size}".strip()
    return Section("Mechanism diversity of the actions", (Text(lines), Table(header, rows)))


def action_diversity(
    generator: VideoGenerator,
    latent: Float[Tensor, "b ..."],
    actions: Float[Tensor, "k n a"],
    *,
    num_directions: int = 2,
    num_points: int = 4,
    seed: int = 0,
) -> MechanismDiversity:
    """GMD contrasts with the action sequences as conditions, along a few random directions of latent[0].

    The generator is called in double precision and differentiated three times.
    """
    rng = torch.Generator().manual_seed(seed)
    base = latent[:1].double()
    directions = torch.randn(num_directions, *latent.shape[1:], generator=rng, dtype=torch.float64).to(base)
    directions = directions / directions.flatten(1).norm(dim=1).view(-1, *[1] * (directions.ndim - 1))

    def along(z: Tensor, u: Tensor) -> Tensor:
        moved = base + torch.tensordot(z, directions, dims=1)
        return generator(moved, u.unflatten(1, actions.shape[1:])).flatten(1)

    points = torch.randn(num_points, num_directions, generator=rng, dtype=torch.float64).to(base)
    return mechanism_diversity(along, points, actions.double().flatten(1))


@torch.no_grad()
def _columns(
    generator: VideoGenerator,
    latent: Tensor,
    actions: Float[Tensor, "b n a"],
    chosen: list[int],
    derivative: Derivative,
    step: float,
) -> tuple[Float[Tensor, "b m chosen"], tuple[int, ...]]:
    """Change of all frames per unit of each chosen dimension, and the shape of a video."""
    columns = []
    for index in chosen:
        offset = torch.zeros_like(actions)
        offset[:, :, index] = 1
        if derivative == "forward":
            change = jvp(lambda moved: generator(latent, moved), (actions,), (offset,))[1]
        else:
            ahead, behind = (generator(latent, actions + sign * step * offset) for sign in (1, -1))
            change = (ahead - behind) / (2 * step)
        if change.ndim != 5:
            raise ValueError(f"the generator must return frames [b t c H W], got {tuple(change.shape)}")
        columns.append(change)
    return torch.stack([column.flatten(1) for column in columns], 2), tuple(columns[0].shape[1:])
