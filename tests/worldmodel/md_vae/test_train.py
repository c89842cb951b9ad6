import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

from worldmodel.mcl.config import MclConfig, Mode
from worldmodel.md_vae.model import Family, VaeConfig
from worldmodel.md_vae.penalties import hessian_penalty, jacobian_l1
from worldmodel.md_vae.simulation import IdentifiabilityDataConfig, random_stream
from worldmodel.md_vae.stack import train_stack
from worldmodel.md_vae.stacked import OptimizationConfig, SeedStack, split_seeds
from worldmodel.md_vae.stacked_linear import StackedLinear
from worldmodel.md_vae.train import CellConfig, main, run_study, study_cells, train_cell

CONFIGS = Path(__file__).parents[3] / "configs/identifiability"
DATA = IdentifiabilityDataConfig(latent_dim=3, num_conditions=4, num_samples=1600)


def cell(folder, **options) -> CellConfig:
    settings = {
        "optimization": OptimizationConfig(epochs=4),
        "num_seeds": 3,
        "save_every": 2,
        "report_epochs": (2, 4),
    }
    return CellConfig(data=DATA, out=str(folder), **(settings | options))


def stack(seeds, family="concat", mcl: MclConfig | None = None, **options) -> SeedStack:
    optimization = OptimizationConfig(mcl_weight=0.1 if mcl else 0.0, **options)
    return SeedStack(DATA, VaeConfig(family=family), mcl or MclConfig(), optimization, seeds)


