import torch

from worldmodel.data.clips import ClipConfig, cut_clip
from worldmodel.data.index import index_episodes
from worldmodel.data.splits import SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.evaluation.nearest_frame import NearestFrames
from worldmodel.types import to_unit_range


def test_a_known_command_gives_the_frame_it_led_to() -> None:
    config = ClipConfig(num_frames=9, stride=2, height=32, width=32)
    source = synthetic_source(num_episodes=3, num_frames=40, size=(32, 32))
    index = index_episodes([source], config, SplitConfig(val=0.0, test=0.0))
    normalizer = index.normalizer()
    nearest = NearestFrames(index, normalizer)
    assert len(nearest.places) == 3 * 19  # recorded frames 2, 4, ... 38 of each
    frames, raw = cut_clip(source[1], 4, config)
    actions = normalizer.normalize(raw, source[1].embodiment, source[1].action_names)
    assert torch.equal(nearest(actions), to_unit_range(frames[1:]))
