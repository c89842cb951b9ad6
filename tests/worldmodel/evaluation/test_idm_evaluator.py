import dataclasses

import numpy as np
import pytest
import torch

from worldmodel.data.normalize import ActionNormalizer
from worldmodel.evaluation.idm_evaluator import action_judge
from worldmodel.models.config import ObjectiveConfig

NO_HEAD = ObjectiveConfig(idm_weight=0.0)


@pytest.fixture(scope="module")
def models(make_model, tmp_path_factory):
    """An ACG model without an IDM, and the folder of an LACG model that can lend one."""
    folder = tmp_path_factory.mktemp("judges")
    judge = make_model(regime="lacg")
    judge.save_pretrained(folder / "lacg")
    make_model(regime="lacg", objective=NO_HEAD).save_pretrained(folder / "headless")
    return make_model(regime="acg", objective=NO_HEAD), judge, folder


def test_a_lent_judge_sees_what_it_sees_at_home(models):
    model, lender, folder = models
    frames = torch.rand(5, 3, 32, 32)
    assert action_judge(model, "", ["a"]) is None
    recovered = action_judge(model, str(folder / "lacg"), ["a"])(frames, "a")
    assert recovered.shape == (4, 4)
    assert torch.equal(recovered, action_judge(lender, "", ["a"])(frames, "a"))


def test_a_lent_judge_tells_the_same_raw_actions_on_other_scales(models, monkeypatch):
    model, lender, folder = models
    stats = model.normalizer.stats["a"]
    wider = dataclasses.replace(
        stats, q01=tuple(q - 3 for q in stats.q01), q99=tuple(2 + q for q in stats.q99)
    )
    monkeypatch.setattr(model, "normalizer", ActionNormalizer({"a": wider}))
    frames = torch.rand(5, 3, 32, 32)
    lent = action_judge(model, str(folder / "lacg"), ["a"])(frames, "a")
    at_home = action_judge(lender, "", ["a"])(frames, "a")
    assert not torch.allclose(lent, at_home, atol=0.1)
    raw = lender.normalizer.denormalize(at_home, "a")
    np.testing.assert_allclose(model.normalizer.denormalize(lent, "a"), raw, atol=1e-5)


def test_a_head_that_was_never_trained_is_no_judge(models, make_model):
    model, _, folder = models
    assert action_judge(make_model(regime="lacg", objective=NO_HEAD), "", ["a"]) is None
    with pytest.raises(ValueError, match=r"headless: no inverse dynamics model that was trained"):
        action_judge(model, str(folder / "headless"), ["a"])


def test_actions_of_other_names_or_of_another_robot_are_refused(models, monkeypatch):
    model, _, folder = models
    stats = model.normalizer.stats["a"]
    renamed = dataclasses.replace(stats, names=("q0", "q1", "q2", "q3"))
    for entry, message in (({"a": renamed}, "expected names"), ({"b": stats}, "unknown embodiment 'b'")):
        monkeypatch.setattr(model, "normalizer", ActionNormalizer(entry))
        with pytest.raises(ValueError, match=f"judge .*lacg: .*{message}"):
            action_judge(model, str(folder / "lacg"), list(entry))
