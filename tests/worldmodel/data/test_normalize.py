import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from worldmodel.data import normalize
from worldmodel.data.normalize import ActionNormalizer, ActionStats, ActionStatsBuilder, share_scales


def stats_of(actions: np.ndarray, pieces: int = 1) -> ActionStats:
    names = tuple(f"j{i}" for i in range(actions.shape[1]))
    builder = ActionStatsBuilder(names)
    for piece in np.array_split(actions, pieces):
        builder.add(piece, names, "file")
    return builder.stats()


@pytest.fixture
def actions() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(1000, 3)) * [1, 10, 0.001] + [0, 5, -2]


def test_quantiles_are_those_of_numpy(actions: np.ndarray) -> None:
    stats = stats_of(actions, pieces=7)
    np.testing.assert_allclose(stats.q01, np.percentile(actions, 1, axis=0))
    np.testing.assert_allclose(stats.q99, np.percentile(actions, 99, axis=0))
    np.testing.assert_allclose((stats.minimum, stats.maximum), (actions.min(0), actions.max(0)))
    assert stats.num_samples == 1000


def test_bounded_memory_keeps_quantiles_and_extremes(monkeypatch) -> None:
    monkeypatch.setattr(normalize, "MAX_ROWS", 2000)
    actions = np.random.default_rng(1).uniform(size=(50_000, 2))
    stats = stats_of(actions, pieces=777)
    np.testing.assert_allclose(stats.q01, 0.01, atol=0.006)
    np.testing.assert_allclose(stats.q99, 0.99, atol=0.006)
    np.testing.assert_array_equal(stats.maximum, actions.max(0))
    assert stats.num_samples == 50_000


def test_quantiles_become_plus_and_minus_one(actions: np.ndarray) -> None:
    stats = stats_of(actions)
    normalizer = ActionNormalizer({"arm": stats})
    corners = normalizer.normalize(np.array([stats.q01, stats.q99]), "arm")
    torch.testing.assert_close(corners, torch.tensor([[-1.0] * 3, [1.0] * 3]))
    everything = normalizer.normalize(actions, "arm")
    assert everything.dtype == torch.float32
    assert (everything.min(), everything.max()) == (-1, 1)
    assert (everything.abs() == 1).float().mean().item() == pytest.approx(0.02, abs=0.005)


def test_round_trip_inside_the_range(actions: np.ndarray) -> None:
    stats = stats_of(actions)
    inside = np.clip(actions, stats.q01, stats.q99).reshape(10, 100, 3)
    normalizer = ActionNormalizer({"arm": stats}, width=5)
    back = normalizer.denormalize(normalizer.normalize(inside, "arm"), "arm")
    np.testing.assert_allclose(back, inside, rtol=1e-6, atol=1e-6)


def test_idle_dimensions_are_zero_and_come_back_as_their_constant() -> None:
    actions = np.random.default_rng(0).normal(size=(500, 3))
    actions[:, 1] = 0.7
    actions[:, 2] = 1.0 + np.random.default_rng(1).normal(size=500) * 1e-9  # rounding, not motion
    normalizer = ActionNormalizer({"arm": stats_of(actions)})
    normal = normalizer.normalize(actions, "arm")
    assert (normal[:, 1:] == 0).all()
    back = normalizer.denormalize(normal, "arm")
    np.testing.assert_array_equal(back[:, 1], 0.7)
    np.testing.assert_allclose(back[:, 2], 1.0, atol=1e-8)


def test_rare_motion_is_not_taken_for_a_constant() -> None:
    actions = np.zeros((1000, 1))
    actions[500:505] = [[0.2], [0.5], [1.0], [0.5], [0.2]]  # half a per cent of the time
    normalizer = ActionNormalizer({"arm": stats_of(actions)})
    normal = normalizer.normalize(actions, "arm")
    assert normal[502].item() == 1
    np.testing.assert_allclose(normalizer.denormalize(normal, "arm"), actions, atol=1e-7)


def test_14_and_16_dimensions_share_a_width() -> None:
    rng = np.random.default_rng(0)
    six, seven = rng.normal(size=(100, 14)), rng.normal(size=(100, 16))
    normalizer = ActionNormalizer({"six": stats_of(six), "seven": stats_of(seven)})
    assert normalizer.width == 16
    assert normalizer.mask("six").tolist() == [True] * 14 + [False] * 2
    assert normalizer.mask("seven").all()
    padded = normalizer.normalize(six, "six")
    assert padded.shape == (100, 16)
    assert (padded[:, 14:] == 0).all()
    assert normalizer.denormalize(padded, "six").shape == (100, 14)
    assert (normalizer.index("six"), normalizer.index("seven")) == (0, 1)


