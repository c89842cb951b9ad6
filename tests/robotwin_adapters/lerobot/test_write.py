"""LeRobot v3.0 writer: exact numbers after a round trip, the layout LeRobot reads, whole folders or none."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from robotwin_adapters.lerobot.dataset import LerobotDataset
from robotwin_adapters.lerobot.write import write_lerobot
from worldmodel.types import Episode


@dataclass(frozen=True)
class ArrayFrames:
    frames: np.ndarray

    @property
    def size(self) -> tuple[int, int]:
        return self.frames.shape[1], self.frames.shape[2]

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, indices):
        return self.frames[list(indices)]


@dataclass(frozen=True)
class Episodes:
    episodes: tuple[Episode, ...]
    name: str = "episodes"

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, index: int) -> Episode:
        return self.episodes[index]


def smooth_episode(seed: int, length: int, dtype: type = np.float64, fps: float = 50 / 3) -> Episode:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:32, 0:48]
    frames = np.stack([np.stack([5 * x, 8 * y, 0 * x + 40 * seed + 4 * t], -1) for t in range(length)])
    states = rng.normal(size=(length, 3)).astype(dtype)
    return Episode(
        uid=f"data/episode{seed}",
        source=f"episode{seed}.hdf5",
        frames={"head_camera": ArrayFrames(frames.astype(np.uint8))},
        robot_actions=rng.normal(size=(length - 1, 3)).astype(dtype),
        action_names=("a", "b", "grip"),
        fps=fps,
        embodiment="bot",
        task="place",
        robot_states=states,
        state_names=("a", "b", "grip"),
        instructions=(f"place number {seed % 2}", "another wording"),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("episodes_per_file", [1, 2, 50])
def test_round_trip_is_exact_for_numbers(tmp_path: Path, dtype: type, episodes_per_file: int) -> None:
    source = Episodes(tuple(smooth_episode(seed, 6 + seed, dtype) for seed in range(3)))
    assert write_lerobot(source, tmp_path / "set", episodes_per_file=episodes_per_file) == 3
    back = LerobotDataset(tmp_path / "set")
    assert len(back) == 3
    for written, read in zip(source.episodes, (back[i] for i in range(3)), strict=True):
        assert read.robot_actions.dtype == dtype
        assert np.array_equal(read.robot_actions, written.robot_actions)
        assert np.array_equal(read.robot_states, written.robot_states)
        assert (read.fps, read.embodiment) == (written.fps, written.embodiment)
        assert (read.action_names, read.state_names) == (written.action_names, written.state_names)
        assert read.instructions == written.instructions[:1]
        pixels = read.frames["head_camera"].read(range(len(read.frames["head_camera"]))).astype(int)
        assert np.abs(pixels - written.frames["head_camera"].frames).mean() < 3
    videos = list((tmp_path / "set/videos").rglob("*.mp4"))
    assert len(videos) == -(-3 // episodes_per_file)


def test_actions_that_equal_the_state_come_back_unshifted(tmp_path: Path) -> None:
    # A reader that guesses would shift them; the writer's own statement decides.
    episode = smooth_episode(0, 8)
    episode = replace(episode, robot_actions=episode.robot_states[:-1])
    write_lerobot(Episodes((episode,)), tmp_path / "set")
    assert np.array_equal(LerobotDataset(tmp_path / "set")[0].robot_actions, episode.robot_actions)


def test_layout_is_the_one_lerobot_documents(tmp_path: Path) -> None:
    source = Episodes((smooth_episode(0, 6), smooth_episode(1, 9)))
    write_lerobot(source, tmp_path / "set")
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_frames"]) == ("v3.0", 17, 15)
    table = pq.read_table(tmp_path / "set/data/chunk-000/file-000.parquet")
    assert table["index"].to_pylist() == list(range(15))
    assert table["task_index"].to_pylist() == [0] * 6 + [1] * 9
    assert pq.read_metadata(tmp_path / "set/data/chunk-000/file-000.parquet").num_row_groups == 2
    rows = pq.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(row["dataset_from_index"], row["dataset_to_index"]) for row in rows] == [(0, 6), (6, 15)]
    assert rows[1]["videos/observation.images.head_camera/from_timestamp"] == pytest.approx(6 / 17)
    tasks = pq.read_table(tmp_path / "set/meta/tasks.parquet")
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    assert tasks["task"].to_pylist() == ["place number 0", "place number 1"]


def test_statistics_are_those_of_the_rows(tmp_path: Path) -> None:
    source = Episodes((smooth_episode(0, 30), smooth_episode(1, 50)))
    write_lerobot(source, tmp_path / "set")
    stats = json.loads((tmp_path / "set/meta/stats.json").read_text())
    states = np.concatenate([episode.robot_states for episode in source.episodes])
    recorded = stats["observation.state"]
    assert np.allclose(recorded["mean"], states.mean(axis=0))
    assert np.allclose(recorded["std"], states.std(axis=0))
    assert np.allclose([recorded["min"], recorded["max"]], [states.min(axis=0), states.max(axis=0)])
    assert recorded["count"] == [80]
    row = pq.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet").to_pylist()[0]
    first = source.episodes[0].robot_states
    assert np.allclose(row["stats/observation.state/q01"], np.quantile(first, 0.01, axis=0))
    assert np.allclose(row["stats/observation.state/q99"], np.quantile(first, 0.99, axis=0))
    image = stats["observation.images.head_camera"]
    assert np.shape(image["mean"]) == (3, 1, 1)
    assert image["max"][0][0][0] == pytest.approx(5 * 47 / 255)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embodiment": "other"}, "other at 16.67 fps; a dataset has one robot and rate, here bot"),
        ({"fps": 10.0}, "bot at 10 fps; a dataset has one robot and rate"),
        ({"action_names": ("a", "b", "c")}, r"episode1\.hdf5: action not as in episode0\.hdf5"),
        ({"robot_states": None, "state_names": ()}, r"episode1\.hdf5: observation\.state not as in"),
    ],
)
def test_mixed_episodes_are_refused_and_leave_nothing(tmp_path: Path, change: dict, message: str) -> None:
    episodes = (smooth_episode(0, 6), replace(smooth_episode(1, 6), **change))
    with pytest.raises(ValueError, match=message):
        write_lerobot(Episodes(episodes), tmp_path / "set")
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(ValueError, match="exists already"):
        write_lerobot(Episodes((smooth_episode(0, 6),)), tmp_path / "set")
    with pytest.raises(ValueError, match="at least one episode"):
        write_lerobot(Episodes(()), tmp_path / "none")
