"""All measures of mechanistic independence of one generator, as numbers and as a page."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from worldmodel.diagnostics.mechanisms.higher_order import TypeH, type_h
from worldmodel.diagnostics.mechanisms.jacobians import (
    THRESHOLDS,
    Blocks,
    JacobianBlocks,
    LocalDiffeomorphism,
    Source,
    jacobian_blocks,
    local_diffeomorphism,
)
from worldmodel.diagnostics.mechanisms.mechanistic import (
    CompositionalContrast,
    Criterion,
    compositional_contrast,
    gap_criterion,
    type_d,
    type_m,
)
from worldmodel.diagnostics.mechanisms.sparsity_gap import SparsityGap, sparsity_gap
from worldmodel.diagnostics.mechanisms.support_graph import (
    IrreducibleComponents,
    SupportGraph,
    irreducible_components,
    support_graph,
)
from worldmodel.report.figures import styled
from worldmodel.report.intervals import Interval, interval_text
from worldmodel.report.page import Figures, Section, Table, Text

FEW_THRESHOLDS = (1e-3, 1e-2, 1e-1)  # thresholds of Type S if each needs a search by gradient descent
NOT_CURVED = ("affine generator", "piecewise linear generator")


@dataclass(frozen=True)
class MechanisticReport:
    """All measures of a generator's mechanisms on the same samples; None where one does not apply."""

    num_points: int
    latent_dim: int
    num_outputs: int
    blocks: tuple[tuple[int, ...], ...]
    diffeomorphism: LocalDiffeomorphism
    contrast: CompositionalContrast
    type_d: Criterion
    type_m: Criterion
    sparsity: SparsityGap | None  # None with a single block or where the Jacobian loses rank
    type_s: Criterion | None  # the same gap over rho+, with its curve
    type_h: TypeH | None  # None if only a Jacobian was given, or if not requested
    graph: SupportGraph
    irreducible: IrreducibleComponents | None  # None where the Jacobian loses rank

    def sections(self) -> list[Section]:
        """The page: a table of all measures, the curves over the threshold, and the graph."""
        header = ("measure", "value", "95 % interval", "points", "reading")
        intro = (
            f"{self.num_outputs} outputs, {self.latent_dim} latent coordinates in {len(self.blocks)} blocks."
        )
        table = Table(header, (*self._first_order_rows(), *self._other_rows()))
        curves = Figures(((_curves(self), "Curves over tau"),), is_wide=True)
        weights = Figures(((_weights(self.graph), "Weights"),), is_wide=True)
        return [
            Section("Mechanistic independence", (Text(intro), table)),
            Section("Over the threshold", (Text(CURVE_TEXT), curves)),
            Section("Support graph", (Text(_graph_text(self.graph)), weights)),
        ]

    def _first_order_rows(self) -> list[tuple[str, ...]]:
        diffeo, contrast, d, m = self.diffeomorphism, self.contrast, self.type_d, self.type_m
        condition = f"worst condition number {diffeo.condition_number.max():.3g}"
        bound = (len(self.blocks) - 1) / (2 * len(self.blocks))
        return [
            _row("full-rank Jacobians", diffeo.share, diffeo.interval, diffeo.num_points, condition),
            _row("compositional contrast", contrast.raw, None, contrast.num_points, "0: disjoint supports"),
            _row(
                "the same, normalized",
                contrast.normalized,
                contrast.interval,
                contrast.num_points,
                f"0: disjoint; {bound:.3g}: all factors move all outputs alike",
            ),
            _row("Type D: shared outputs", d.score, d.interval, d.num_points, _holds(d)),
            _row("Type M: smallest private share", m.score, m.interval, m.num_points, _holds(m)),
        ]

    def _other_rows(self) -> list[tuple[str, ...]]:
        gap, h, graph, matroid = self.sparsity, self.type_h, self.graph, self.irreducible
        rows: list[tuple[str, ...]] = []
        if gap is not None:
            kind = "exact" if gap.is_exact else f"surrogate on {gap.num_outputs} outputs, upper bounds"
            text = f"rho+ {gap.rho_plus.mean():.3g}, rho- {gap.rho_minus.mean():.3g}; {kind}"
            rows.append(_row("Type S: sparsity gap", gap.gap, gap.interval, gap.num_points, text))
        if h is not None:
            text = f"{h.shape}: no second derivatives" if h.shape in NOT_CURVED else f"holds at {h.holds:.0%}"
            rows.append(_row("Type H: Hessian across factors", h.score, h.interval, h.num_points, text))
        text = f"tau {graph.threshold:g}; most persistent count {graph.most_persistent[0]}"
        rows.append(_row("components, given basis", graph.num_components, None, graph.num_points, text))
        if matroid is not None:
            text = (
                f"per block {list(matroid.block_components)}; sine between points {matroid.misalignment:.2g}"
            )
            rows.append(_row("components, any basis", matroid.num_components, None, matroid.num_points, text))
        return rows


