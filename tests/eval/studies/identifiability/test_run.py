import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from studies.cells_file import open_cells, read_cells
from studies.identifiability.cells import Cell, best_of_restarts
from studies.identifiability.controls import (
    _nearest_diagonal,
    _rotated,
    learned_diversity,
    oracles,
    rotation_control,
    rotations,
    true_diversity,
)
from studies.identifiability.gains import gains_table, holm
from studies.identifiability.report import ablation_table, write_report
from studies.identifiability.run import collect, data_name, write_controls, write_oracles

from worldmodel.mcl.config import MclConfig
from worldmodel.md_vae.gaussian import Gaussian
from worldmodel.md_vae.model import VaeConfig
from worldmodel.md_vae.simulation import IdentifiabilityDataConfig
from worldmodel.md_vae.stacked import OptimizationConfig, SeedStack
from worldmodel.md_vae.train import CellConfig, study_cells, train_cell


def stack(num_epochs: int = 3, **model) -> SeedStack:
    data = IdentifiabilityDataConfig(latent_dim=3, num_conditions=4, num_samples=1600)
    trained = SeedStack(data, VaeConfig(**model), MclConfig(), OptimizationConfig(lr=3e-3), [0, 1])
    for epoch in range(1, num_epochs + 1):
        trained.train_epoch(epoch)
    return trained


def test_oracles_are_where_theory_puts_them() -> None:
    config = IdentifiabilityDataConfig(latent_dim=5, num_samples=8000)
    found = oracles(config, range(6))
    # The probe's lossless rotations at d = 5: 0.72 shared, 0.22 of its own in each of 8 conditions.
    assert np.median(found["rotated"]) == pytest.approx(0.72, abs=0.06)
    assert np.median(found["rotated_by_condition"]) == pytest.approx(0.22, abs=0.06)
    assert 0.97 < np.median(found["ceiling"]) < 1
    assert 0.75 < np.median(found["modulated"]) < 0.97


def test_the_ceiling_falls_with_the_signal() -> None:
    loud = oracles(IdentifiabilityDataConfig(num_samples=2000), range(2))["ceiling"]
    quiet = oracles(IdentifiabilityDataConfig(num_samples=2000, gain=0.3), range(2))["ceiling"]
    assert max(quiet) < min(loud)


def test_rotations_are_orthogonal_and_belong_to_their_seed() -> None:
    turns = rotations([0, 1], 3, 4)
    torch.testing.assert_close(
        turns @ turns.transpose(-1, -2), torch.eye(4).expand(2, 3, 4, 4), atol=1e-5, rtol=0
    )
    assert turns[1].equal(rotations([1], 3, 4)[0])


@pytest.mark.parametrize("family", ["concat", "modulated"])
def test_rotation_keeps_the_bound_and_changes_the_score(family: str) -> None:
    found = rotation_control(stack(20, family=family))
    np.testing.assert_allclose(found.elbo_rotated, found.elbo, rtol=1e-4)
    np.testing.assert_allclose(found.elbo_rotated_by_condition, found.elbo, rtol=1e-4)
    for seed in range(2):
        assert found.elbo_rotated_mean_field[seed] != found.elbo[seed]
        assert abs(found.mcc_rotated[seed] - found.mcc[seed]) > 0.01
        assert found.mcc_rotated_by_condition[seed] < found.mcc[seed]


@pytest.mark.parametrize("value", [np.nan, 1e3, 30.0])  # exp(1e3) overflows, exp(2 * 30) does not
@pytest.mark.parametrize("posterior", ["mean_field", "full"])
def test_the_control_of_a_diverged_seed_is_nan_and_spares_the_others(posterior: str, value: float) -> None:
    both = stack(1, posterior=posterior)
    sound = dataclasses.asdict(rotation_control(both))
    both.model.encoder[4].bias.data[0, 0, 3] = value  # the logarithm of a standard deviation
    for name, values in dataclasses.asdict(rotation_control(both)).items():
        assert np.isfinite(sound[name]).all()
        assert np.isnan(values[0]), name
        assert values[1] == sound[name][1], name


