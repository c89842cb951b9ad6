from pathlib import Path

import pytest
import torch

from worldmodel.diagnostics.actions.diagnose import diagnose_world_model
from worldmodel.diagnostics.actions.world_model_channel import world_model_channel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import Actions, ClipBatch


@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize("regime", ["acg", "lacg"])
def test_the_channel_is_a_rollout_of_one_clip(
    make_world_model, randomize, batch: ClipBatch, regime: str, history: int
) -> None:
    model = make_world_model(regime=regime, history=history).eval()
    for part in model.parts().values():
        randomize(part)
    assert batch.frames is not None
    given = batch.frames[:, : 4 * history - 3]
    noise = torch.randn(
        4,
        model.contract.latent_channels,
        *model.contract.latent_grid,
        generator=torch.Generator().manual_seed(3),
    )
    rollout = RolloutPipeline(model).rollout(
        given,
        Actions(batch.robot_actions),
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(3),
    )
    with torch.no_grad():
        made = world_model_channel(model, given, num_inference_steps=3)(noise, batch.robot_actions)
        other = world_model_channel(model, given, num_inference_steps=3)(noise, -batch.robot_actions)
    torch.testing.assert_close(made, rollout.frames[:, given.shape[1] :], atol=1e-5, rtol=0)
    assert (made - other).abs().max() > 1e-3


def test_a_model_without_actions_is_refused(make_world_model, batch: ClipBatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no action channel"):
        diagnose_world_model(make_world_model(regime="no_action"), batch, tmp_path / "page.md")


def test_the_channel_needs_the_frames_of_the_history(make_world_model, batch: ClipBatch) -> None:
    assert batch.frames is not None
    with pytest.raises(ValueError, match="expected the 5 frames of the model's history, got 1"):
        world_model_channel(make_world_model(history=2).eval(), batch.frames[:, :1])
