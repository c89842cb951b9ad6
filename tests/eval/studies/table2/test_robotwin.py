import glob
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from studies.table2.run import main

from tests.support.robotwin_sets import write_robotwin_set
from worldmodel.cli import main as command_line

PROJECT = Path(__file__).parents[4]


@pytest.fixture
def robotwin(tmp_path, monkeypatch) -> Path:
    """Sets of the RoboTwin layout where configs/wan/table2.yaml looks for them."""
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    joints = {"aloha-agilex": 6, "arx-x5": 6, "franka": 7, "piper": 6, "ur5": 6}
    for task in ("place_a2b_left", "place_a2b_right"):
        for robot, count in joints.items():
            # The target has as many as a validation split needs to get one.
            episodes = 10 if (robot, task) == ("aloha-agilex", "place_a2b_left") else 2
            write_robotwin_set(
                tmp_path / "data/robotwin" / task / f"{robot}_clean_50", count, episodes=episodes, poses=True
            )
    prompt = tmp_path / "outputs/wan/empty_prompt.safetensors"
    prompt.parent.mkdir(parents=True)
    save_file({"text": torch.zeros(1, 512, 4096)}, prompt)  # as worldmodel encode-prompt makes it
    (tmp_path / "outputs/wan/locator/locator").mkdir(parents=True)  # as worldmodel train-locator makes it
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_dry_run_says_what_each_form_can_show(robotwin, capsys):
    quick = ["configs/wan/table2.yaml", "gpus=", "spread=0.5", "--dry-run"]
    assert main(quick) == 0
    printed = capsys.readouterr().out
    assert "note           source shows" not in printed
    assert "target is one robot, aloha-agilex: the embodiment classifier" in printed
    # All of the transfer task, what the split leaves of the other one; t(0.975, 1) + t(0.8, 1) = 14.08.
    assert "power          transfer, acg_mcl against acg, 2 episodes: 4.98 dB (spread 0.50 dB)" in printed
    sources = "data/robotwin/place_a2b_left/ur5_clean_50,data/robotwin/place_a2b_right/ur5_clean_50"
    assert main([*quick, f"source=[{sources}]", "mcl_pretraining=true"]) == 0
    printed = capsys.readouterr().out
    assert "source shows place_a2b_right: transfer is to this robot, not to a new task" in printed
    assert "to do  pretrained/acg_mcl" in printed
    assert main([*quick, "start=backbone"]) == 0
    printed = capsys.readouterr().out
    assert "pretrained/" not in printed
    assert "learns nothing in any training" in printed


def test_the_robotwin_config_passes_a_dry_run(robotwin, capsys):
    assert main(["configs/wan/table2.yaml", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("to do  ") == 3 + 3 * (5 + 12)
    assert "2 episodes, franka" in printed
    assert "transfer_test  data/robotwin/place_a2b_right/aloha-agilex_clean_50: 2 episodes" in printed
    assert "cost           all trainings: " in printed
    assert "GPU hours; rollouts not counted" in printed
    assert "accelerate launch --config_file configs/accelerate/8xh100_ddp.yaml" in printed
    assert not (robotwin / "outputs/wan/table2").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("transfer_test=data/robotwin/place_a2b_right/franka_clean_50", "transfer_test shows"),
        ("transfer_test=data/robotwin/place_a2b_left/aloha-agilex_clean_50", "no transfer"),
        ("target_test=data/robotwin/place_a2b_left/none", "no dataset at"),
        ("rollout_settings=[held_out.split=all]", "evaluate held_out.split=test"),
        ("training_settings=[data.clip.camera=top]", "top"),
        ("source=[data/robotwin]", "source shows aloha-agilex, the robot of target"),
        ("training_settings=[model.prompt=outputs/p.safetensors]", "worldmodel encode-prompt makes it"),
        ("autoencoder=outputs/wan/vae", "worldmodel train-autoencoder makes it"),
        ("rollout_settings=[locator=outputs/locator]", "target: locator names outputs/locator, which is not"),
        ("finetuning_settings=[data.splits.val=0.01]", "no episode of target falls in the validation split"),
        ("pretrained.acg=outputs/wan/acg", "trained/acg/seed0: start_from names outputs/wan/acg"),
    ],
)
def test_data_that_do_not_fit_the_protocol_are_refused(robotwin, capsys, override, message):
    assert main(["configs/wan/table2.yaml", "rows=[acg]", override, "--dry-run"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("page", ["docs/reproduce.md", "configs/wan/table2.yaml"])
def test_the_documented_line_makes_the_locator_that_the_config_names(robotwin, page):
    (robotwin / "outputs/wan/locator/locator").rmdir()
    text = (PROJECT / page).read_text().replace("\n#  ", "\n")
    (line,) = re.findall(r"worldmodel (train-locator .*) \\\n(.*)", text)
    words = [found for word in " ".join(line).split() for found in sorted(glob.glob(word)) or [word]]
    assert len(words) == 1 + 5 + 6
    assert command_line([*words, "fit.steps=1", "fit.trackers=[]", "fit.machine.device=cpu"]) == 0
    assert main(["configs/wan/table2.yaml", "gpus=", "rows=[acg]", "--dry-run"]) == 0


def test_one_episode_of_another_task_is_seen(robotwin, capsys):
    stray = robotwin / "data/robotwin/place_a2b_left/aloha-agilex_clean_50"
    moved = robotwin / "data/robotwin/mixed"
    shutil.copytree(stray, moved / "place_a2b_left/aloha-agilex_clean_50")
    shutil.copytree(stray.parents[1] / "place_a2b_right" / stray.name, moved / "place_a2b_right" / stray.name)
    assert main(["configs/wan/table2.yaml", "rows=[acg]", "target=[data/robotwin/mixed]", "--dry-run"]) == 2
    assert "transfer_test shows place_a2b_right, which target trains" in capsys.readouterr().err


def test_the_documented_line_unpacks_archives_to_where_the_config_looks(robotwin, capsys):
    for folder in sorted((robotwin / "data/robotwin").glob("*/*")):
        archive = robotwin / "data/hub/dataset" / folder.parent.name / folder.name
        shutil.make_archive(
            str(archive), "zip", folder.parent, folder.name
        )  # its root is named after the set
    shutil.rmtree(robotwin / "data/robotwin")
    page = (PROJECT / "docs/reproduce.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("for set in ")]
    subprocess.run(["bash", "-c", line], cwd=robotwin, check=True)
    assert main(["configs/wan/table2.yaml", "gpus=", "--dry-run"]) == 0
    assert "to do" in capsys.readouterr().out