def test_a_diagonal_posterior_pays_for_a_rotation() -> None:
    # The cost in nats is the divergence from the rotated posterior; at the posterior's own axes it is 0.
    posterior = Gaussian(torch.zeros(1, 1, 3), torch.tensor([[[0.0, -1.0, -2.0]]]))
    cost = []
    for turns in (torch.eye(3).expand(1, 1, 3, 3), rotations([0], 1, 3)):
        full = _rotated(posterior, turns)
        diagonal = torch.diag_embed(_nearest_diagonal(full).log_std.mul(2).exp())
        pair = [torch.distributions.MultivariateNormal(full.mean, c) for c in (diagonal, full.covariance)]
        cost.append(torch.distributions.kl_divergence(*pair).item())
    assert cost[0] == pytest.approx(0, abs=1e-5)
    assert cost[1] > 0.1


def test_the_control_needs_a_fixed_prior() -> None:
    with pytest.raises(ValueError, match=r"prior N\(0, I\), not ivae"):
        rotation_control(stack(family="ivae"))


def test_learned_generators_are_as_curved_as_their_activation() -> None:
    flat, curved = stack(family="concat"), stack(family="concat", activation="smooth")
    assert learned_diversity(flat, 0, 4).largest_contrast == 0
    assert learned_diversity(curved, 1, 4).rank.min() == 3  # 4 conditions, 3 contrasts
    assert true_diversity(curved, 0, 4).limits[0] == "piecewise linear generator"


def test_restarts_are_chosen_by_the_bound_alone() -> None:
    cells = [
        Cell(name, "generic", 5, 8, {"9": {"elbo": elbo, "mcc": mcc}}, {"cell": name})
        for name, elbo, mcc in (
            ("tied_full", [1.0, 5.0, np.nan], [0.9, 0.5, 0.0]),
            ("tied_full_r1", [2.0, 4.0, -9.0], [0.1, 0.99, 0.7]),
            ("tied_full_r2", [0.0, 4.5, np.nan], [0.99, 0.98, 0.0]),
        )
    ]
    (best,) = best_of_restarts(cells)
    assert best.values("mcc").tolist() == [0.1, 0.5, 0.7]
    assert best_of_restarts(cells[:2]) == []


def test_from_trained_cells_to_the_report(tmp_path) -> None:
    data = IdentifiabilityDataConfig(latent_dim=5, num_samples=1600)
    for name, family in (("concat", "concat"), ("ivae", "ivae")):
        config = CellConfig(
            name=name,
            data=data,
            model=VaeConfig(family=family),
            optimization=OptimizationConfig(epochs=2),
            num_seeds=3,
            report_epochs=(1, 2),
            out=str(tmp_path / "runs" / name),
        )
        train_cell(config, quiet=True)
    results = tmp_path / "results"
    collect(tmp_path / "runs", results)
    write_oracles(results, 3)
    write_controls(tmp_path / "runs" / "concat", results, 1)
    write_report(results)
    cell = read_cells(results, "cells")["orthogonal_d5_u8_concat"]
    tables = (results / "tables.md").read_text()
    assert f"{np.median(cell['scores']['2']['mcc']):.3f}" in tables
    assert "not run" in tables
    bounds = read_cells(results, "oracles")["orthogonal_d5_u8"]
    assert f"| orthogonal | 5 | ceiling |  |  | {np.median(bounds['ceiling']):.3f} |  |  |" in tables
    assert "| paper | 20 | iVAE |  |  | 0.65 |  |  |" in tables
    last = [f"{np.median(cell['scores']['2'][name]):.3f}" for name in ("r2", "r2_by_condition")]
    last += [f"{np.median(cell['scores']['2'][name]):.3f}" for name in ("reconstruction", "kl", "elbo")]
    assert f" | {' | '.join(last)} |" in tables
    assert "of 3 |" in tables
    assert all((results / name).stat().st_size > 10_000 for name in ("mcc.png", "sweep.png"))
    controls = read_cells(results, "controls")["orthogonal_d5_u8_concat"]
    assert controls["diversity"][0]["true"]["condition_number"] is None
    assert "| true | 0 | 10 | 0 | inf | 0 |" in tables
    assert controls["diversity"][0]["true"]["largest_contrast"] == 0
    assert len(controls["rotation"]["mcc"]) == 3
    before = (results / "cells.jsonl").read_text()
    collect(tmp_path / "runs", results)
    write_oracles(results, 3)
    assert (results / "cells.jsonl").read_text() == before  # a line a cell, however often it is collected