@pytest.mark.parametrize(
    ("family", "mcl"),
    [
        ("ivae", None),
        ("concat", None),
        ("modulated", MclConfig(mode="exact")),
        ("concat", MclConfig(mode="finite_difference")),
        ("concat", MclConfig(mode="jvp")),
        ("concat", MclConfig(mode="hessian_diag", num_probes=1)),
        ("concat", MclConfig(mode="exact", variant="fisher")),
        ("concat", MclConfig(mode="exact", variant="denoising")),
        ("concat", MclConfig(mode="exact", variant="nce")),
        ("concat", MclConfig(mode="exact", variant="jacobian_vjp")),
    ],
)
def test_seeds_trained_together_equal_seeds_trained_alone(family: str, mcl: MclConfig | None) -> None:
    together, alone = stack([3, 4, 5], family, mcl), stack([4], family, mcl)
    for epoch in (1, 2):
        losses, loss = together.train_epoch(epoch), alone.train_epoch(epoch)
    for name in loss:
        assert losses[name][1] == pytest.approx(loss[name][0], rel=1e-4, nan_ok=True)
    for both, one in zip(together.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(both[1], one[0], rtol=1e-3, atol=1e-4)
    assert together.evaluate()["mcc"][1] == pytest.approx(alone.evaluate()["mcc"][0], abs=1e-3)


def test_a_stack_trains_like_plain_modules_with_adam() -> None:
    # The same initial weights, batches and noise through nn.Linear and torch.optim.Adam, one seed.
    ours = stack([7], "concat")
    encoder, decoder = (
        torch.nn.Sequential(*(plain(layer) for layer in net))
        for net in (ours.model.encoder, ours.model.decoder)
    )
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    order, noise = ours._order(1)[0], ours._noise(103, ours.steps_per_epoch * 256, 1)[0]
    for step in range(ours.steps_per_epoch):
        part = slice(step * 256, (step + 1) * 256)
        rows = ours.train_rows[order[part]]
        x, u = rows[:, :64], rows[:, 64:]
        mean, log_std = encoder(rows).chunk(2, dim=-1)
        z = mean + log_std.exp() * noise[part]
        kl = 0.5 * (mean.square() + torch.exp(2 * log_std) - 1 - 2 * log_std).sum(-1).mean()
        error = (decoder(torch.cat([z, u], -1)) - x).square().sum(-1).mean() / (2 * 0.01)
        optimizer.zero_grad()
        (error + kl).backward()
        optimizer.step()
    ours.train_epoch(1)
    torch.testing.assert_close(ours.model.encoder[0].weight[0].T, encoder[0].weight, rtol=1e-3, atol=2e-5)
    torch.testing.assert_close(ours.model.decoder[4].weight[0].T, decoder[4].weight, rtol=1e-3, atol=2e-5)


def plain(layer: torch.nn.Module) -> torch.nn.Module:
    if not hasattr(layer, "weight"):
        return torch.nn.LeakyReLU(0.2)
    linear = torch.nn.Linear(*layer.weight.shape[1:])
    linear.weight.data, linear.bias.data = (
        layer.weight[0].detach().T.clone(),
        layer.bias[0, 0].detach().clone(),
    )
    return linear


def test_training_raises_the_bound_and_recovers_information() -> None:
    model = stack([0, 1], "ivae", lr=3e-3)
    before = model.evaluate()
    for epoch in range(1, 41):
        model.train_epoch(epoch)
    after = model.evaluate()
    for seed in range(2):
        assert after["elbo"][seed] > before["elbo"][seed] + 50
        assert after["r2_by_condition"][seed] > 0.9


@pytest.mark.parametrize(("mode", "reaches_decoder"), [("exact", True), ("detached", False), ("jvp", True)])
def test_a_run_says_what_mcl_trains(tmp_path, capsys, mode: str, reaches_decoder: bool) -> None:
    optimization = OptimizationConfig(epochs=1, mcl_weight=0.1)
    train_cell(cell(tmp_path, optimization=optimization, mcl=MclConfig(mode=mode), num_seeds=1), quiet=True)
    said = capsys.readouterr().out
    assert f"MCL (infonce, {mode}) sends gradient to" in said
    assert ("decoder: yes" in said) == reaches_decoder
    assert "gradient_head: yes" in said


# Modes see the model as a function only: each once, and each model once; the beta-VAE, whose nets do not take
# u, with both kinds of derivative.
@pytest.mark.parametrize(
    ("family", "mode"),
    [
        *(("concat", mode) for mode in get_args(Mode)),
        *((family, "exact") for family in get_args(Family) if family != "concat"),
        ("beta_vae", "jvp"),
    ],
)
def test_every_model_and_every_mode_trains(family: Family, mode: Mode) -> None:
    data = dataclasses.replace(DATA, latent_dim=2, num_samples=400)
    # Smooth: along a direction the derivative of a piecewise linear generator does not depend on z.
    settings = (VaeConfig(family, activation="smooth"), MclConfig(mode=mode, through_latent=True))
    small = SeedStack(data, *settings, OptimizationConfig(batch_size=32, mcl_weight=0.1), [0, 1])
    said = small.mcl_statement()
    assert ("encoder: yes" in said) == (mode != "detached")
    assert ("decoder: yes" in said) == (mode not in ("detached", "latent"))
    before = small.model.encoder[0].weight.clone()
    (losses,) = train_stack([(*next(small.batches(1)), 0)], small.loss, small.optimizer)
    assert losses["mcl"].shape == (2,)
    assert losses["mcl"].isfinite().all()
    assert not small.model.encoder[0].weight.equal(before)


def test_a_cell_resumes_to_the_same_numbers(tmp_path) -> None:
    whole = train_cell(cell(tmp_path / "whole"), quiet=True)
    interrupted = cell(tmp_path / "cut")
    original = SeedStack.train_epoch

    def stop_at_three(self, epoch):
        if epoch == 3:
            raise KeyboardInterrupt
        return original(self, epoch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SeedStack, "train_epoch", stop_at_three)
        with pytest.raises(KeyboardInterrupt):
            train_cell(interrupted, quiet=True)
    assert not (tmp_path / "cut" / "result.json").exists()
    resumed = train_cell(dataclasses.replace(interrupted, num_threads=3), quiet=True)
    for name, values in whole["scores"]["4"].items():  # the seeds are split otherwise: equal but for rounding
        assert resumed["scores"]["4"][name] == pytest.approx(values, rel=1e-3, abs=1e-3)
    assert resumed["scores"]["2"] == whole["scores"]["2"]
    assert set(resumed["scores"]) == {"2", "4"}
    assert len(resumed["scores"]["4"]["mcc"]) == 3


def test_the_number_of_threads_does_not_change_the_result(tmp_path) -> None:
    one = train_cell(cell(tmp_path / "one", num_threads=1), quiet=True)
    two = train_cell(cell(tmp_path / "two", num_threads=2), quiet=True)
    for first, second in zip(one["scores"]["4"]["mcc"], two["scores"]["4"]["mcc"], strict=True):
        assert first == pytest.approx(second, abs=2e-3)


@pytest.mark.parametrize("part", ["jvp", "jacobian_l1"])
def test_forward_mode_trains_with_any_number_of_threads(tmp_path: Path, part: str) -> None:
    """Its levels belong to the process: two threads closed each other's."""
    contrast = OptimizationConfig(epochs=3, mcl_weight=1.0)
    penalty = OptimizationConfig(epochs=3, penalty="jacobian_l1", penalty_weight=1.0)
    options = {
        "mcl": MclConfig(mode="jvp"),
        "optimization": contrast if part == "jvp" else penalty,
        "num_seeds": 8,
    }
    one, four = (
        train_cell(cell(tmp_path / str(count), num_threads=count, **options), quiet=True) for count in (1, 4)
    )
    assert one["losses"] == four["losses"]


def test_a_finished_or_foreign_cell_is_not_trained_over(tmp_path) -> None:
    config = cell(tmp_path / "cell", optimization=OptimizationConfig(epochs=1))
    train_cell(config, quiet=True)
    written = (tmp_path / "cell" / "result.json").stat().st_mtime_ns
    again = train_cell(config, quiet=True)
    assert again["cell"] == "orthogonal_d3_u4_md_vae_concat"
    assert (tmp_path / "cell" / "result.json").stat().st_mtime_ns == written
    old = json.loads((tmp_path / "cell" / "result.json").read_text())
    del old["identity"]["device"], old["identity"]["mcl"]["rows"], old["identity"]["optimization"]["penalty"]
    old["identity"]["mcl"]["mode"] = "exact"  # the default of its time; the cell has no MCL
    (tmp_path / "cell" / "result.json").write_text(json.dumps(old))
    assert train_cell(config, quiet=True)["cell"] == again["cell"]
    with pytest.raises(ValueError, match="another config: optimization changed"):
        train_cell(dataclasses.replace(config, optimization=OptimizationConfig(epochs=1, penalty="hessian")))
    with pytest.raises(ValueError, match="another config: first_seed changed"):
        train_cell(dataclasses.replace(config, first_seed=9), quiet=True)


STUDY = """
preset: beta  # comment
grids:
  - sweep: {data.num_conditions: [8, 4]}
    settings: [data.latent_dim=2, data.num_samples=1600, optimization.epochs=1, num_seeds=2]
"""


def test_a_study_runs_its_cells_in_order_and_skips_what_is_done(tmp_path, capsys) -> None:
    (tmp_path / "beta.yaml").write_text("name: beta_vae\nmodel:\n  family: beta_vae\n  beta: 4.0\n")
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)
    run_study(study, tmp_path / "out", [])
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["orthogonal_d2_u4_beta_vae", "orthogonal_d2_u8_beta_vae"]
    result = json.loads((tmp_path / "out" / names[0] / "result.json").read_text())
    assert result["identity"]["model"]["beta"] == 4
    run_study(study, tmp_path / "out", [], "*_u8_*")
    assert "[1/1] orthogonal_d2_u8" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no cell is called"):
        run_study(study, tmp_path / "out", [], "*_u9_*")
    run_study(study, tmp_path / "out", [])
    run_study(study, tmp_path / "out", [])
    said = capsys.readouterr().out
    assert said.count("median MCC") == 4
    assert said.index("[1/2] orthogonal_d2_u8") < said.index("[2/2] orthogonal_d2_u4")
    scores = result["scores"]["1"]["mcc"]  # of two seeds: the median is their mean
    assert f"median MCC {sum(scores) / 2:.3f}" in said


