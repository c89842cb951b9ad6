from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldmodel.config import load_config
from worldmodel.context_module.data.open_contexts import ContextPictures, load_contexts
from worldmodel.context_module.data.quad import Quad
from worldmodel.context_module.models.context_model import ContextModel
from worldmodel.context_module.training.context_run import ContextTrainConfig
from worldmodel.context_module.training.train import main, phases, train

CONFIGS = Path(__file__).parents[4] / "configs/context"


def debug_config(*overrides: str) -> ContextTrainConfig:
    return load_config(ContextTrainConfig, str(CONFIGS / "debug.yaml"), overrides)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return ContextModel.from_pretrained(folder).state_dict()


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, parts = (debug_config(f"output={tmp_path / name}") for name in ("whole", "parts"))
    assert train(whole, False)
    assert train(replace(parts, fit=replace(parts.fit, steps=2)), False)
    assert train(parts, True)
    first, second = weights(tmp_path / "whole/model"), weights(tmp_path / "parts/model")
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ValueError, match=r"objective\.beta was 1\.0, now is 2\.0"):
        train(debug_config(f"output={tmp_path / 'whole'}", "objective.beta=2"), True)


def test_every_batch_is_of_one_context_and_all_contexts_come() -> None:
    data = Quad("quad", 70, 16)
    pictures = ContextPictures(data, "all")
    rng = np.random.default_rng(0)
    orders = [rng.permutation(70)[:4].tolist() for _ in range(60)]
    seen = set()
    for indices, batch in zip(orders, load_contexts(pictures, orders), strict=True):
        assert torch.equal(batch.images, data.images(batch.do, np.asarray(indices)))
        seen.add(batch.do)
    assert seen == {(), (0,), (1,), (2,), (3,), (4,), (5,)}
    only = ContextPictures(data, "observational")
    assert {only.batch(indices).do for indices in orders} == {()}


def test_fine_tuning_keeps_or_moves_the_host_as_told(tmp_path: Path) -> None:
    assert train(debug_config(f"output={tmp_path / 'base'}", "model.variant=base"), False)
    host = {name: t for name, t in weights(tmp_path / "base/model").items() if name.startswith("host.")}
    common = (f"start_from={tmp_path / 'base/model'}", "model.has_head=true")
    assert train(debug_config(f"output={tmp_path / 'frozen'}", "train=module", *common), False)
    frozen = weights(tmp_path / "frozen/model")
    assert all(torch.equal(frozen[name], tensor) for name, tensor in host.items())
    config = debug_config(f"output={tmp_path / 'both'}", "train=module_first", *common)
    assert [phase.fit.steps for phase in phases(config)] == [1, 3]
    assert train(config, False)
    first, last = weights(tmp_path / "both/module_first/model"), weights(tmp_path / "both/model")
    assert all(torch.equal(first[name], tensor) for name, tensor in host.items())
    assert not any(torch.equal(last[name], tensor) for name, tensor in host.items() if "weight" in name)
    assert train(config, True)  # nothing is left to do


def test_wrong_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="start_from must name a trained one"):
        debug_config("train=module")
    words = [str(CONFIGS / "debug.yaml"), f"output={tmp_path}", "model.module.num_concepts=4"]
    assert main([*words, "model.module.in_width=3"]) == 2
    assert "quad has 6 concepts" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no model at"):
        train(debug_config(f"output={tmp_path / 'x'}", "train=module", f"start_from={tmp_path}"), False)


@pytest.mark.parametrize("preset", ["debug", "desk", "paper"])
def test_presets_are_valid_models(preset: str) -> None:
    config = load_config(ContextTrainConfig, str(CONFIGS / f"{preset}.yaml"))
    assert config.data.size == config.model.host.light_vae.image_size
    assert ContextModel(config.model).latent_dim == config.model.host.light_vae.latent_dim
