"""Every real sample set, untouched: read as an independent reader does, converted, trained on, rolled out."""

import json
import shlex
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from robotwin_adapters.open_dataset import open_dataset
from worldmodel.cli import main

ROBOTS = Path(__file__).parents[2] / "../shared/data/robots"
LEROBOT = {
    "lerobot_v20_gr1_sim": "observation.images.ego_view",
    "lerobot_v21_arx_x5_dual": "observation.images.cam_head",
    "lerobot_v21_cr5_real": "observation.images.top",
}
FOLDERS = {
    "droid_franka_real/droid_subset": ("annotation/train/0.json", "videos/train/0/0.mp4"),
    "droid_franka_real/droid_new_setup": ("annotation/val/0001.json", "videos/val/0001/0.mp4"),
    "video_language_table_irasim": ("annotation/test/example.json", "videos/test/example.mp4"),
}
SETS = (*LEROBOT, *FOLDERS, "droid_franka_real", "rlds_bridge_octo")


def sample(name: str) -> Path:
    if not (ROBOTS / name).is_dir():
        pytest.skip("no shared robot data here")
    return ROBOTS / name


def decoded(path: Path, count: int) -> np.ndarray:
    """The first frames by a plain loop."""
    with av.open(str(path)) as container:
        frames = [frame for frame, _ in zip(container.decode(video=0), range(count), strict=False)]
        return np.stack([frame.to_ndarray(format="rgb24") for frame in frames])


@pytest.mark.parametrize("name", LEROBOT)
def test_lerobot_samples_equal_an_independent_reader(name: str) -> None:
    root, key = sample(name), LEROBOT[name]
    episode = open_dataset(root, verify=False)[0]
    rows = np.array(pq.read_table(root / "data/chunk-000/episode_000000.parquet")["action"].to_pylist())
    led = episode.robot_actions
    shifted = any("shifted by one" in note for note in episode.notes)
    assert np.allclose(led, rows[1:] if shifted else rows[:-1], rtol=0, atol=0)
    video = root / f"videos/chunk-000/{key}/episode_000000.mp4"
    reader = episode.frames[key.rsplit(".", 1)[-1]]
    assert np.array_equal(reader.read([0, 3, 5]), decoded(video, 6)[[0, 3, 5]])
    assert next(iter(episode.frames)) == key.rsplit(".", 1)[-1]


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_samples_equal_an_independent_reader(name: str) -> None:
    root = sample(name)
    annotation, video = FOLDERS[name]
    content = json.loads((root / annotation).read_text())
    source = open_dataset(root, verify=False)
    (episode,) = [one for one in (source[i] for i in range(len(source))) if one.source.endswith(annotation)]
    expected = np.array(content["states"][1:] if "states" in content else content["actions"])
    turns = (episode.robot_actions - expected) / (2 * np.pi)  # some angles wrap, and are cut elsewhere
    np.testing.assert_allclose(turns, turns.round(), atol=1e-12)
    frames = next(iter(episode.frames.values())).read([0, 3, 5])
    assert np.array_equal(frames, decoded(root / video, 6)[[0, 3, 5]])


def suggested(printed: str) -> list[str]:
    """The settings of the command that `inspect` prints, word for word."""
    (line,) = [line for line in printed.splitlines() if line.startswith("or ")]
    worldmodel, *command = shlex.split(line)[1:]
    assert (worldmodel, len(command)) == ("worldmodel", 3)  # train, the preset, one line of settings
    return command


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_samples_are_inspected_converted_trained_and_rolled_out(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Untouched: the only settings of data and model are in the one line that `inspect` prints."""
    root, out = str(sample(name)), tmp_path
    assert main(["inspect", root, "--out", str(out / "inspect")]) == 0
    command = suggested(capsys.readouterr().out)
    assert command[:2] == ["train", "desk/own_robot"]
    assert main(["convert", root, str(out / "lerobot"), "--to", "lerobot", "--episodes", "0"]) == 0
    first, converted = open_dataset(root, verify=False)[0], open_dataset(out / "lerobot")[0]
    assert np.array_equal(converted.robot_actions, first.robot_actions)
    assert converted.uid == first.uid
    brief = ["fit.steps=2", "fit.trackers=[]", "data.latents=", f"output={out / 'run'}"]
    brief += ["validation.num_clips=2", "validation.num_rollouts=1"]
    assert main([*command, *brief]) == 0
    few = ["held_out.episodes=1", "controls=[]", "videos=0", "num_inference_steps=1"]
    has_held_out = "test_uids" in command[2]
    few += [] if has_held_out else ["held_out.split=all"]
    assert main(["rollout", str(out / "run/model"), root, f"output={out / 'report'}", *few]) == 0
    assert ("TRAINED ON" in capsys.readouterr().out) != has_held_out