def test_processes_of_a_launcher_share_the_cells_of_a_study(tmp_path: Path) -> None:
    (tmp_path / "beta.yaml").write_text("name: beta_vae\nmodel: {family: beta_vae}\n")
    study = tmp_path / "study.yaml"
    study.write_text(STUDY.replace("[8, 4]", "[8, 4, 2]"))
    command = [sys.executable, "-m", "worldmodel", "train-identifiability", "--study", str(study)]
    command += ["--out", str(tmp_path / "out"), "device=cpu", "num_threads=1"]
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "[process 1: 1/2] orthogonal_d2_u8_beta_vae" in said[0]
    assert "[process 1: 2/2] orthogonal_d2_u2_beta_vae, about 0 min left" in said[0]
    assert "[process 2: 1/1] orthogonal_d2_u4_beta_vae" in said[1]
    assert len(list((tmp_path / "out").glob("*/result.json"))) == 3


def test_one_cell_is_trained_by_the_first_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([f"out={tmp_path / 'cell'}"]) == 0
    assert "--study shares the cells" in capsys.readouterr().out
    assert not (tmp_path / "cell").exists()
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="finds none: set device=cpu"):
            train_cell(cell(tmp_path / "cell", device="cuda"), quiet=True)


def test_bfloat16_trains_nearly_the_same(tmp_path: Path) -> None:
    full, half = (stack([3, 4], precision=name) for name in ("float32", "bfloat16"))
    losses = [each.train_epoch(1)["reconstruction"] for each in (full, half)]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    assert losses[1] != losses[0]
    assert half.model.encoder[0].weight.dtype == torch.float32


