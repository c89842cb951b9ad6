from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from studies.cells_file import open_cells, read_cells
from studies.mechanistic_independence.figures import stopping_index, write_report
from studies.mechanistic_independence.run import (
    chosen_weights,
    run_cells,
    score_name,
    study_cells,
    true_gaps,
    tuning_cells,
)
from studies.mechanistic_independence.training import (
    BLOCKS,
    DIM,
    SUPPORT,
    CellConfig,
    Objective,
    RingGenerator,
    StackedAutoencoder,
    best_pairing,
    slot_recovery,
    train_cell,
)

from worldmodel.diagnostics import jacobian_blocks, type_d, type_h

TINY = CellConfig(num_seeds=2, steps=4, trace_every=2, width=8, batch_size=8, criterion_size=4)
Z = torch.rand(8, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize("overlap", [0.0, 0.05, 0.2, 0.5])
def test_generators_have_the_supports_they_are_asked_for(overlap: float) -> None:
    generator = RingGenerator(replace(TINY, overlap=overlap))
    jacobians = jacobian_blocks(generator.of_seed(0), Z, BLOCKS)
    moved = jacobians.block_support(0.0)[0]
    assert moved.sum(0).tolist() == [SUPPORT] * 3
    shared = (moved.sum(1) > 1).sum().item()
    assert shared == 3 * round(overlap * SUPPORT / 2)
    assert type_d(jacobians, threshold=0.0).holds == (overlap == 0)
    assert jacobians.singular_values[:, -1].min() > 1e-3


def test_additive_generators_are_additive_and_mixed_ones_are_not() -> None:
    for interaction, holds in (("additive", 1), ("mixed", 0)):
        generator = RingGenerator(replace(TINY, overlap=0.5, interaction=interaction))
        assert type_h(generator.of_seed(1), Z[:2], BLOCKS).holds == holds


def test_a_stack_is_its_seeds() -> None:
    both, second = RingGenerator(TINY), RingGenerator(replace(TINY, first_seed=1, num_seeds=1))
    torch.testing.assert_close(both(Z.expand(2, -1, -1))[1], second(Z.unsqueeze(0))[0])


def test_the_decoder_knows_its_jacobian() -> None:
    model = StackedAutoencoder(10, TINY).double()
    z = Z.expand(2, -1, -1)
    torch.set_default_dtype(torch.float64)
    try:
        outputs, jacobian = model.decode_with_jacobian(z)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(outputs, model.decode(z))
    for seed in range(2):
        one = torch.func.jacfwd(lambda point, seed=seed: model.decode(point.expand(2, 1, -1))[seed, 0])
        torch.testing.assert_close(jacobian[seed], torch.func.vmap(one)(Z))


def test_recovery_is_high_for_the_truth_and_low_for_a_rotation() -> None:
    truth = torch.rand(1, 600, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
    order = [4, 5, 0, 1, 2, 3]
    assert slot_recovery(truth, truth[..., order].exp())["recovery"][0] > 0.95
    swapped = truth[..., [0, 2, 1, 3, 4, 5]]
    # Two of three blocks hold one coordinate of each of two factors: R^2 of 1/2 from either.
    assert slot_recovery(truth, swapped)["recovery"][0] == pytest.approx(1 / 3, abs=0.05)
    turn = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(2)).double())[0]
    assert slot_recovery(truth, truth @ turn)["recovery"][0] < 0.5


def test_pairing_follows_the_heaviest_edges() -> None:
    weights = np.eye(DIM)
    pairs = [[0, 3], [1, 5], [2, 4]]
    for a, b in pairs:
        weights[a, b] = weights[b, a] = 0.9
    order = best_pairing(weights)
    assert sorted(sorted(order[i : i + 2]) for i in (0, 2, 4)) == pairs


@pytest.mark.parametrize("objective", get_args(Objective))
def test_every_criterion_trains(objective: str) -> None:
    first, again = (train_cell(replace(TINY, objective=objective, overlap=0.5)) for _ in range(2))
    assert [entry["step"] for entry in first["trace"]] == [2, 4]
    assert first["trace"] == again["trace"]
    assert np.isfinite(first["trace"][-1]["sparse_volume"]).all()


def test_gaps_have_the_signs_of_theory() -> None:
    disjoint, shared = (true_gaps(replace(TINY, overlap=overlap), num_points=8) for overlap in (0.0, 0.5))
    assert disjoint["true_contrast"] == [0.0, 0.0]
    assert disjoint["true_components"] == disjoint["mixed_components_any_basis"] == [3.0, 3.0]
    assert disjoint["mixed_components"] == shared["true_components"] == [1.0, 1.0]
    for name in ("contrast", "sparse_volume", "hessian_across"):
        assert max(shared[f"true_{name}"]) < min(shared[f"mixed_{name}"])


def test_the_study_goes_on_where_it_stopped_and_reports(tmp_path: Path) -> None:
    cells = open_cells(tmp_path, "mechanistic_independence")
    for cell in tuning_cells():
        cells.add(f"cells/{cell.name}", {"trace": [{score_name(cell.objective): [cell.weight == 0.01]}]})
    weights = chosen_weights(tmp_path)
    assert set(weights.values()) == {0.01}
    names = {cell.name for cell in study_cells(weights)}
    assert len(names) == 4 * 5 + 4 + 2 + 6
    tiny = [replace(TINY, objective=objective) for objective in ("contrast", "sparse_coordinates")]
    run_cells(tiny, tmp_path, "0/1")
    before = (tmp_path / "cells.jsonl").read_bytes()
    run_cells(tiny, tmp_path, "0/1")
    assert (tmp_path / "cells.jsonl").read_bytes() == before
    assert len(before.splitlines()) == 1 + len(tuning_cells()) + len(tiny)
    open_cells(tmp_path, "mechanistic_independence").add("gaps/additive_00", true_gaps(TINY, num_points=4))
    write_report(tmp_path, [*tiny, replace(TINY, objective="hessian")], score_name)
    text = (tmp_path / "tables.md").read_text()
    assert "S: sparse volume + grouping (ours)" in text
    assert f"## Not run\n\n{replace(TINY, objective='hessian').name}" in text
    assert read_cells(tmp_path, "cells")[tiny[0].name]["config"]["num_seeds"] == 2


def test_stopping_waits_for_three_equal_counts() -> None:
    merges = [[0.9, 0.8], [0.9, 0.1], [0.1, 0.1], [0.1, 0.1], [0.1, 0.1], [0.1, 0.1]]
    assert stopping_index([{"block_merges": [pair]} for pair in merges], 0) == 4


def test_two_processes_share_the_cells_of_one_file(tmp_path: Path) -> None:
    cells = [replace(TINY, objective=objective) for objective in ("none", "contrast")]
    open_cells(tmp_path, "mechanistic_independence")
    first = open_cells(tmp_path, "mechanistic_independence")  # a process that began before the other was done
    run_cells(cells, tmp_path, "1/2")
    assert list(read_cells(tmp_path, "cells")) == [cells[1].name]
    first.add(f"cells/{cells[0].name}", {"trace": []})
    assert set(read_cells(tmp_path, "cells")) == {cell.name for cell in cells}
    with pytest.raises(ValueError, match="study was 'mechanistic_independence', now 'identifiability'"):
        open_cells(tmp_path, "identifiability")
