from dataclasses import replace
from pathlib import Path

from tests.support.debug_run import CONFIG
from worldmodel.config import load_config
from worldmodel.mcl.config import ActionMclConfig
from worldmodel.training.run_history import episode_seeds, overrides
from worldmodel.training.world_model import TrainConfig


def test_overrides_turn_one_config_into_the_other() -> None:
    base = load_config(TrainConfig, CONFIG)
    assert overrides(base, base) == []
    data = replace(base.data, synthetic_episodes=0, paths=("a", "b/c"))
    optim = replace(base.fit.optim, lr=1e-7, lr_multipliers={**base.fit.optim.lr_multipliers, "mcl": 2.0})
    model = replace(base.model, mcl=ActionMclConfig(mode="jvp"), prompt="")
    wanted = replace(base, data=data, model=model, fit=replace(base.fit, optim=optim, compile=True))
    words = overrides(base, wanted)
    assert {"data.paths=[a,b/c]", "model.mcl.mode=jvp", "fit.compile=true"} <= set(words)
    assert load_config(TrainConfig, CONFIG, words) == wanted
    back = overrides(wanted, base)
    assert "model.mcl=null" in back


def test_seeds_of_episodes_are_counted(tmp_path: Path) -> None:
    assert episode_seeds(tmp_path) == ""
    for name, seeds in {"a/x": "7 5 6", "b": "11"}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "seed.txt").write_text(seeds)
    assert episode_seeds(tmp_path) == "4 episodes in 2 folders, seeds 5 to 11"
