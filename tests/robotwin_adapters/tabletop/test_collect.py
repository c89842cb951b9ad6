import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from robotwin_adapters.actions import POSE_NAMES
from robotwin_adapters.robotwin.checksum import numbers_digest
from robotwin_adapters.robotwin.dataset import RobotwinDataset
from robotwin_adapters.tabletop import collect as collect_module
from robotwin_adapters.tabletop.collect import CollectSummary, collect, collect_all, recording_pool
from robotwin_adapters.tabletop.record import RecordingConfig, SimulatedEpisode, record_episode
from worldmodel.cli import main

CONFIG = RecordingConfig("babble", "finch", width=20, height=16, supersample=False)


class ScriptedPool(Executor):
    """Records in this process, but some seeds fail and one seed is interrupted."""

    def __init__(self, failing: tuple[int, ...] = (), interrupt_at: int = -1) -> None:
        self.failing, self.interrupt_at = failing, interrupt_at
        self.seeds: list[int] = []

    def submit(self, function, /, config: RecordingConfig, seed: int) -> Future:
        self.seeds.append(seed)
        if seed == self.interrupt_at:
            raise KeyboardInterrupt
        future: Future[SimulatedEpisode | None] = Future()
        future.set_result(None if seed in self.failing else function(config, seed))
        return future


def fill(folder: Path, episodes: int, pool: Executor | None = None, **change) -> CollectSummary:
    config = replace(CONFIG, **change)
    return collect(folder, config, episodes=episodes, seed=0, pool=pool or ScriptedPool(), run_ahead=2)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    fill(folder, 3)
    return folder


def test_layout_is_robotwins(three: Path) -> None:
    assert set(files(three)) == {
        "collect.json",
        "scene_info.json",
        "seed.txt",
        *(f"data/episode{index}.hdf5" for index in range(3)),
        *(f"instructions/episode{index}.json" for index in range(3)),
    }
    assert (three / "seed.txt").read_text() == "0 1 2 "
    with h5py.File(three / "data/episode1.hdf5") as file:
        count = len(file["joint_action/vector"])
        assert file["joint_action/vector"].shape == (count, 14)
        assert file["observation/desk_camera/rgb"].shape == (count,)
        assert file["observation/desk_camera/extrinsic_cv"].shape == (count, 3, 4)


def test_the_reader_recovers_everything(three: Path) -> None:
    dataset = RobotwinDataset(three)
    truth = record_episode(CONFIG, 1)
    assert truth is not None
    episode = dataset[1]
    assert len(dataset) == 3
    assert (episode.embodiment, episode.task) == ("finch", "babble")
    assert episode.fps == pytest.approx(50 / 3)
    assert episode.instructions == tuple(truth.instructions["seen"])
    np.testing.assert_allclose(episode.robot_actions[:, :6], truth.left_arm[1:], rtol=1e-6)
    seen = episode.frames["desk_camera"].read(range(episode.num_frames)).astype(int)
    drawn = truth.cameras["desk_camera"].rgb.astype(int)
    assert np.abs(seen - drawn).mean() < 10  # JPEG with halved color, on very small pictures
    warm_seen, warm_drawn = (picture[..., 0] - picture[..., 2] for picture in (seen, drawn))
    assert np.corrcoef(warm_seen.ravel(), warm_drawn.ravel())[0, 1] > 0.7  # red and blue not exchanged


def test_commands_and_measurements_are_read_apart(three: Path) -> None:
    truth = record_episode(CONFIG, 1)
    assert truth is not None
    commanded, measured = (
        RobotwinDataset(three, action_space=space)[1] for space in ("pose_commands", "measured_poses")
    )
    assert (commanded.action_space, measured.action_space) == ("pose_commands", "measured_poses")
    assert commanded.action_names == measured.action_names == POSE_NAMES
    np.testing.assert_allclose(
        commanded.robot_actions[:, :3], truth.left_commanded_endpose[1:, :3], atol=1e-6
    )
    np.testing.assert_allclose(measured.robot_actions[:, :3], truth.left_endpose[1:, :3], atol=1e-6)
    np.testing.assert_array_equal(commanded.robot_actions[:, [7, 15]], measured.robot_actions[:, [7, 15]])
    assert np.abs(commanded.robot_actions - measured.robot_actions).max() > 0.005
    assert "poses are measured, grippers are commanded" in measured.notes
    assert any("not measured" in note for note in commanded.notes)


