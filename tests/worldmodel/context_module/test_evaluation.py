import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.tiny_contexts import tiny_context_model
from worldmodel.context_module.data.quad import Quad
from worldmodel.context_module.evaluation import (
    ContextScoreConfig,
    generated_distance,
    reference_distances,
    score_contexts,
)
from worldmodel.context_module.models.context_module import ContextModuleConfig

CONFIG = ContextScoreConfig(num_batches=2, batch=24, num_elbo=8, num_codes=40)


class Painter:
    """A model that knows the truth, or only its observational part; keeps what it was asked for."""

    def __init__(self, knows_contexts: bool) -> None:
        self.knows_contexts, self.made = knows_contexts, []

    def sample(self, count: int, do: tuple[int, ...], *, generator: torch.Generator) -> Tensor:
        seed = int(torch.randint(1000, (), generator=generator))
        real = Quad("quad", count, 16, seed=1 + seed)
        self.made.append(real.images(do if self.knows_contexts else (), np.arange(count)).float() / 255)
        return self.made[-1]


def test_a_true_model_is_at_the_floor_and_one_without_contexts_at_the_unmoved_distance() -> None:
    data = Quad("quad", 600, 16, "test")
    config = ContextScoreConfig(num_batches=2, batch=300)
    known = reference_distances(data, config)
    assert known["composition_floor"] < 0.3 * known["composition_unmoved"]  # type: ignore[operator]
    good, blind = (
        np.mean([generated_distance(Painter(knows), data, do, config) for do in data.held_out[:5]])  # type: ignore[arg-type]
        for knows in (True, False)
    )
    assert good == pytest.approx(known["composition_floor"], rel=0.4)
    assert blind == pytest.approx(known["composition_unmoved"], rel=0.4)


def test_every_batch_has_samples_of_its_own() -> None:
    model = Painter(True)
    generated_distance(model, Quad("quad", 60, 16, "test"), (1,), CONFIG)  # type: ignore[arg-type]
    assert len(model.made) == 2
    assert not torch.equal(*model.made)


def test_scores_of_a_model_are_numbers_for_json() -> None:
    module = ContextModuleConfig(num_concepts=6, in_width=2, out_width=2)
    model = tiny_context_model(module=module)
    scores = score_contexts(model, Quad("quad", 60, 16, "test"), CONFIG)
    assert len(scores["distances"]) == 22
    assert scores["concept"] == pytest.approx(np.mean(list(scores["distances"].values())[:7]))
    assert scores["composition"] == pytest.approx(np.mean(list(scores["distances"].values())[7:]))
    assert 0.5 < scores["elbo"] < 2
    assert 0 <= scores["mcc"] <= scores["mcc_matched"] <= 1
    assert scores["directions"]["num_rows"] == 12
    base = tiny_context_model("base", module=module)
    assert "directions" not in score_contexts(base, Quad("quad", 60, 16, "test"), CONFIG)
    with pytest.raises(ValueError, match="2 batches of 24 need 48"):
        score_contexts(model, Quad("quad", 40, 16, "test"), CONFIG)
