"""The hands and camera of several clips, of which one is looked at under many actions."""

import torch

from worldmodel.diagnostics.actions.world_model_channel import PoseView
from worldmodel.models.model import WorldModel
from worldmodel.types import PoseTrack


def test_the_first_of_four_clips_serves_five_variants() -> None:
    """`worldmodel diagnose desk --dataset DIR` ended in a traceback for more than one clip."""
    model = WorldModel.from_pretrained("desk")
    hands = torch.rand(4, 2, 16)
    start = PoseTrack(hands, torch.rand(4, 2, 3, 4))
    view = PoseView("heron", torch.rand(4, 16, 3, 4), start)
    assert len(view.track(model, torch.zeros(4, 16, 16)).poses) == 4
    track = view.first().track(model, torch.zeros(5, 16, 16))
    assert track.start is not None
    assert torch.equal(track.start.poses, hands[:1].expand(5, -1, -1))
