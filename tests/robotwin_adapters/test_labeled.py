"""Names from a mapping, deltas, and clocks that do not tick evenly."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robotwin_adapters.labeled import LabeledDataset
from robotwin_adapters.mapping import DataMapping
from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.resample import resampled
from tests.support.array_sets import write_npz
from worldmodel.cli import main
from worldmodel.data.clips import ClipConfig
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.training.datasets import DataConfig, open_index
from worldmodel.types import Episode

DATA = Path(__file__).parent / "data"
ROBOTS = Path(__file__).parents[2] / "../shared/data/robots"


@pytest.fixture
def v21(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "lerobot_v21", tmp_path / "v21"))


def set_times(root: Path, times: list[float]) -> None:
    path = root / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    column = pa.array(times, table["timestamp"].type)
    pq.write_table(table.set_column(table.column_names.index("timestamp"), "timestamp", column), path)


def test_a_mapping_renames_what_any_reader_gives() -> None:
    mapping = DataMapping(
        embodiment="arm", task="tidy", fps=5.0, action_names=("a", "b"), action_deltas=("b",)
    )
    source = LabeledDataset(synthetic_source(2, action_dim=2), mapping)
    episode = source[1]
    assert (episode.embodiment, episode.task, episode.fps) == ("arm", "tidy", 5.0)
    assert (episode.action_names, episode.delta_actions) == (("a", "b"), ("b",))
    assert (
        "actions are changes (deltas or velocities) in b; absolute in a (as the mapping says)"
        in episode.notes
    )
    wrong = LabeledDataset(synthetic_source(2, action_dim=2), DataMapping(action_deltas=("c",)))
    with pytest.raises(ValueError, match="action_deltas names c, the action dimensions are joint0, joint1"):
        wrong[0]


def test_uneven_timestamps_are_kept_with_a_note(v21: Path) -> None:
    plain = open_dataset(v21)[0]
    assert not any("timestamps" in note for note in plain.notes)
    set_times(v21, [0.0, 0.08, 0.29, 0.40, 0.49, 0.60, 0.70])
    kept = open_dataset(v21)[0]
    assert np.array_equal(kept.robot_actions, plain.robot_actions)
    (note,) = [note for note in kept.notes if "timestamps" in note]
    assert "uneven, steps of 0.08 to 0.21 s at 10 declared" in note
    set_times(v21, [0.054 * index for index in range(7)])
    (note,) = [note for note in open_dataset(v21)[0].notes if "timestamps" in note]
    assert "go at 18.52 frames per second, 10 declared and used" in note


def test_uneven_timestamps_are_resampled_on_request(v21: Path) -> None:
    plain = open_dataset(v21)[0]
    set_times(v21, [0.0, 0.08, 0.29, 0.40, 0.49, 0.60, 0.70])
    (v21 / "dataset.yaml").write_text("timestamps: resample\n")
    episode = open_dataset(v21)[0]
    chosen = [0, 1, 1, 2, 3, 4, 5, 6]
    assert len(episode.frames["cam_high"]) == episode.num_frames == len(chosen)
    expected = plain.frames["cam_high"].read(chosen)
    assert np.array_equal(episode.frames["cam_high"].read(range(8)), expected)
    assert np.array_equal(episode.robot_states, plain.robot_states[chosen])
    led_by = [0, 0, 1, 2, 3, 4, 5]  # while a frame repeats, the command that led to it is held
    assert np.array_equal(episode.robot_actions, plain.robot_actions[led_by])


def test_resampled_changes_keep_the_whole_displacement() -> None:
    actions = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 30.0], [8.0, 40.0]])
    episode = Episode("e", "e.json", {}, actions, ("dx", "grip"), 10.0, "arm", delta_actions=("dx",))
    even = resampled(episode, np.array([0.0, 0.05, 0.1, 0.3, 0.4]))
    assert even.robot_actions[:, 0].tolist() == [3.0, 0.0, 4.0, 8.0]
    assert even.robot_actions[:, 1].tolist() == [20.0, 20.0, 30.0, 40.0]
    with pytest.raises(ValueError, match="cannot be resampled to 10 frames per second"):
        resampled(episode, np.array([0.0, 0.05, 0.05, 0.3, 0.4]))


EXPECTED = {
    "lerobot_v20_gr1_sim": "absolute (they follow the state)",
    "lerobot_v21_arx_x5_dual": "absolute (they follow the state)",
    "lerobot_v21_cr5_real": "absolute in gripper (by their names)",
    "video_language_table_irasim": "changes (deltas or velocities) (by their names)",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_real_sets_say_what_their_actions_are(name: str) -> None:
    if not (ROBOTS / name).is_dir():
        pytest.skip("no shared robot data here")
    notes = open_dataset(ROBOTS / name, verify=False)[0].notes
    assert any(EXPECTED[name] in note for note in notes), notes


@pytest.mark.parametrize(
    "command", ["inspect", "convert", "quickstart", "rollout", "sensitivity", "diagnose", "play"]
)
def test_every_command_that_opens_data_takes_a_mapping(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert "--mapping YAML" in capsys.readouterr().out


def test_a_training_takes_a_mapping_and_refuses_unknown_episodes(tmp_path: Path) -> None:
    root = write_npz(tmp_path / "set", 4, frames=12)
    mapping = tmp_path / "names.yaml"
    mapping.write_text("embodiment: mine\naction_names: [a, b, c, d]\n")
    clip = ClipConfig(num_frames=5, height=16, width=16)
    config = DataConfig(paths=(str(root),), synthetic_episodes=0, mapping=str(mapping), clip=clip)
    index = open_index(config)
    assert index.normalizer().stats["mine"].names == ("a", "b", "c", "d")
    uid = index.records[0].uid
    splits = SplitConfig(val=0.0, test=0.0, test_uids=(f"{uid}x",))
    with pytest.raises(ValueError, match=f"lists '{uid}x', no episode has this name; near it: {uid}"):
        open_index(replace(config, splits=splits))