CURVE_TEXT = (
    "An entry of the Jacobian counts as zero up to tau times the largest one; for Type H, a block of the "
    "Hessian up to tau times the largest block. Learned generators have no exact zeros: look for a plateau."
)


def mechanistic_report(
    source: Source,
    z: Float[Tensor, "n d"] | None = None,
    blocks: Blocks | None = None,
    *,
    batched: bool = True,
    has_higher_order: bool = True,
    num_slow_points: int = 1,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> MechanisticReport:
    """Types D, M, S and H, contrast, graphs and rank of a generator at z, or of a Jacobian.

    The sparsity gap and Type H, the most expensive, are computed at the first `num_slow_points` points.

    Examples:
        >>> import torch
        >>> from worldmodel.diagnostics import mechanistic_report
        >>> z = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
        >>> def apart(z):  # coordinate 0 moves outputs 0 and 1, coordinate 1 moves output 2
        ...     return torch.stack([z[:, 0], z[:, 0].exp(), z[:, 1].exp()], dim=1)
        >>> report = mechanistic_report(apart, z, blocks=[[0], [1]])
        >>> report.type_d.holds, report.graph.num_components
        (1.0, 2)
    """
    jacobians = jacobian_blocks(source, z, blocks, batched=batched, dtype=dtype)
    few = JacobianBlocks(jacobians.jacobian[:num_slow_points], jacobians.blocks)
    diffeo = local_diffeomorphism(jacobians)
    is_full = diffeo.share == 1
    higher = None
    if has_higher_order and callable(source) and z is not None:
        higher = type_h(source, z[:num_slow_points], blocks, batched=batched, num_probes=1, seed=seed)
    gap = gap_type = None
    if is_full and len(jacobians.blocks) > 1:
        gap = sparsity_gap(few, num_steps=100, seed=seed)
        thresholds = THRESHOLDS if gap.is_exact else FEW_THRESHOLDS
        gap_type = gap_criterion(few, gap, thresholds=thresholds, num_steps=100, seed=seed)
    return MechanisticReport(
        num_points=jacobians.num_points,
        latent_dim=jacobians.latent_dim,
        num_outputs=jacobians.jacobian.shape[1],
        blocks=jacobians.blocks,
        diffeomorphism=diffeo,
        contrast=compositional_contrast(jacobians),
        type_d=type_d(jacobians),
        type_m=type_m(jacobians),
        sparsity=gap,
        type_s=gap_type,
        type_h=higher,
        graph=support_graph(jacobians),
        irreducible=irreducible_components(jacobians) if is_full else None,
    )


def _row(
    name: str, value: float | int, interval: Interval | None, num_points: int, reading: str
) -> tuple[str, str, str, str, str]:
    between = "" if interval is None else interval_text(interval, num_points)
    return name, f"{value:.4g}", between, str(num_points), reading


def _holds(criterion: Criterion) -> str:
    return f"holds at {criterion.holds:.0%} of the points (tau {criterion.threshold:g})"


def _graph_text(graph: SupportGraph) -> str:
    count, length = graph.most_persistent
    return (
        f"Components at tau {graph.threshold:g}: {[list(part) for part in graph.components]}. By weight, "
        f"{count} components live longest (over {length:.2g} of the range 0 to 1)."
    )


@styled
def _curves(report: MechanisticReport) -> Figure:
    figure = Figure(figsize=(8, 3))
    left, right = figure.subplots(1, 2)
    curves = (
        ("D: shared outputs", "o", report.type_d),
        ("M: private share", "s", report.type_m),
        ("S: gap / rho+", "^", report.type_s),
        ("H: Hessian across", "x", report.type_h),
    )
    for label, marker, found in curves:
        if found is not None:
            left.semilogx(found.thresholds, found.curve, marker=marker, label=label)
    left.set(xlabel="tau")
    left.legend()
    right.semilogx(report.graph.thresholds, report.graph.curve, marker="o", label="given basis")
    if report.irreducible is not None:
        tolerances = report.irreducible.tolerances
        right.semilogx(tolerances, report.irreducible.curve, marker="s", label="any basis (row matroid)")
    right.set(xlabel="tau or tolerance", ylabel="components", ylim=(0, report.latent_dim + 0.5))
    right.legend()
    return figure


@styled
def _weights(graph: SupportGraph) -> Figure:
    figure = Figure(figsize=(8, 3))
    left, right = figure.subplots(1, 2)
    picture = left.imshow(graph.weights, vmin=0, vmax=1)
    left.grid(visible=False)
    left.set(xlabel="coordinate", ylabel="coordinate")
    figure.colorbar(picture, ax=left)
    levels = np.linspace(0, 1, 201)
    right.step(levels, [graph.components_above(level) for level in levels])
    right.set(xlabel="least weight of an edge", ylabel="components", ylim=(0, len(graph.weights) + 0.5))
    return figure
