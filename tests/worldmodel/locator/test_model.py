import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from worldmodel.locator.model import (
    BATCH,
    CELL,
    Locator,
    LocatorConfig,
    beside_enlarged,
    peak_places,
    target_map,
)
from worldmodel.locator.train import (
    LocatorBatch,
    LocatorRunConfig,
    load_batches,
    locator_step,
    main,
    measure,
    spoiled,
    train,
)
from worldmodel.training.loop.distributed import MachineConfig
from worldmodel.training.loop.fit import FitConfig, fit
from worldmodel.training.loop.optim import OptimConfig

SMALL = LocatorConfig(height=32, width=32, channels=16)


def dots(count, seed=0, size=32):
    """A red, a green and a blue dot of 5x5 pixels with soft edges: the points to find."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(4, size - 4, (count, 3, 2))
    y, x = np.mgrid[:size, :size] + 0.5
    shape = np.exp(-((x - points[..., :1, None]) ** 2 + (y - points[..., 1:, None]) ** 2) / 8)
    frames = (40 + 200 * shape).clip(0, 255).astype(np.uint8)
    seen = np.ones((count, 3), bool)
    seen[::4, 2] = False
    frames[::4, 2] = 40
    tensors = (torch.from_numpy(v) for v in (frames, points.astype(np.float32), np.ones_like(seen), seen))
    return LocatorBatch(*tensors, tuple("ab"[i % 2] for i in range(count)))


def test_targets_sum_to_one_and_their_peak_is_the_place():
    points = torch.tensor([[[10.3, 20.9], [31.0, 5.5], [16.0, 16.0]]])
    target = target_map(points, 48, 32)
    assert target.shape == (1, 3, 24, 16)
    assert target.sum((2, 3)).allclose(torch.ones(1, 3))
    found = CELL * peak_places(target.log())
    assert (found[:, [0, 2]] - points[:, [0, 2]]).abs().max() < 0.15  # finer than a cell of 2 pixels
    assert (found - points).abs().max() < 1.1  # at the border half of the window is missing


def test_a_block_beside_the_enlarged_is_the_block_of_the_enlarged():
    torch.manual_seed(0)
    block = Locator(SMALL).up_middle.double()
    fine = torch.randn(2, 32, 6, 10, dtype=torch.float64)
    coarse = torch.randn(2, 48, 3, 5, dtype=torch.float64)
    enlarged = coarse.repeat_interleave(2, 2).repeat_interleave(2, 3)
    expected = block(torch.cat([fine, enlarged], 1))
    answer = beside_enlarged(block, fine, coarse)
    assert (answer - expected).abs().max() < 1e-12
    ours, theirs = (
        torch.autograd.grad(made.square().sum(), block[0].weight)[0] for made in (answer, expected)
    )
    assert (ours - theirs).abs().max() < 1e-9


def test_frames_that_stand_still_are_looked_at_once():
    class Counting(Locator):
        def forward(self, frames):
            looked_at.append(len(frames))
            return super().forward(frames)

    torch.manual_seed(0)
    looked_at, locator, frames = [], Counting(SMALL).eval(), torch.rand(BATCH + 4, 3, 32, 32)
    frames[2:5] = frames[2]
    located = locator.locate(frames)
    assert looked_at == [BATCH, 2]
    one_by_one = [locator.locate(frame[None]) for frame in frames]
    assert located.points.shape == (BATCH + 4, 3, 2)
    assert (located.points - torch.cat([one.points for one in one_by_one])).abs().max() < 1e-4
    assert (located.confidence - torch.cat([one.confidence for one in one_by_one])).abs().max() < 1e-5


def test_places_are_in_the_pixels_of_the_frames():
    class Sure(Locator):
        def forward(self, frames):
            assert frames.shape[-2:] == (32, 32)
            place = torch.tensor([[10.0, 20.0], [16.0, 16.0], [24.0, 8.0]]).expand(len(frames), 3, 2)
            return target_map(place, 32, 32).log(), torch.tensor([[3.0, -3.0, 0.1]]).expand(len(frames), 3)

    located = Sure(SMALL).locate(torch.rand(2, 3, 64, 128))
    expected = torch.tensor([[40.0, 40.0], [64.0, 32.0], [96.0, 16.0]])
    assert (located.points - expected).abs().max() < 0.5
    assert located.is_visible[0].tolist() == [True, False, True]


def test_a_saved_locator_says_the_same_and_carries_its_error(tmp_path):
    torch.manual_seed(0)
    locator = Locator(SMALL).eval()
    locator.save_pretrained(tmp_path / "l", {"finch left gripper median px": 0.7})
    again = Locator.from_pretrained(tmp_path / "l")
    frames = torch.rand(2, 3, 32, 32)
    assert torch.equal(again.locate(frames).points, locator.locate(frames).points)
    assert (
        json.loads((tmp_path / "l" / "locator.json").read_text())["errors"]["finch left gripper median px"]
        == 0.7
    )
    with pytest.raises(ValueError, match=r"not a locator folder: expected a locator\.json"):
        Locator.from_pretrained(tmp_path)


def test_it_learns_to_find_dots(tmp_path):
    config = FitConfig(
        steps=70,
        global_batch=16,
        micro_batch=16,
        trackers=(),
        optim=OptimConfig(lr=4e-3, schedule="cosine", decay_fraction=0.5),
        machine=MachineConfig(device="cpu"),
    )
    torch.manual_seed(0)
    model = Locator(LocatorConfig(height=32, width=32, channels=8))
    fit(locator_step, model, dots(128), config, tmp_path, load=load_batches)
    errors = measure(model.eval(), dots(48, seed=1))
    medians = [value for name, value in errors.items() if "median" in name]
    assert len(medians) == 6
    assert max(medians) < 1.5
    assert errors["visibility_accuracy"] > 0.85


def test_training_reads_several_datasets_and_stores_half_precision(tmp_path, monkeypatch, capsys):
    frames = {str(tmp_path / name): number for number, name in enumerate(("one", "two=2"))}

    class Dataset(list):
        def __init__(self, path, **_):
            super().__init__(SimpleNamespace(uid=f"{path}/episode{i}") for i in range(12))
            self.number = frames[path]

    def labeled(dataset, number, *_):
        batch = dots(4, seed=100 * dataset.number + number)
        arrays = {
            name: getattr(batch, name).numpy() for name in ("frames", "points", "is_known", "is_visible")
        }
        return SimpleNamespace(**arrays, embodiment=f"robot{dataset.number}")

    monkeypatch.setattr("worldmodel.locator.train.RobotwinDataset", Dataset)
    monkeypatch.setattr("worldmodel.locator.train.label_episode", labeled)
    for path in frames:
        Path(path).mkdir()
    settings = ["model.height=32", "model.width=32", "model.channels=8", "fit.steps=2", "fit.global_batch=4"]
    settings += ["fit.micro_batch=4", "fit.trackers=[]", "splits.val=0.3", f"output={tmp_path / 'run'}"]
    assert main([*frames, *settings]) == 0
    assert {"robot0 object median px", "robot1 object median px"} <= {
        line[:40].strip() for line in capsys.readouterr().out.splitlines()
    }
    stored = load_file(tmp_path / "run/locator/locator.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float16}
    assert {value.dtype for value in Locator.from_pretrained(tmp_path / "run/locator").parameters()} == {
        torch.float32
    }
    with pytest.raises(SystemExit):
        main(["fit.steps=2"])
    assert "DATA is missing" in capsys.readouterr().err


def test_measure_counts_what_is_visible_only():
    class Perfect(Locator):
        def locate(self, frames):
            located = super().locate(frames)
            return type(located)(truth.points + torch.tensor([0.6, 0.8]), torch.ones(len(frames), 3))

    truth = dots(8)
    errors = measure(Perfect(SMALL).eval(), truth)
    assert errors["a left gripper median px"] == pytest.approx(1.0)
    assert errors["b object median px"] == pytest.approx(1.0)
    assert errors["visibility_accuracy"] == pytest.approx(22 / 24)


def test_spoiled_frames_stay_frames_and_depend_on_the_generator_alone():
    frames = dots(6).frames.float() / 255
    a, b = (spoiled(frames, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(a, b)
    assert a.shape == frames.shape
    assert a.min() >= 0
    assert a.max() <= 1
    assert not torch.equal(a, frames)
    assert (a - frames).abs().mean() < 0.2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_gripper_within_one_and_a_half_pixels_on_every_robot(tmp_path):
    collect = pytest.importorskip("robotwin_adapters.tabletop.collect")
    from robotwin_adapters.tabletop.record import RecordingConfig

    robots = ("finch", "heron", "wren", "crane")
    configs = [RecordingConfig(task, robot) for task in ("place_a2b_left", "babble") for robot in robots]
    halves = [tmp_path / "a2b", tmp_path / "babble"]
    for folder, some in zip(halves, (configs[: len(robots)], configs[len(robots) :]), strict=True):
        collect.collect_all(folder, some, episodes=20, seed=0, workers=2)
    config = LocatorRunConfig(
        output=str(tmp_path / "run"),
        fit=FitConfig(
            steps=1500,
            global_batch=32,
            micro_batch=32,
            trackers=(),
            optim=OptimConfig(lr=2e-3, warmup_steps=50, schedule="cosine"),
        ),
    )
    errors = train([str(folder) for folder in halves], config, resume=False)
    medians = {name: value for name, value in errors.items() if "gripper median" in name}
    assert len(medians) == 2 * len(robots)
    assert max(medians.values()) < 1.5, medians
