import numpy as np
import torch
from torch import Tensor

from worldmodel.diagnostics import mechanistic_report
from worldmodel.report.page import Figures, Table

BLOCKS = [(0, 1), (2, 3)]
Z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
FIRST, SECOND = (
    torch.randn(2, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    for size in (5, 6)
)


def disjoint(z: Tensor) -> Tensor:
    parts = torch.tanh(z[:, :2] @ FIRST.to(z)), torch.tanh(z[:, 2:] @ SECOND.to(z))
    return torch.cat(parts, dim=1)


def test_independent_factors_pass_every_criterion() -> None:
    found = mechanistic_report(disjoint, Z, BLOCKS)
    assert found.diffeomorphism.share == 1
    assert found.contrast.raw == 0
    assert (found.type_d.holds, found.type_m.holds) == (1, 1)
    assert found.sparsity is not None
    assert found.sparsity.is_exact
    assert found.sparsity.gap == 4
    assert found.type_h is not None
    assert found.type_h.score < 1e-9
    assert found.graph.components == ((0, 1), (2, 3))
    assert found.irreducible is not None
    assert found.irreducible.num_components == 2
    assert found.irreducible.block_components == (1, 1)


def test_mixed_coordinates_fail_but_any_basis_finds_the_split() -> None:
    mixing = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(5)))[0].double()
    found = mechanistic_report(lambda z: disjoint(z @ mixing.to(z)), Z, BLOCKS)
    assert found.type_d.holds == 0
    assert found.sparsity is not None
    assert found.sparsity.gap < 0
    assert found.type_h is not None
    assert found.type_h.score > 0.1
    assert found.graph.num_components == 1
    assert found.irreducible is not None
    assert found.irreducible.num_components == 2
    assert found.irreducible.misalignment < 1e-6


def test_pages_hold_every_measure() -> None:
    sections = mechanistic_report(disjoint, Z, BLOCKS).sections()
    (_, table), (_, curves), (_, weights) = (section.blocks for section in sections)
    assert isinstance(table, Table)
    assert isinstance(curves, Figures)
    assert isinstance(weights, Figures)
    names = [row[0] for row in table.rows]
    assert len(names) == 9
    assert {"Type S: sparsity gap", "Type H: Hessian across factors", "components, any basis"} <= set(names)
    drawn = curves.items[0][0].axes[0]
    assert [line.get_label()[0] for line in drawn.lines] == ["D", "M", "S", "H"]
    assert {len(line.get_xdata()) for line in drawn.lines} == {7}
    assert len(weights.items) == 1


def test_a_single_point_is_said_to_be_one() -> None:
    rows = {row[0]: row for row in mechanistic_report(disjoint, Z, BLOCKS).sections()[0].blocks[1].rows}
    assert rows["Type S: sparsity gap"][2:4] == ("one point", "1")
    assert rows["Type H: Hessian across factors"][2:4] == ("one point", "1")
    assert rows["Type D: shared outputs"][2:4] == ("0 to 0", "6")
    more = mechanistic_report(disjoint, Z, BLOCKS, num_slow_points=2)
    assert more.sparsity is not None
    assert more.sparsity.interval == (4, 4)


def test_a_jacobian_has_no_type_h_and_a_singular_one_no_gap() -> None:
    found = mechanistic_report(np.array([[1.0, 0], [0, 1], [1, 1]]))
    assert found.type_h is None
    assert found.sparsity is not None
    singular = mechanistic_report(np.array([[1.0, 2], [2, 4], [3, 6]]))
    assert singular.sparsity is None
    assert singular.irreducible is None
    assert "any basis" not in str(singular.sections()[0].blocks[1])
