"""How ghosts are counted: cases whose answer is known."""

import pytest
import torch
from studies.picture_head.run import ghost_share

TABLE = torch.tensor([0.5, 0.4, 0.3])


def _frame(share: float, side: int = 5) -> torch.Tensor:
    """A bare table, on which so much of a block can be seen."""
    frame = TABLE[:, None, None].expand(3, 16, 16).clone()
    frame[:, :side, :side] += share * torch.tensor([0.5, -0.4, 0.3])[:, None, None]
    return frame


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, -0.2])
def test_share_of_what_was_taken_away_is_found(share: float) -> None:
    """A bare table has none of it, a copy of the first frame all."""
    found = ghost_share(_frame(1.0), _frame(0.0), _frame(share), TABLE)
    assert found == pytest.approx(share, abs=1e-6)


def test_says_nothing_where_nothing_was_taken_away() -> None:
    """The block is there in the truth as well, or is too small."""
    assert ghost_share(_frame(1.0), _frame(1.0), _frame(1.0), TABLE) is None
    assert ghost_share(_frame(1.0, side=3), _frame(0.0), _frame(1.0), TABLE) is None


def test_noise_is_no_ghost() -> None:
    """What does not look like the block hardly counts."""
    noise = _frame(0.0) + 0.05 * torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert abs(ghost_share(_frame(1.0), _frame(0.0), noise, TABLE) or 0.0) < 0.05