def test_a_folder_without_commanded_poses_is_read_but_not_gone_on_with(three: Path, tmp_path: Path) -> None:
    older = Path(shutil.copytree(three, tmp_path / "older"))
    state = json.loads((older / "collect.json").read_text())
    del state["settings"]["commanded_poses"]
    (older / "collect.json").write_text(json.dumps(state))
    for path in (older / "data").iterdir():
        with h5py.File(path, "r+") as file:
            del file["commanded_endpose"]
            file.attrs["numbers_sha256"] = np.bytes_(numbers_digest(file))
    with pytest.raises(ValueError, match="commanded_poses was None, now True"):
        fill(older, 4)
    for space in ("joint_commands", "measured_poses"):
        before, now = (RobotwinDataset(folder, action_space=space)[2] for folder in (older, three))
        np.testing.assert_array_equal(before.robot_actions, now.robot_actions)
    with pytest.raises(ValueError, match=r"episode0\.hdf5: the file holds no commanded poses"):
        RobotwinDataset(older, action_space="pose_commands")[0]


def test_the_number_of_workers_changes_no_byte(three: Path, tmp_path: Path) -> None:
    (summary,) = collect_all(tmp_path, [CONFIG], episodes=3, seed=0, workers=2)
    assert (summary.episodes, summary.tried) == (3, 3)
    assert files(tmp_path) == files(three)


def test_only_successes_are_kept_in_seed_order(tmp_path: Path) -> None:
    summary = fill(tmp_path, 2, ScriptedPool(failing=(0, 2)))
    assert (summary.episodes, summary.tried, summary.successes) == (2, 4, 2)
    assert (tmp_path / "seed.txt").read_text() == "1 3 "
    scenes = json.loads((tmp_path / "scene_info.json").read_text())
    assert [scenes[f"episode_{index}"]["seed"] for index in (0, 1)] == [1, 3]


def test_an_interrupted_run_goes_on_and_ends_the_same(three: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, 3, ScriptedPool(interrupt_at=2))
    assert RobotwinDataset(tmp_path)[0].task == "babble"
    pool = ScriptedPool()
    fill(tmp_path, 3, pool)
    assert pool.seeds[0] == json.loads((three / "collect.json").read_text())["next_seed"] - 2
    assert files(tmp_path) == files(three)


def test_more_episodes_can_be_asked_for_later_and_fewer_do_no_harm(three: Path, tmp_path: Path) -> None:
    fill(tmp_path, 1)
    fill(tmp_path, 3)
    pool = ScriptedPool()
    assert fill(tmp_path, 2, pool).episodes == 3
    assert pool.seeds == []
    assert files(tmp_path) == files(three)


def test_lost_and_half_written_files_are_made_again(three: Path, tmp_path: Path) -> None:
    fill(tmp_path, 3)
    (tmp_path / "data/episode1.hdf5").unlink()
    (tmp_path / "data/.episode7.hdf5.123.writing").write_bytes(b"half")
    fill(tmp_path, 3)
    assert files(tmp_path) == files(three)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"width": 24}, "width was 20, now 24"),
        ({"cameras": ("desk", "head")}, r"cameras was \['desk'\], now \['desk', 'head'\]"),
        ({"randomize": True}, "randomize was False, now True"),
        ({"embodiment": "crane"}, "embodiment was 'finch', now 'crane'"),
        ({"hold": "left"}, "hold was None, now 'left'"),
    ],
)
def test_other_settings_are_refused_by_name(three: Path, change: dict, difference: str) -> None:
    before = files(three)
    with pytest.raises(ValueError, match=difference):
        fill(three, 4, **change)
    assert files(three) == before


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"holds files but no collect.json"):
        fill(tmp_path, 1)
    assert set(files(tmp_path)) == {"thesis.txt"}


def test_a_broken_state_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "collect.json").write_text('{"settings": ')
    with pytest.raises(ValueError, match=r"collect\.json: not a state file"):
        fill(tmp_path, 1)


def test_an_expert_that_never_succeeds_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_module, "MAX_FAILURES", 5)
    with pytest.raises(ValueError, match="failed on 5 seeds in a row, up to seed 4"):
        fill(tmp_path, 1, ScriptedPool(failing=tuple(range(9))))


def test_failures_are_kept_on_request_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robotwin_adapters.tabletop.simulate.is_success", lambda *_: False)
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "without", 1, ScriptedPool(interrupt_at=1))
    assert not (tmp_path / "without" / "data").exists()
    assert fill(tmp_path / "with", 1, keep_failures=True).successes == 0
    scenes = json.loads((tmp_path / "with" / "scene_info.json").read_text())
    assert scenes["episode_0"]["success"] is False