def test_json_round_trip_is_exact(actions: np.ndarray) -> None:
    first = ActionNormalizer({"b": stats_of(actions), "a": stats_of(actions * 3)}, width=7)
    second = ActionNormalizer.from_dict(json.loads(json.dumps(first.to_dict())))
    assert second.embodiments == ("b", "a")
    assert (second.stats, second.width) == (first.stats, 7)
    assert torch.equal(first.normalize(actions, "b"), second.normalize(actions, "b"))


def test_new_embodiments_leave_old_ones_alone(actions: np.ndarray) -> None:
    old = ActionNormalizer({"b": stats_of(actions)}, width=4)
    new = old.with_embodiments({"a": stats_of(actions[:, :2]), "b": stats_of(actions * 100)})
    assert new.embodiments == ("b", "a")
    assert torch.equal(new.normalize(actions, "b"), old.normalize(actions, "b"))
    with pytest.raises(ValueError, match="6 dimensions do not fit into a common width of 4"):
        old.with_embodiments({"c": stats_of(np.tile(actions, 2))})


def test_input_that_does_not_match_is_refused(actions: np.ndarray) -> None:
    normalizer = ActionNormalizer({"arm": stats_of(actions)})
    with pytest.raises(ValueError, match="unknown embodiment 'leg'; statistics exist for arm"):
        normalizer.normalize(actions, "leg")
    with pytest.raises(ValueError, match=r"expected 3 dimensions \(j0, j1, j2\), got 2"):
        normalizer.normalize(actions[:, :2], "arm")
    with pytest.raises(ValueError, match=r"expected names \['j0', 'j1', 'j2'\], got \['j1', 'j0', 'j2'\]"):
        normalizer.normalize(actions, "arm", ["j1", "j0", "j2"])
    with pytest.raises(ValueError, match="not finite"):
        normalizer.normalize(np.full((1, 3), np.nan), "arm")
    with pytest.raises(ValueError, match="expected width 3, got 2"):
        normalizer.denormalize(torch.zeros(1, 2), "arm")
    with pytest.raises(ValueError, match="embodiments is None, expected a list of objects"):
        ActionNormalizer.from_dict({"width": 3})


def test_wrong_scale_shows(actions: np.ndarray) -> None:
    normalizer = ActionNormalizer({"arm": stats_of(actions)})
    assert normalizer.outside(actions, "arm") < 0.001
    assert normalizer.outside(np.rad2deg(actions), "arm") > 0.9


def test_names_must_agree_within_an_embodiment() -> None:
    builder = ActionStatsBuilder(("a", "b"))
    with pytest.raises(ValueError, match=r"f\.hdf5: action names \['b', 'a'\] differ from \['a', 'b'\]"):
        builder.add(np.zeros((1, 2)), ("b", "a"), "f.hdf5")


def test_shared_scales_give_the_same_place_the_same_number(actions: np.ndarray) -> None:
    near, far = stats_of(actions), stats_of(3 * actions)
    other = ActionStats(("k",), (0.0,), (1.0,), (0.0,), (1.0,), 5)
    shared = share_scales({"near": near, "far": far, "other": other})
    assert shared["near"] == shared["far"]
    assert shared["other"] == other
    np.testing.assert_array_equal(shared["near"].q99, np.maximum(near.q99, far.q99))
    np.testing.assert_array_equal(shared["near"].minimum, np.minimum(near.minimum, far.minimum))
    assert shared["near"].num_samples == 2000
    # A robot that joins a trained model takes the scale that the model knows.
    assert share_scales({"new": far}, known={"near": near})["new"] == near


def test_a_known_embodiment_with_other_actions_is_refused(actions: np.ndarray) -> None:
    entry = stats_of(actions)
    table = ActionNormalizer({"arm": entry})
    for names in (entry.names[::-1], (*entry.names[:-1], "gripper")):
        with pytest.raises(ValueError, match=r"actions of 'arm': expected names .*, got") as caught:
            table.with_embodiments({"arm": replace(entry, names=names)})
        assert str(list(names)) in str(caught.value)
        assert str(list(entry.names)) in str(caught.value)
