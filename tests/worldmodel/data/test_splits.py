import pytest

from worldmodel.config import config_to_yaml, load_config
from worldmodel.data.splits import SplitConfig, split_of

UIDS = [f"data/episode{i}" for i in range(2000)]


def test_fractions_are_met() -> None:
    splits = [split_of(uid, SplitConfig(val=0.2, test=0.1)) for uid in UIDS]
    assert splits.count("val") == pytest.approx(400, abs=60)
    assert splits.count("test") == pytest.approx(200, abs=45)


def test_known_answers_never_move() -> None:
    # Fixed for all time: another hash would leak test episodes of old checkpoints into new training runs.
    config = SplitConfig(val=0.25, test=0.25)
    assert [split_of(uid, config)[:2] for uid in UIDS[:8]] == ["va", "tr", "tr", "tr", "te", "te", "te", "tr"]


def test_held_out_episodes_stay_held_out_when_the_fraction_grows() -> None:
    small = {uid for uid in UIDS if split_of(uid, SplitConfig(val=0.0, test=0.1)) == "test"}
    large = {uid for uid in UIDS if split_of(uid, SplitConfig(val=0.0, test=0.2)) == "test"}
    assert small < large


def test_seeds_give_independent_divisions() -> None:
    def tests(seed: int) -> set[str]:
        return {uid for uid in UIDS if split_of(uid, SplitConfig(val=0.0, test=0.5, seed=seed)) == "test"}

    assert len(tests(0) & tests(1)) == pytest.approx(500, abs=80)


def test_named_episodes_go_where_they_are_listed() -> None:
    config = SplitConfig(val=0.0, test=0.0, test_uids=("data/episode3",), val_uids=("data/episode4",))
    assert [split_of(uid, config) for uid in UIDS[2:6]] == ["train", "test", "val", "train"]
    config = SplitConfig(val=0.0, test=1.0, train_uids=("data/episode3",))
    assert [split_of(uid, config) for uid in UIDS[2:5]] == ["test", "train", "test"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"val": 0.7, "test": 0.4}, "sum to at most 1"),
        ({"val": -0.1}, "fractions are >= 0"),
        ({"val_uids": ("a",), "test_uids": ("a",)}, "more than one split: a"),
    ],
)
def test_impossible_divisions_are_refused(bad: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SplitConfig(**bad)


def test_config_survives_yaml(tmp_path) -> None:
    wanted = SplitConfig(val=0.2, test_uids=("a", "b"))
    (tmp_path / "split.yaml").write_text(config_to_yaml(wanted))
    assert load_config(SplitConfig, str(tmp_path / "split.yaml")) == wanted
