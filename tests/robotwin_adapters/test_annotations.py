"""JSON lines and NPY annotations, and flat folders that need no mapping."""

import json
from pathlib import Path

import numpy as np
import pytest

from robotwin_adapters.annotations import read_annotation
from robotwin_adapters.open_dataset import describe_format, open_dataset
from tests.support.array_sets import pictures, walk
from worldmodel.data.video import write_video


def write_flat(folder: Path, suffix: str, count: int = 2, frames: int = 9) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        write_video(folder / f"take{number}.mp4", iter(pictures(frames)), 10)
        actions, states = walk(frames, 3, number), walk(frames, 4, number + 50)
        path = folder / f"take{number}{suffix}"
        if suffix == ".npy":
            np.save(path, actions)
        elif suffix == ".jsonl":
            pairs = zip(actions.tolist(), states.tolist(), strict=True)
            rows = ({"action": action, "observation": {"state": state}} for action, state in pairs)
            path.write_text("\n".join(map(json.dumps, rows)))
        elif suffix == ".npz":
            np.savez(path, actions=actions, state=states)
        else:
            path.write_text(json.dumps({"action": actions.tolist(), "state": states.tolist()}))
    return folder


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".npz", ".npy"])
def test_flat_folders(tmp_path: Path, suffix: str) -> None:
    source = open_dataset(write_flat(tmp_path / "takes", suffix))
    assert (describe_format(source), len(source)) == (f"videos + {suffix[1:]} annotations", 2)
    episode = source[1]
    assert (episode.uid, tuple(episode.frames), episode.embodiment) == ("take1", ("camera",), "takes")
    np.testing.assert_allclose(episode.robot_actions, walk(9, 3, 1)[:-1])
    if suffix != ".npy":
        np.testing.assert_allclose(episode.robot_states, walk(9, 4, 51))


def test_states_alone_give_the_next_state(tmp_path: Path) -> None:
    folder = write_flat(tmp_path / "takes", ".json", 1)
    (folder / "take0.json").write_text(json.dumps({"states": walk(9, 2).tolist()}))
    episode = open_dataset(folder)[0]
    np.testing.assert_allclose(episode.robot_actions, walk(9, 2)[1:])


def test_structured_arrays_are_columns(tmp_path: Path) -> None:
    table = np.zeros(5, [("x", "f4"), ("grip", "f4", (2,))])
    np.save(tmp_path / "a.npy", table)
    found = read_annotation(tmp_path / "a.npy")
    assert {name: values.shape for name, values in found.items()} == {"x": (5,), "grip": (5, 2)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n{"b": 2}', "line 2 has other keys than the first: a, b"),
        ('{"a": 1}\n[2]', "expected a JSON object in every line"),
        ('{"a": 1', "cannot be read as jsonl"),
    ],
)
def test_wrong_lines_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.jsonl: .*{message}|{message}"):
        read_annotation(tmp_path / "a.jsonl")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_columns_that_begin_with_action_and_state(tmp_path: Path, suffix: str) -> None:
    folder = write_flat(tmp_path / "takes", ".json", 1)
    (folder / "take0.json").unlink()
    rows = np.concatenate([walk(9, 2), walk(9, 1, 5)], axis=1).tolist()
    if suffix == ".csv":
        lines = ["action_x,action_y,state_x", *(",".join(map(str, row)) for row in rows)]
    else:
        lines = [json.dumps({"action": {"x": x, "y": y}, "state": {"x": s}}) for x, y, s in rows]
    (folder / f"take0{suffix}").write_text("\n".join(lines))
    episode = open_dataset(folder)[0]
    np.testing.assert_allclose(episode.robot_actions, walk(9, 2)[:-1])
    np.testing.assert_allclose(episode.robot_states, walk(9, 1, 5))
    assert suffix != ".csv" or episode.action_names == ("action_x", "action_y")


def test_a_loggers_csv_with_spaces_empty_lines_and_further_columns(tmp_path: Path) -> None:
    folder = write_flat(tmp_path / "takes", ".json", count=1)
    (folder / "take0.json").unlink()
    rows = "\n".join(f"{0.1 * step}, {x:.6f}, {y:.6f}, 1" for step, (x, y) in enumerate(walk(9, 2)))
    (folder / "take0.csv").write_text(f"\ufefftime, action_x, action_y, gripper cmd\n{rows}\n\n", "utf-8")
    episode = open_dataset(folder)[0]
    assert episode.action_names == ("action_x", "action_y")
    np.testing.assert_allclose(episode.robot_actions, walk(9, 2)[:-1], atol=1e-6)
    assert any("columns not used: time, gripper cmd" in note for note in episode.notes)
    (folder / "take0.csv").write_text("action_x,action_y\n1,2\n3\n")
    with pytest.raises(ValueError, match=r"take0\.csv.*row 2 has 1 values, the first line names 2"):
        open_dataset(folder)[0]
