"""What a compositor is shown in training beside the first frame."""

import torch

from worldmodel.models.compositor import KnownFrame
from worldmodel.models.pose_track import PoseTrack
from worldmodel.objectives.world_model_pictures import LATER_SHARE, _with_later

NUM_FRAMES, SAMPLES = 9, 400


def numbered(first: int, count: int) -> PoseTrack:
    """Rows whose numbers are in their poses."""
    numbers = torch.arange(first, first + count).float()
    return PoseTrack(numbers[None, :, None].expand(SAMPLES, -1, 16), torch.zeros(SAMPLES, count, 3, 4))


def test_a_later_frame_comes_with_its_own_hands_and_never_from_the_future():
    track = numbered(0, NUM_FRAMES)  # row i is that of frame i
    levels = torch.arange(NUM_FRAMES).float() / NUM_FRAMES
    real = 2 * levels[None, None, :, None, None].expand(SAMPLES, 3, -1, 4, 4) - 1
    known = KnownFrame(torch.zeros(SAMPLES, 3, 4, 4), track.rows(0, 1))
    asked = torch.tensor([1, 5]).repeat(SAMPLES // 2)  # the first frames to compose
    later = _with_later(known, track, real, asked, torch.Generator().manual_seed(0))
    for arm in range(2):
        numbers = later.carried(arm).hands.poses[:, 0]
        shown = later.carried(arm).frame.mean((1, 2, 3)) * NUM_FRAMES
        torch.testing.assert_close(shown, numbers, atol=1e-4, rtol=0)
        assert (numbers < asked).all()
        assert set(numbers[asked == 5].tolist()) == {0, 1, 2, 3, 4}
    torch.testing.assert_close(later.latest, later.carried(0).frame)
    is_later = (later.carried(0).hands.poses[asked == 5][:, 0] > 0).float().mean()
    assert abs(is_later - LATER_SHARE * 4 / 5) < 0.1
