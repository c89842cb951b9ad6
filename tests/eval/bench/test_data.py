import json
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.data import (
    HDF5,
    LATENTS,
    MP4,
    PLAIN,
    BenchConfig,
    main,
    make_datasets,
    memory_of,
    run,
    show,
    write_episodes,
)

SMALL = BenchConfig(
    episodes=3,
    frames=33,
    rounds=1,
    seconds=0.05,
    batch_size=2,
    sizes=("64x64",),
    workers=(0,),
    memory_episodes=(),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bench")
    write_episodes(path, SMALL, (64, 64))
    return path


def test_all_ways_read_the_same_clips(folder: Path) -> None:
    datasets = make_datasets(folder, SMALL, (64, 64))
    assert [len(dataset) for dataset in datasets.values()] == [6] * 4
    for i in range(6):
        frames, actions = datasets[PLAIN][i]
        ours = datasets[HDF5][i]
        assert torch.equal(frames, ours.frames)  # OpenCV is the other implementation of the color rule
        moving = ours.robot_actions.abs() < 0.999  # neither clipped nor constant
        moving[:, -1] = False
        assert moving.float().mean() > 0.5
        torch.testing.assert_close(actions[moving] - 1, ours.robot_actions[moving], atol=1e-5, rtol=0)
        torch.testing.assert_close(datasets[MP4][i].robot_actions, ours.robot_actions, atol=1e-5, rtol=0)
        difference = (datasets[MP4][i].frames.int() - frames.int()).abs().float().mean()
        assert difference < 6  # two lossy encodings of one picture
        assert torch.equal(datasets[LATENTS][i].robot_actions, ours.robot_actions)
        assert datasets[LATENTS][i].latents.shape == (16, 5, 8, 8)


def test_cached_latents_are_far_ahead_of_the_plain_loop() -> None:
    result = run(SMALL)
    (case,) = result["cases"]
    assert list(case["ways"]) == [PLAIN, HDF5, MP4, LATENTS]
    assert case["ways"][PLAIN]["times_plain"] == 1
    # The script itself measures about 60; the type checks of a test run weigh most on the fastest way.
    assert case["ways"][LATENTS]["times_plain"] > 2
    assert all(np.isfinite(figure) for way in case["ways"].values() for figure in way.values())
    assert len(show(result["cases"]).splitlines()) == 5
    json.dumps(result)


def test_memory_does_not_follow_the_number_of_episodes(folder: Path) -> None:
    few, many = (memory_of(folder, SMALL, episodes)["reading_mb"] for episodes in (10, 200))
    assert many - few < 15


def test_help_lists_every_key(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["bench_data.py", "--help"])
    main()
    text = capsys.readouterr().out
    assert all(f"  {name}=" in text for name in vars(SMALL))