def test_the_ablation_table_sets_every_mode_beside_no_mcl() -> None:
    def cell(name: str, mcc: list[float], losses: dict[str, float], weight=0.0, posterior="full") -> Cell:
        scores = {"50": {"mcc": mcc, "mcc_by_condition": mcc, "elbo": [1.0, 2.0, 3.0]}}
        identity = {
            "data": {"gain": 4.0},
            "model": {"family": "concat", "posterior": posterior},
            "mcl": {"mode": "finite_difference"},
            "optimization": {"mcl_weight": weight},
        }
        content = {"cell": f"o_{name}", "final_losses": losses, "identity": identity}
        return Cell(name, "orthogonal", 5, 16, scores, content)

    cells = [
        cell("smooth_none", [0.5, 0.6, 0.7], {}, posterior="mean_field"),
        cell("smooth_finite_difference_0.1", [0.6, 0.5, 0.8], {"mcl_accuracy": 0.25}, 0.1, "mean_field"),
        cell("smooth_full_posterior", [0.5, 0.5, 0.5], {}),
        cell("ivae", [0.9, 0.9, 0.9], {}),
    ]
    learned = {"rank": 10, "effective_rank": 4.5, "condition_number": 120.0}
    controls = [{"cell": "o_smooth_finite_difference_0.1", "diversity": [{"learned": learned}]}]
    controls.append(
        {"cell": "o_smooth_none", "diversity": [{"learned": learned, "true": learned | {"rank": 9}}]}
    )
    oracles = {"one": {"data": {"gain": 1.0}}, "two": {"data": {"gain": 4.0}, "ceiling": [0.987]}}
    base, mode, full, ceiling, *_, true = ablation_table(cells, controls, oracles).rows
    assert ceiling[:4] == ("ceiling", "", "", "0.987")
    assert true[-4:] == ("", "9", "4.5", "120")
    assert base[:3] == ("concat", "none", "")
    assert base[3].startswith("0.600 [")
    assert mode[:3] == ("concat", "finite_difference", "0.1")
    assert full[:3] == ("concat, full posterior", "none", "")
    assert mode[4] == "2 of 3"
    assert mode[-4:] == ("0.25", "10", "4.5", "120")
    assert not ablation_table(cells[1:], controls, {}).rows  # nothing to compare with


def test_bounds_belong_to_their_data(tmp_path) -> None:
    data = IdentifiabilityDataConfig(latent_dim=2, num_samples=400, activation="smooth", gain=4.0)
    assert data_name(data) == "orthogonal_d2_u8_smooth_gain4"
    assert data_name(IdentifiabilityDataConfig(latent_dim=2)) == "orthogonal_d2_u8"

    def collected(config: IdentifiabilityDataConfig) -> None:
        content = {"identity": {"data": dataclasses.asdict(config)}}
        open_cells(tmp_path, "identifiability").add("cells/one", content)

    collected(data)
    write_oracles(tmp_path, 1)
    write_oracles(tmp_path, 1)
    collected(dataclasses.replace(data, noise_std=0.2))
    with pytest.raises(ValueError, match="bounds other data: noise_std differ"):
        write_oracles(tmp_path, 1)


def test_the_ablation_has_signal_and_names_of_its_own() -> None:
    study = Path(__file__).parents[4] / "configs/identifiability/mcl_ablation.yaml"
    cells = study_cells(study, Path("out"))
    assert all(cell.name.startswith("smooth_") for cell in cells)
    (data,) = {cell.data for cell in cells}
    # Far above the 0.72 of a random rotation: what a model misses is not lost in the noise.
    assert oracles(dataclasses.replace(data, num_samples=2000), range(1))["ceiling"][0] > 0.98


def test_gains_are_paired_by_seed_and_corrected_for_their_number() -> None:
    def cell(name: str, mcc: list[float], **more: list[float]) -> Cell:
        content = {"cell": name, "seeds": [0, 1, 2, 3], "epoch": 9, "cpu_seconds": 1.0}
        return Cell(name, "orthogonal", 5, 16, {"9": {"mcc": mcc, "elbo": [1.0] * 4, **more}}, content)

    base = cell("none", [0.1, 0.5, 0.3, 0.7])
    better = cell("better", [0.2, 0.61, 0.39, 0.8], mcl_accuracy=[0.5] * 4)
    same = cell("same", [0.2, 0.4, 0.4, 0.6])
    table = gains_table([same, base, better])
    rows = {row[0]: row for row in table.rows}
    assert rows["better"][4].startswith("0.100 [0.087, 0.113]")
    assert float(rows["better"][5]) < 0.01
    assert rows["better"][7] == "0.50"
    assert rows["same"][5] == "1.000"
    with pytest.raises(ValueError, match="gains are over the cell called none"):
        gains_table([better])


def test_p_values_are_corrected_as_holm_does() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
