import json
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from studies.cells import ROLL_OUT, TRAIN
from studies.table2.run import main

from tests.support.robotwin_sets import write_robotwin_set
from worldmodel.config import load_config
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.evaluation.command_line import run_on_data
from worldmodel.evaluation.rollouts.run import RolloutsConfig, run
from worldmodel.locator.model import Locator, LocatorConfig
from worldmodel.models.model import WorldModel
from worldmodel.training.autoencoder import AutoencoderConfig
from worldmodel.training.autoencoder import train as train_autoencoder
from worldmodel.training.command_line import run_script
from worldmodel.training.datasets import open_index
from worldmodel.training.world_model import TrainConfig, build_model, train

PROJECT = Path(__file__).parents[4]
TRAINING = str(PROJECT / "configs/debug/world_model.yaml")
SETTINGS = [
    "data.synthetic_episodes=0",
    "data.splits.val_uids=[]",
    "validation.num_clips=0",
    "fit.trackers=[]",
    "fit.global_batch=2",
    "fit.micro_batch=2",
    "model.vae=vae",
]
SOURCE, TARGET, TARGET_TEST, TRANSFER_TEST = SETS = (
    "seen/place_a2b_left/arx-x5_clean_50",
    "seen/place_a2b_left/aloha-agilex_clean_50",
    "unseen/place_a2b_left/aloha-agilex_clean_50",
    "unseen/place_a2b_right/aloha-agilex_clean_50",
)
SCRIPTS: dict[str, Callable[[Sequence[str]], int]] = {
    TRAIN: partial(run_script, TrainConfig, train, ""),
    ROLL_OUT: partial(run_on_data, RolloutsConfig, run, ""),
}


class WorkDoneHere:
    """Stands in for a process; seven of them would spend half a minute on imports."""

    def __init__(self, command: Sequence[str], **_: object) -> None:
        _, _, _, name, *arguments = command  # python -m worldmodel NAME
        self.code = SCRIPTS[name](arguments)

    def wait(self) -> int:
        return self.code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Data, an autoencoder, an ACG model and a locator, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for path in SETS:
        write_robotwin_set(tmp_path / path, joints=6, frames=10)
    torch.manual_seed(0)
    CausalAutoencoder(height=32, width=32, hidden=16, num_blocks=1).save_pretrained("vae")
    # Of another seed than the trainings: what they would start from by themselves is not this.
    config = load_config(TrainConfig, TRAINING, [*SETTINGS, f"data.paths=[{SOURCE}]", "fit.seed=5"])
    build_model(config, open_index(config.data)).save_pretrained(tmp_path / "given")
    locator = Locator(LocatorConfig(height=32, width=32, channels=8))
    locator.seen.bias.data.fill_(10.0)  # it sees everything in every picture
    locator.save_pretrained(tmp_path / "locator", {})
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield tmp_path
    for number, handler in before.items():  # the command sets its own
        signal.signal(number, handler)


def test_journey_with_a_given_model_and_without_actions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studies.child_process.subprocess", SimpleNamespace(Popen=WorkDoneHere))
    config = {
        "output": "out",
        "source": [SOURCE],
        "target": [TARGET],
        "target_test": TARGET_TEST,
        "transfer_test": TRANSFER_TEST,
        "pretrained": {"acg": "given"},
        "training": TRAINING,
        "training_settings": SETTINGS,
        "pretraining_steps": 1,
        "finetuning_steps": 1,
        "finetuning_settings": ["fit.optim.lr=1e-9"],  # a model ends where it started
        "rollout_settings": [
            "held_out.split=all",
            "num_inference_steps=1",
            "videos=1",
            "controls=[zero]",
            "locator=locator",
        ],
        "rows": ["no_action", "acg"],
        "seeds": [0],
    }
    Path("table2.yaml").write_text(json.dumps(config))  # JSON is YAML
    assert main(["table2.yaml"]) == 0
    assert [path.name for path in Path("out/pretrained").iterdir()] == ["no_action"]
    for row, start in (("no_action", "out/pretrained/no_action/model"), ("acg", "given")):
        tuned = WorldModel.from_pretrained(f"out/trained/{row}/seed0/model")
        assert tuned.config.regime == row
        expected = WorldModel.from_pretrained(start).state_dict()
        torch.testing.assert_close(tuned.state_dict(), expected, rtol=0, atol=1e-6)
    results = json.loads(Path("out/table2.json").read_text())
    for task in ("target", "transfer"):
        rows = results["tasks"][task]["rows"]
        assert list(rows) == ["no_action", "acg"]
        assert rows["no_action"]["psnr"]["episodes"]["count"] == rows["acg"]["psnr"]["episodes"]["count"] == 2
        assert rows["no_action"]["gripper_error_to_no_action"]["mean"] == pytest.approx(1)
        assert rows["acg"]["gripper_error_to_no_action"]["mean"] > 0
        assert rows["no_action"]["psnr"] != rows["acg"]["psnr"]
    text = Path("out/table2.md").read_text()
    assert "| no action (1 seed) |" in text
    assert "| ACG (1 seed) |" in text


@pytest.mark.slow
def test_journey_on_the_tabletop(tmp_path, monkeypatch, capsys):
    """Pretrain, fine-tune with and without MCL, roll out, collect; a second run has nothing to do."""
    pytest.importorskip("mujoco")
    from robotwin_adapters.tabletop.collect import collect_all
    from robotwin_adapters.tabletop.record import RecordingConfig

    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    tasks = {"source": ("babble", "heron"), "target": ("babble", "finch")}
    tasks |= {"target_test": ("babble", "finch"), "transfer_test": ("place_a2b_right", "finch")}
    for seed, (folder, (task, robot)) in enumerate(tasks.items()):
        recording = RecordingConfig(task, robot, width=32, height=32)
        collect_all(tmp_path / folder, [recording], episodes=2, seed=1000 * seed, workers=1)
    settings = ["data.paths=[source,target]", "data.synthetic_episodes=0", "data.splits.val_uids=[]"]
    assert train_autoencoder(
        load_config(AutoencoderConfig, "configs/debug/autoencoder.yaml", settings), resume=False
    )
    config = {
        "output": "out",
        **{name: [name] for name in ("source", "target")},
        **{name: name for name in ("target_test", "transfer_test")},
        "autoencoder": "outputs/debug/autoencoder/vae",
        "latents": "latents",
        "training": "configs/debug/world_model.yaml",
        "training_settings": [*settings[1:], "validation.num_clips=0"],
        "pretraining_steps": 2,
        "finetuning_steps": 2,
        "rollout_settings": ["held_out.split=all", "num_inference_steps=1", "videos=1", "controls=[zero]"],
        "rows": ["acg", "acg_mcl", "lacg_controller"],
        "seeds": [0],
    }
    (tmp_path / "table2.yaml").write_text(json.dumps(config))  # JSON is YAML
    command = ["table2.yaml"]
    assert main(command) == 0
    results = json.loads((tmp_path / "out/table2.json").read_text())
    assert list(results["tasks"]["transfer"]["rows"]) == ["acg", "acg_mcl", "lacg_controller"]
    assert results["mcl"]["ACG"]["target"]["psnr"]["episodes"]["count"] == 2
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/*/**/*.jsonl")}
    assert len(times) > 6
    assert main(command) == 0
    assert times == {path: path.stat().st_mtime_ns for path in times}
    assert main([*command, "--dry-run"]) == 0
    assert "to do" not in capsys.readouterr().out
