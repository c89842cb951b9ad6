import pytest
import torch

from worldmodel.diagnostics import label_probe


def test_a_label_is_read_where_it_is_and_guessed_where_it_is_not() -> None:
    source = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (600,), generator=source)
    noise = torch.randn(600, 4, generator=source)
    told = label_probe(noise + 4 * torch.eye(4)[labels], labels)
    assert told.accuracy > 0.95
    hidden = label_probe(noise, labels)
    assert hidden.accuracy < hidden.chance + 0.08
    assert hidden.chance < 0.4
    assert "of 600 codes" in told.verdict()
    with pytest.raises(ValueError, match="two labels"):
        label_probe(noise, torch.zeros(600, dtype=torch.long))