def test_penalties_know_what_they_are_zero_for() -> None:
    z, rng = torch.randn(2, 400, 3), torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 4, generator=rng)
    first = [jacobian_l1(lambda z: z @ matrix, z, rng) for _ in range(60)]
    torch.testing.assert_close(torch.stack(first).mean(0), matrix.abs().mean().expand(2), rtol=0.2, atol=0)
    assert hessian_penalty(lambda z: z**3 @ matrix, z, rng).max() < 1e-2  # every latent bends alone
    product = torch.stack([hessian_penalty(lambda z: z[..., :1] * z[..., 1:2], z, rng) for _ in range(60)])
    # v^T H v = 2 v_1 v_2 = +-2: half the squared difference of two is 0 or 8.
    assert product.mean().item() == pytest.approx(4, abs=1.5)


@pytest.mark.parametrize("penalty", ["jacobian_l1", "hessian"])
def test_a_penalty_and_the_latents_contrast_train_the_model(penalty: str) -> None:
    penalized = stack([3], penalty=penalty, penalty_weight=1.0)
    plain = stack([3])
    assert penalized.train_epoch(1)["penalty"][0] > 0
    plain.train_epoch(1)
    assert not torch.equal(penalized.model.decoder[0].weight, plain.model.decoder[0].weight)
    latent = stack([3], mcl=MclConfig(mode="latent", through_latent=True))
    latent.train_epoch(1)
    scores = latent.evaluate()
    assert scores["mcl_generator_share"] == [0]
    assert scores["mcl_accuracy_generator"] == scores["mcl_chance"]


def varied(cell: CellConfig) -> tuple[object, ...]:
    """What the shipped studies choose."""
    model, mcl, optimization = cell.model, cell.mcl, cell.optimization
    steps = (optimization.epochs, optimization.lr, optimization.schedule, optimization.restart)
    return (
        *(cell.cell, cell.num_seeds, cell.report_epochs, cell.data.num_samples, cell.data.activation),
        *(cell.data.gain, model.family, model.posterior, model.activation, *steps),
        *(mcl.mode, optimization.mcl_weight, mcl.through_latent, mcl.num_probes),
    )