def test_several_robots_and_tasks_get_folders_of_their_own(tmp_path: Path) -> None:
    command = [
        "collect",
        "--task",
        "babble",
        "--embodiment",
        "finch",
        "crane",
        "--episodes",
        "1",
        "--size",
        "20",
        "16",
    ]
    assert main([*command, "--out", str(tmp_path), "--workers", "1", "--no-supersample"]) == 0
    episodes = [RobotwinDataset(tmp_path / "babble" / name)[0] for name in ("finch", "crane")]
    assert [episode.robot_actions.shape[1] for episode in episodes] == [14, 16]
    assert episodes[0].frames["desk_camera"].size == (16, 20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "juggle"], "task is one of place_a2b_left, place_a2b_right, babble, carry; got 'juggle'"),
        (["--embodiment", "ostrich"], "embodiment is one of finch, heron, wren, crane, swift; got 'ostrich'"),
        (["--camera", "moon"], "camera is one of desk, head, front, left_wrist, right_wrist; got 'moon'"),
        (["--hold", "both"], "hold is left or right, and holds an arm of task babble; got 'both' for babble"),
        (["--task", "place_a2b_left", "--hold", "left"], "got 'left' for place_a2b_left"),
        (["--size", "64", "8"], "at least 16x16 pixels, got 64x8"),
        (["--size", "100000", "64"], "at most 4096x4096 pixels, got 100000x64"),
        (["--episodes", "0"], "episodes >= 1"),
        (["--seed", "-1"], "seed >= 0"),
        (["--workers", "0"], "workers must be at least 1, got 0"),
        (["--out", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_bad_arguments_end_with_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "collect",
        "--task",
        "babble",
        "--embodiment",
        "finch",
        "--out",
        str(tmp_path / "out"),
        *options,
    ]
    assert main(command) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("worldmodel collect: ")
    assert message in error
    assert "\n" not in error


def test_a_worker_that_dies_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ChildProcessError, match="worker process died"), recording_pool(2) as pool:
        pool.submit(os._exit, 3).result()


def test_ctrl_c_does_not_reach_a_worker_that_is_still_starting() -> None:
    with recording_pool(2) as pool:
        answer = pool.submit(os.getpid)
        (worker,) = multiprocessing.active_children()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGINT)  # long before the new interpreter has imported anything
        assert answer.result(timeout=60) == worker.pid


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def ctrl_c_in_a_destructor() -> None:
    class Dying:
        def __del__(self) -> None:
            ctrl_c()

    Dying()


class InterruptedPool(ScriptedPool):
    """Ctrl-C comes while an episode is recorded."""

    def __init__(self, *signals: Callable[[], None]) -> None:
        super().__init__()
        self.signals = signals

    def submit(self, function, /, config: RecordingConfig, seed: int) -> Future:
        future = super().submit(function, config, seed)
        for send in self.signals:
            send()
        return future


@pytest.mark.usefixtures("python_hears_ctrl_c")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("episodes", [1, 3])
@pytest.mark.parametrize("send", [ctrl_c, ctrl_c_in_a_destructor])
def test_the_episode_at_hand_is_kept_wherever_ctrl_c_comes(
    tmp_path: Path, send: Callable[[], None], episodes: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path, CONFIG, episodes=episodes, seed=0, pool=InterruptedPool(send))
    assert len(RobotwinDataset(tmp_path)) == 1


@pytest.mark.usefixtures("python_hears_ctrl_c")
def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path, CONFIG, episodes=3, seed=0, pool=InterruptedPool(ctrl_c, ctrl_c))
    assert not list(tmp_path.glob("data/*"))


def test_ctrl_c_saves_what_is_done_and_the_same_command_finishes(three: Path, tmp_path: Path) -> None:
    script = "import sys; from worldmodel.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "collect", "--task", "babble", "--embodiment", "finch"]
    command += ["--size", "20", "16", "--no-supersample", "--workers", "2", "--out", str(tmp_path)]
    running = subprocess.Popen(
        [*command, "--episodes", "500"], start_new_session=True, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 200
    while not (tmp_path / "data/episode0.hdf5").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors.decode()
    assert b"Traceback" not in errors
    done = len(RobotwinDataset(tmp_path))
    assert 1 <= done < 500
    summary = fill(tmp_path, done + 1)
    assert summary.episodes == done + 1
    for name in ("data/episode0.hdf5", "instructions/episode0.json"):
        assert (tmp_path / name).read_bytes() == (three / name).read_bytes()
