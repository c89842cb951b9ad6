from pathlib import Path

import pytest
import torch

from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import ClipDataset, build_clip_dataset
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.quickstart.direct import DirectConfig, DirectPredictor, train_direct


@pytest.fixture(scope="module")
def clips() -> ClipDataset:
    source = synthetic_source(num_episodes=4, num_frames=18, size=(32, 48))
    splits = SplitConfig(val=0.0, test=0.0)
    return build_clip_dataset(
        [source], "train", ClipConfig(num_frames=9, height=32, width=48, step=1), splits
    )


def test_any_number_of_frames_and_any_aspect() -> None:
    model = DirectPredictor(5, torch.rand(3, 32, 48), DirectConfig((8, 16, 16), 8)).eval()
    given = torch.rand(2, 3, 32, 48)
    for count in (4, 12):
        made = model(given, torch.rand(2, count, 5))
        assert made.shape == (2, count, 3, 32, 48)
    with pytest.raises(ValueError, match="multiples of 8, got 30x48"):
        DirectPredictor(5, torch.rand(3, 30, 48), DirectConfig())


def test_frames_depend_on_earlier_commands_alone() -> None:
    torch.manual_seed(0)
    model = DirectPredictor(5, torch.rand(3, 32, 32), DirectConfig((8, 16, 16), 8)).eval()
    for part in (model.leave, model.early):
        torch.nn.init.normal_(part.weight, std=0.1)
    given, actions = torch.rand(1, 3, 32, 32), torch.rand(1, 8, 5)
    made, changed = model(given, actions), actions.clone()
    changed[:, 4:] += 1
    other = model(given, changed)
    torch.testing.assert_close(other[:, :4], made[:, :4])
    assert (other[:, 4:] - made[:, 4:]).abs().max() > 1e-3


def test_a_finished_training_is_found_again(clips: ClipDataset, tmp_path: Path) -> None:
    whole, result = train_direct(clips, 3, tmp_path / "whole")
    assert result.is_finished
    again, _ = train_direct(clips, 3, tmp_path / "whole")  # nothing left to do
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    batch = torch.stack([clip.frames for clip in (clips[0], clips[5]) if clip.frames is not None])
    actions = torch.stack([clips[number].robot_actions for number in (0, 5)])
    made = whole(batch[:, 0] / 255, actions)
    assert made.shape == (2, 8, 3, 32, 48)
    assert 0 <= made.min() <= made.max() <= 1