@pytest.mark.parametrize(
    ("name", "count", "first", "last", "digest"),
    [
        ("study", 72, "orthogonal_d5_u8_ivae", "generic_d20_u32_ivae", "87f1c1a0e9bef2ca"),
        (
            "mcl_ablation",
            18,
            "orthogonal_d5_u16_smooth_none",
            "orthogonal_d5_u16_smooth_hessian_diag_1.0",
            "b09f27966066d947",
        ),
    ],
)
def test_shipped_studies_ask_for_the_published_cells(
    name: str, count: int, first: str, last: str, digest: str
) -> None:
    cells = [varied(cell) for cell in study_cells(CONFIGS / f"{name}.yaml", Path("out"))]
    assert len(cells) == count
    assert (cells[0][0], cells[-1][0]) == (first, last)
    assert hashlib.sha256(repr(cells).encode()).hexdigest()[:16] == digest


def test_shipped_studies_sweep_what_they_say() -> None:
    cells = {cell.cell: cell for cell in study_cells(CONFIGS / "study.yaml", Path("out"), ["num_threads=1"])}
    paper = cells["orthogonal_d5_u8_concat_paper"]
    assert (paper.num_seeds, paper.optimization.epochs, paper.optimization.schedule) == (10, 200, "constant")
    assert cells["generic_d20_u8_tied_full_r2"].optimization.restart == 2
    assert paper.out == "out/orthogonal_d5_u8_concat_paper"
    assert {cell.num_threads for cell in cells.values()} == {1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grids: [{swep: {a: [1]}}]", "Did you mean: 'sweep'"),
        ("grids: [{sweep: {a: 1}}]", "sweep.a"),
        ("grids: [{sweep: {first_seed: [1]}}]", "grid 1: sweep a preset"),
        ("{preset: one, grids: [{name: '{mode}_1'}]}", "grid 1: name '{mode}_1' may use preset in braces"),
        (
            "{preset: one, grids: [{}, {settings: [first_seed=1]}]}",
            "two cells are called orthogonal_d5",
        ),
        ("{preset: two, grids: [{}]}", "no config file at .*two.yaml"),
    ],
)
def test_wrong_studies_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "one.yaml").write_text("num_seeds: 1\n")
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        study_cells(tmp_path / "study.yaml", tmp_path)


def test_the_cosine_schedule_ends_near_zero() -> None:
    schedule = OptimizationConfig(epochs=100, lr=1e-3, schedule="cosine")
    assert schedule.lr_at(1) == pytest.approx(1e-3)
    assert schedule.lr_at(51) == pytest.approx(5e-4)
    assert schedule.lr_at(100) < 1e-6


def test_a_diverged_seed_scores_nothing_and_spares_the_others() -> None:
    both, alone = stack([3, 4], "ivae"), stack([4], "ivae")
    both.model.encoder[0].weight.data[0] = torch.nan
    both.train_epoch(1)
    alone.train_epoch(1)
    found, expected = both.evaluate(), alone.evaluate()
    assert found["mcc"][0] == found["aligned_mcc"][0] == 0
    assert found["aligned_mcc"][1] == pytest.approx(expected["aligned_mcc"][0], abs=5e-3)
    assert found["elbo"][0] != found["elbo"][0]


def test_a_restart_changes_the_weights_and_not_the_data() -> None:
    first, second = (
        stack([3], mcl=MclConfig(mode="exact")),
        stack([3], mcl=MclConfig(mode="exact"), restart=1),
    )
    assert first.train_rows.equal(second.train_rows)
    assert not first.model.encoder[0].weight.equal(second.model.encoder[0].weight)
    assert first.mcl is not None
    assert second.mcl is not None
    assert not first.mcl.critic.net[0].weight.equal(second.mcl.critic.net[0].weight)
    # The first start draws what it drew before there were others: its cells stay comparable.
    weight = first.mcl.gradient_head.net[0].weight
    assert weight.equal(StackedLinear(*weight.shape[1:], streams=[random_stream(3, 101)]).weight)


def test_seeds_are_split_evenly() -> None:
    assert split_seeds(range(5), 2) == [[0, 1, 2], [3, 4]]
    assert split_seeds([9], 4) == [[9]]
