"""How ghosts are counted: cases whose answer is known."""

import json
import re
from pathlib import Path

import pytest
import torch
from studies.picture_head.run import ghost_share, table

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


def test_the_published_numbers_are_those_of_the_clips() -> None:
    """Every number of a row of the table stands in the page's column."""
    results = Path("docs/results")
    clips = (results / "picture_head/clips.jsonl").read_text().splitlines()
    rows = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in table([*map(json.loads, clips)])
    }
    page = (results / "picture_head.md").read_text().split("## Results")[1]
    cells = {line.split("|")[1].strip(): line.split("|")[3:6] for line in page.splitlines() if "|" in line}
    arms = ("compositor0", "head0", "decoded0")
    for name, column in {"moving": 1, "edges, left": 2, "clip PSNR": 0, "gripper error": 3}.items():
        line = next(cell for start, cell in cells.items() if start.startswith(name))
        for arm, text in zip(arms, line, strict=True):
            found = re.findall(r"\d+\.\d+", text)
            assert found == [rows[f"{arm}_{side}"][column].strip() for side in ("left", "right")], (name, arm)
    for arm, place in (("compositor0", 0), ("head0", 1)):
        kept, end, fade = rows[f"{arm}_carry"][5].strip(), rows[f"{arm}_carry"][4], rows[f"{arm}_carry"][6]
        assert cells["240 frames: object kept"][place].strip() == kept.replace("%", " %")
        assert cells["240 frames: gripper px in the last second"][place].strip() == end.strip()
        assert cells["240 frames: edges, last second over first"][place].strip() == fade.strip("| ")
        assert cells["ghosts"][place].strip() == rows[f"ghosts_{arm}"][0].strip("| ")
