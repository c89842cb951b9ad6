"""The transitions of several clips, of which one is looked at under many actions."""

from dataclasses import replace

import torch

from worldmodel.diagnostics.actions.world_model_channel import ClipView
from worldmodel.models.model import WorldModel
from worldmodel.types import Transitions


def test_the_first_of_four_clips_serves_five_variants() -> None:
    """`worldmodel diagnose desk --dataset DIR` ended in a traceback for more than one clip."""
    model = WorldModel.from_pretrained("desk")
    names = model.normalizer.names_of("heron")
    clips = tuple(
        Transitions(torch.zeros(16, 16), torch.rand(2, 16), names, views=torch.rand(17, 3, 4))
        for _ in range(4)
    )
    view = ClipView("heron", clips)
    assert len(view.actions(model, torch.zeros(4, 16, 16)).extras["poses"]) == 4
    poses = (
        replace(view, transitions=view.transitions[:1]).actions(model, torch.zeros(5, 16, 16)).extras["poses"]
    )
    assert torch.equal(poses[:, 0, :2], clips[0].before.expand(5, 2, 16))
