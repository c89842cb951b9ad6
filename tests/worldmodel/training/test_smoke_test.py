import json
from pathlib import Path

import pytest

pytest.importorskip("mujoco")

from worldmodel.data.video import open_video
from worldmodel.models.model import WorldModel
from worldmodel.training.smoke_test import VARIANTS, prepare, run_variant

BY_DEFAULT = ("acg+lora", "lacg+exact")
MARKED = [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("journey")
    return folder, prepare(folder)


@pytest.mark.parametrize("name", MARKED)
def test_journey(name: str, prepared: tuple[Path, list[str]]) -> None:
    output, overrides = prepared
    metrics = run_variant(output, name, overrides)
    folder = output / name
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if r["kind"] == "train"] == [1, 2, 3, 4]
    assert {"reconstruction", "rollout_psnr", "long_rollout_psnr"} <= metrics.keys()
    assert ("mcl" in metrics) == ("exact" in name)
    assert ("kl" in metrics and "controller" in metrics) == name.startswith("lacg")
    assert 5 < metrics["long_rollout_psnr"] < 60
    assert len(open_video(folder / "rollout.mp4")) == 17
    assert len(open_video(folder / "rollouts/step_00000004_clip0.mp4")) == 9
    model = WorldModel.from_pretrained(folder / "best")
    assert model.config.regime == name.split("+")[0]
    assert model.config.lora.rank == 2 * ("lora" in name)
