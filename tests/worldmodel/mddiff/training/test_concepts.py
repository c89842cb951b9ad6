import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.vq_model import VQModel
from safetensors.torch import load_file

from worldmodel.config import load_config
from worldmodel.mddiff.models.mddiff import MDDiff
from worldmodel.mddiff.training.concept_run import ConceptTrainConfig
from worldmodel.mddiff.training.concepts import train
from worldmodel.mddiff.training.validation import some_indices
from worldmodel.training.loop.checkpoints import CheckpointStore

ROOT = Path(__file__).parents[4]
PRESETS = ROOT / "configs/disentanglement"


def write_sprites(path: Path) -> None:
    """Squares, ellipses and triangles at 7 x 7 places, in the layout of dSprites."""
    sizes = (3, 2, 2, 7, 7)
    classes = np.stack(np.unravel_index(np.arange(np.prod(sizes)), sizes), 1)
    y, x = np.mgrid[:32, :32]
    pictures = []
    for shape, scale, turn, column, row in classes:
        radius, dx, dy = 4 + 3 * scale, x - (4 + 4 * column), y - (4 + 4 * row)
        dx, dy = (dy, dx) if turn else (dx, dy)
        insides = (
            (abs(dx) < radius) & (abs(dy) < radius),
            dx**2 + 2 * dy**2 < radius**2,
            (abs(dx) + abs(dy) < radius) & (dy > -2),
        )
        pictures.append(insides[shape])
    np.savez(path, imgs=np.array(pictures).astype(np.uint8), latents_classes=classes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set and a finished first stage."""
    folder = tmp_path_factory.mktemp("concepts")
    write_sprites(folder / "sprites.npz")
    assert train(debug_config("vqvae", folder, "vqvae"), resume=False)
    return folder


def debug_config(preset: str, folder: Path, output: str, *overrides: str) -> ConceptTrainConfig:
    data = [f"data.path={folder}/sprites.npz", f"data.cache={folder}/cache", "fit.trackers=[]"]
    return load_config(
        ConceptTrainConfig,
        str(PRESETS / "debug" / f"{preset}.yaml"),
        [*data, f"output={folder}/{output}", *overrides],
    )


def stage_1(folder: Path, output: str, *overrides: str) -> ConceptTrainConfig:
    return debug_config("mddiff", folder, output, f"start_from={folder}/vqvae/model", *overrides)


def log_of(folder: Path) -> list[dict[str, float]]:
    records = (json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines())
    return [record for record in records if record.get("kind") != "validation" and "loss" in record]


def test_a_killed_stage_resumes_to_the_same_model_and_stage_2_continues_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert train(stage_1(folder, "whole"), resume=False)
    # A kill between checkpoints leaves the one of step 2: the rest is done again.
    assert train(stage_1(folder, "cut", "fit.steps=3"), resume=False)
    newest = folder / "cut/checkpoints/step_00000003"
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    assert train(stage_1(folder, "cut"), resume=True)
    whole, cut = (MDDiff.from_pretrained(folder / name / "model") for name in ("whole", "cut"))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, cut.state_dict()[name]), name
    assert "lr 0.001 (x1)" in caplog.text
    assert MDDiff.from_pretrained(folder / "whole/best").config == whole.config

    averaged = load_file(folder / "whole/checkpoints/step_00000004/ema.safetensors")
    assert averaged
    assert all(name.startswith("unet.") for name in averaged)
    last = load_file(folder / "whole/checkpoints/step_00000004/weights.safetensors")
    assert not torch.equal(whole.unet.conv_out.weight, last["unet.conv_out.weight"])
    assert torch.equal(whole.encoder.layers[-1].weight, last["encoder.layers.12.weight"])

    caplog.clear()
    config = debug_config(
        "mcl", folder, "mcl", f"start_from={folder}/whole/model", "model.contrast.mcl.head_lr=1e-3"
    )
    assert train(config, resume=False)
    assert "stage 2 adds" in caplog.text
    assert "critic 222,401, gradient head 41,216, condition head 19,200" in caplog.text
    assert "lambda_MCL 0.001" in caplog.text
    assert "MCL (infonce, exact) sends gradient to" in caplog.text
    assert "lr 0.001 (x10)" in caplog.text
    tuned = MDDiff.from_pretrained(folder / "mcl/model")
    assert tuned.contrast is not None
    assert torch.equal(tuned.latent_scale, whole.latent_scale)
    assert not torch.equal(tuned.encoder.layers[-1].weight, whole.encoder.layers[-1].weight)
    metrics = json.loads((folder / "mcl/metrics.json").read_text())
    assert {"mcl", "reconstruction", "diffusion", "factor_vae", "mig", "decoded_mse"} <= set(metrics)
    assert metrics["factor_vae"] == pytest.approx(1 - metrics["factor_vae_error"])


def test_an_encdiff_can_be_tuned_too_and_the_decoder_condition_is_then_counted(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    overrides = ["model.decoder.where=none", "objective.reconstruction_weight=0", "validation.num_images=0"]
    overrides += ["objective.trained_decoder=frozen", "fit.steps=1", "fit.best_metric=loss"]
    assert train(stage_1(folder, "encdiff", *overrides), resume=False)
    start = f"start_from={folder}/encdiff/model"
    weights = [
        "objective.mcl_weight=0",
        "objective.reconstruction_weight=0",
        "model.contrast.mcl.mode=detached",
    ]
    longer = [*overrides[:1], *weights, "objective.trained_decoder=frozen"]  # an EncDiff that goes on as one
    longer += ["validation.num_images=0", "fit.steps=1"]
    assert train(debug_config("mcl", folder, "longer", start, *longer), resume=False)
    before, after = (MDDiff.from_pretrained(folder / name / "model") for name in ("encdiff", "longer"))
    vqs = [model.first_stage.vq.state_dict() for model in (before, after)]
    assert all(torch.equal(tensor, vqs[1][name]) for name, tensor in vqs[0].items())
    assert not torch.equal(before.encoder.layers[-1].weight, after.encoder.layers[-1].weight)
    overrides = ["validation.num_images=0", "fit.steps=1", "model.decoder.where=once"]
    assert train(debug_config("mcl", folder, "tuned", start, *overrides), resume=False)
    assert "decoder condition 60, critic" in caplog.text
    tuned = MDDiff.from_pretrained(folder / "tuned/model")
    assert tuned.config.decoder.where == "once"
    assert tuned.first_stage.condition[0].weight.any()  # reached through reconstruction and contrast


def test_another_objective_or_start_is_no_resumption(folder: Path) -> None:
    quick = ["validation.num_images=0", "fit.best_metric=loss", "fit.steps=1"]
    assert train(stage_1(folder, "first", *quick), resume=False)
    with pytest.raises(ValueError, match=r"objective\.reconstruction_weight was 0\.1, now is 0\.5"):
        train(stage_1(folder, "first", *quick, "objective.reconstruction_weight=0.5"), resume=True)
    other = folder / "other/model"
    vq = VQModel.from_pretrained(folder / "vqvae/model")
    vq.quantize.embedding.weight.data += 1
    vq.save_pretrained(other)
    with pytest.raises(ValueError, match="start_from was"):
        train(debug_config("mddiff", folder, "first", f"start_from={other}", *quick), resume=True)


def test_mistakes_are_named_before_anything_is_trained(folder: Path) -> None:
    with pytest.raises(ValueError, match="start_from is for stages diffusion and mcl"):
        debug_config("mddiff", folder, "x", "start_from=")
    with pytest.raises(ValueError, match=r"model\.contrast belongs to stage mcl"):
        debug_config("mcl", folder, "x", "model.contrast=null")
    with pytest.raises(ValueError, match=r"needs objective\.mcl_weight \(published: 1e-3, for MPI3D 1e-4\)"):
        debug_config("mcl", folder, "x", "objective.mcl_weight=null")
    with pytest.raises(ValueError, match="must agree"):
        stage_1(folder, "x", "data.size=16")
    with pytest.raises(ValueError, match="no VQ-VAE at"):
        train(debug_config("mddiff", folder, "x", f"start_from={folder}/nothing"), resume=False)
    with pytest.raises(ValueError, match=r"block_out_channels is \[8, 8, 8\]"):
        train(stage_1(folder, "x", "model.vq.multipliers=[1,1,2]"), resume=False)


def test_every_preset_is_a_valid_config_and_the_paper_ones_carry_its_numbers() -> None:
    stages = ("vqvae", "encdiff", "mddiff", "mcl")
    paths = [PRESETS / size / f"{stage}.yaml" for size in ("debug", "desk", "paper") for stage in stages]
    configs = {f"{p.parent.name}/{p.stem}": load_config(ConceptTrainConfig, str(p)) for p in paths}
    for config in configs.values():
        if config.stage != "vqvae":
            assert config.fit.optim.ema_modules == ("unet.*",)
    paper = {name.partition("/")[2]: c for name, c in configs.items() if name.startswith("paper/")}
    assert paper["vqvae"].fit.optim.lr == pytest.approx(4.5e-6 * 128 * 2)
    assert paper["encdiff"].fit.optim.lr == paper["mddiff"].fit.optim.lr == pytest.approx(2e-6 * 128)
    assert paper["mcl"].fit.optim.lr == pytest.approx(2e-7 * 128)
    assert (paper["encdiff"].fit.optim.warmup_steps, paper["mcl"].fit.optim.warmup_steps) == (10_000, 1_000)
    assert paper["encdiff"].model.decoder.where == "none"
    assert paper["mddiff"].model.decoder.where == "each_stage"
    assert {configs[f"{size}/mcl"].objective.mcl_weight for size in ("debug", "desk", "paper")} == {1e-3}


@pytest.mark.slow
def test_every_stage_of_the_paper_presets_takes_a_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write_sprites(tmp_path / "small.npz")
    with np.load(tmp_path / "small.npz") as small:
        images = small["imgs"].repeat(2, axis=1).repeat(2, axis=2)
        np.savez(tmp_path / "sprites.npz", imgs=images, latents_classes=small["latents_classes"])
    before = None
    for preset in ("vqvae", "mddiff", "mcl"):
        overrides = [f"data.path={tmp_path}/sprites.npz", f"output={tmp_path}/{preset}", "fit.trackers=[]"]
        overrides += ["fit.steps=1", "fit.global_batch=4", "fit.micro_batch=4", "fit.machine.device=cpu"]
        overrides += [f"start_from={before}"] if before else []
        config = load_config(ConceptTrainConfig, str(PRESETS / "paper" / f"{preset}.yaml"), overrides)
        assert train(config, resume=False)
        before = tmp_path / preset / "model"
        assert all(np.isfinite(record["loss"]) for record in log_of(tmp_path / preset))
    assert "critic 369,857" in caplog.text
    tuned = MDDiff.from_pretrained(tmp_path / "mcl/model")
    assert sum(p.numel() for p in tuned.unet.parameters()) == 37_469_635
    assert tuned.encode(torch.from_numpy(images[:2] * 255)[:, None].repeat(1, 3, 1, 1)).shape == (2, 20)


def test_some_indices_are_different_and_all_when_there_are_few() -> None:
    assert some_indices(5, 9, 0).tolist() == [0, 1, 2, 3, 4]
    chosen = some_indices(1000, 50, 0)
    assert len(set(chosen.tolist())) == 50


def test_a_folder_that_holds_a_run_is_refused_before_data_is_opened(tmp_path: Path) -> None:
    CheckpointStore(tmp_path / "run/checkpoints", 1).prepare()
    CheckpointStore(tmp_path / "run/checkpoints", 1).save(1, {}, {})
    (tmp_path / "run/config.yaml").write_text("of the run\n")
    with pytest.raises(ValueError, match="already holds a run: pass --resume"):
        train(debug_config("vqvae", tmp_path, "run"), False)
    assert (tmp_path / "run/config.yaml").read_text() == "of the run\n"
