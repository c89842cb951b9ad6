import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldmodel.config import load_config
from worldmodel.mddiff.data import render_rooms as rendered
from worldmodel.mddiff.data.array_factors import ArrayFactors
from worldmodel.mddiff.data.factors import open_factor_data
from worldmodel.mddiff.models.image_vae import ImageVae
from worldmodel.mddiff.training.cost import read_cost
from worldmodel.mddiff.training.scores import ConceptScores, ScoreConfig
from worldmodel.mddiff.training.vae_baseline import VaeBaselineConfig, train
from worldmodel.training.loop.checkpoints import CheckpointStore

CONFIGS = Path(__file__).parents[4] / "configs/disentanglement"
FAMILIES = ("beta_vae", "factor_vae", "beta_tcvae", "autoencoder")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rooms in which every geometry is its number in gray: rendering is tested elsewhere."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        levels = iter(range(480))
        patch.setattr(
            rendered, "brightness", lambda *_: np.full((3, 64, 64), 340 + next(levels) % 160, np.uint16)
        )
        rendered.render_rooms(folder / "rooms.safetensors", quiet=True)
    return folder


def debug_config(family: str, cache: Path, *overrides: str) -> VaeBaselineConfig:
    path = str(CONFIGS / f"debug/{family}.yaml")
    return load_config(VaeBaselineConfig, path, [f"data.cache={cache}", *overrides])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_equals_an_uninterrupted_one(family: str, cache: Path, tmp_path: Path) -> None:
    whole = debug_config(family, cache, f"output={tmp_path / 'whole'}")
    assert train(whole, False)
    parts = debug_config(family, cache, f"output={tmp_path / 'parts'}")
    half = replace(parts, fit=replace(parts.fit, steps=2))
    assert train(half, False)
    assert train(parts, True)
    first, second = (ImageVae.from_pretrained(tmp_path / name / "model") for name in ("whole", "parts"))
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name
    assert ImageVae.from_pretrained(tmp_path / "whole/best").config.family == family
    metrics = json.loads((tmp_path / "whole/metrics.json").read_text())
    assert 0 <= metrics["factor_vae"] <= 1
    assert metrics["factor_vae"] == pytest.approx(1 - metrics["factor_vae_error"])
    assert len(open_factor_data(whole.data)) == 192
    cost = read_cost(tmp_path / "parts")
    assert cost is not None
    assert cost.pictures == 4 * 8
    assert cost.parameters == sum(parameter.numel() for parameter in first.parameters())
    saved = sorted((tmp_path / "parts/checkpoints").glob("step_*/state.json"))
    spent = [json.loads(file.read_text())["cpu_seconds"] for file in saved]
    assert 0 < spent[0] < spent[-1] <= cost.cpu_seconds + 0.1  # resumed, it counts on


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.counts=[2,2,2,2,4,2]", r"data\.factor_sizes was \[2, 2, 2, 2, 4, 3\]"),
        ("model.beta=8", r"model\.beta was 4\.0, now is 8\.0"),
    ],
)
def test_other_data_or_objectives_are_no_resumption(
    cache: Path, tmp_path: Path, override: str, message: str
) -> None:
    common = [f"output={tmp_path}", "scores.num_pictures=0", "fit.best_metric=loss"]
    assert train(debug_config("beta_vae", cache, *common, "fit.steps=1"), False)
    with pytest.raises(ValueError, match=message):
        train(debug_config("beta_vae", cache, *common, override), True)


@pytest.mark.parametrize("preset", ["desk", "paper"])
@pytest.mark.parametrize("family", FAMILIES)
def test_presets_are_valid_and_have_20_codes(preset: str, family: str) -> None:
    config = load_config(VaeBaselineConfig, str(CONFIGS / f"{preset}/{family}.yaml"))
    assert (config.model.family, config.model.num_codes) == (family, 20)
    assert config.fit.best_metric == "factor_vae_error"
    assert config.fit.optim.max_grad_norm == 0  # a clipped sum of pixels would starve the discriminator


class ReadsFactors:
    """A model whose codes are the two factors, which the picture shows as two gray levels."""

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        return images[:, 0, 0, :2].float()

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def test_scores_in_passing_know_a_perfect_model_from_a_blind_one() -> None:
    factors = np.stack(np.unravel_index(np.arange(400), (20, 20)), 1)
    pixels = np.broadcast_to(factors[:, None, :].astype(np.uint8), (400, 2, 2)).copy()
    scores = ConceptScores(ArrayFactors("levels", ("a", "b"), (20, 20), pixels), ScoreConfig(300, 2000, 64))
    perfect = scores(ReadsFactors(), 0, None, None)  # type: ignore[arg-type]
    assert perfect["factor_vae"] == 1
    assert perfect["mig"] > 0.7  # 1 but for the bias of a small sample
    torch.manual_seed(0)
    noise = ReadsFactors()
    noise.encode = lambda images: torch.randn(len(images), 2)  # type: ignore[method-assign]
    assert scores(noise, 0, None, None)["factor_vae"] < 0.65  # type: ignore[arg-type]


def test_a_folder_that_holds_a_run_is_refused_before_data_is_opened(tmp_path: Path) -> None:
    CheckpointStore(tmp_path / "checkpoints", 1).prepare()
    CheckpointStore(tmp_path / "checkpoints", 1).save(1, {}, {})
    (tmp_path / "config.yaml").write_text("of the run\n")
    with pytest.raises(ValueError, match="already holds a run: pass --resume"):
        train(debug_config("beta_vae", tmp_path / "nowhere", f"output={tmp_path}"), False)
    assert (tmp_path / "config.yaml").read_text() == "of the run\n"


@pytest.mark.parametrize("family", ["factor_vae", "beta_tcvae"])
def test_total_correlation_is_not_cut_into_micro_batches(family: str, tmp_path: Path) -> None:
    # For beta-TCVAE, gradients of micro-batches of 8 of 64 have a cosine of about one half to the whole.
    with pytest.raises(ValueError, match=r"fit\.global_batch=8 and train in one process"):
        debug_config(family, tmp_path, "fit.micro_batch=4")
    debug_config("beta_vae", tmp_path, "fit.micro_batch=4")
