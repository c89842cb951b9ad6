import numpy as np
import pytest
import torch
from torch import Tensor

from worldmodel.diagnostics.actions.action_channel import action_channel, action_diversity

GROUPS = {"left": [0, 1], "right": [2, 3]}


def two_arms(reach: int = 0):
    """Frames of 4 x 8 pixels: the left arm paints the left half, and `reach` columns beyond it."""

    def generate(latent: Tensor, actions: Tensor) -> Tensor:
        moved = actions.cumsum(1)
        left, right = moved[..., :2].sum(-1), torch.sin(moved[..., 2]) + moved[..., 3]
        columns = torch.arange(8, device=actions.device)
        left_mask, right_mask = (columns < 4 + reach).to(actions), (columns >= 4).to(actions)
        row = left[..., None] * left_mask + right[..., None] * right_mask
        return row[:, :, None, None, :].expand(-1, -1, 3, 4, -1) + latent[:, None, None, None, None]

    return generate


LATENT = torch.zeros(3)
ACTIONS = 0.1 * torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))


def test_arms_that_keep_apart_share_no_pixel() -> None:
    found = action_channel(two_arms(), LATENT, ACTIONS, GROUPS)
    assert found.maps.shape == (2, 5, 4, 8)
    assert found.maps[0, :, :, 4:].max() == 0
    assert found.maps[1, :, :, :4].max() == 0
    assert found.type_d.holds == 1
    assert found.contrast.raw == 0
    # A held offset of 1 in each of two dimensions moves frame i by i + 1 each: sqrt(2) (i + 1) there.
    np.testing.assert_allclose(found.maps[0, :, 0, 0], np.sqrt(2) * np.arange(1, 6), rtol=1e-5)
    np.testing.assert_allclose(found.strength[0], np.arange(1, 6), rtol=1e-5)
    assert set(found.owners()[-1, 0].tolist()) == {0, 1}
    assert found.owners()[-1, 0].tolist() == [0] * 4 + [1] * 4


def test_shared_columns_are_counted() -> None:
    found = action_channel(two_arms(reach=2), LATENT, ACTIONS, GROUPS)
    assert found.type_d.holds == 0
    # Two of eight columns, in the frames where both effects pass the threshold: all.
    assert found.type_d.score == pytest.approx(0.25)


def test_differences_agree_with_derivatives() -> None:
    exact = action_channel(two_arms(1), LATENT, ACTIONS.double(), GROUPS)
    close = action_channel(two_arms(1), LATENT, ACTIONS.double(), GROUPS, derivative="difference", step=1e-3)
    np.testing.assert_allclose(close.maps, exact.maps, rtol=1e-4)


def test_diversity_of_actions_that_reshape_the_video() -> None:
    weights = torch.randn(2, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def bent(latent: Tensor, actions: Tensor) -> Tensor:
        gain = torch.exp(actions[:, 0, :2])
        return torch.tanh((latent * gain + actions[:, 1, :2]) @ weights).view(-1, 1, 1, 3, 4)

    latent, actions = (
        torch.zeros(8, 2),
        0.5 * torch.randn(8, 2, 4, generator=torch.Generator().manual_seed(2)),
    )
    found = action_diversity(bent, latent, actions)
    assert found.full_rank.all()
    report = action_channel(bent, latent.double(), actions.double(), GROUPS, num_directions=2)
    assert report.diversity is not None
    assert "holds at 100%" in report.sections()[-1].blocks[0].text


def test_sections_have_a_row_per_group_and_a_picture() -> None:
    sections = action_channel(two_arms(), LATENT, ACTIONS, GROUPS).sections()
    _, table, figures = sections[0].blocks
    assert [row[0] for row in table.rows] == ["left", "right"]
    assert len(figures.items) == 1
    assert len(sections) == 2
    alone = action_channel(two_arms(), LATENT[:1], ACTIONS[:1], GROUPS).sections()
    assert {row[2] for section in alone for row in section.blocks[1].rows} == {"one point"}


def test_one_group_has_nothing_to_share() -> None:
    found = action_channel(two_arms(), LATENT, ACTIONS, {"all": [0, 1, 2, 3]})
    assert (found.type_d.score, found.contrast.raw) == (0, 0)
    assert [row[0] for row in found.sections()[0].blocks[1].rows] == ["all"]


def test_more_groups_than_named_colors_are_told_apart() -> None:
    wide = 0.1 * torch.randn(2, 3, 14, generator=torch.Generator().manual_seed(0))
    found = action_channel(
        lambda latent, actions: actions[:, :, None, None].expand(-1, -1, 3, 2, -1),
        LATENT[:2],
        wide,
        {f"column {index}": [index] for index in range(14)},
    )
    (legend,) = found.figure().legends
    assert len({patch.get_facecolor() for patch in legend.get_patches()}) == 15
    assert found.owners()[0, 0].tolist() == list(range(14))


def test_impossible_groups_and_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="different dimensions below 4"):
        action_channel(two_arms(), LATENT, ACTIONS, {"left": [0, 4]})
    with pytest.raises(ValueError, match="frames"):
        action_channel(lambda latent, actions: actions, LATENT, ACTIONS, GROUPS)
