import pytest
import torch
from studies.arms.causes import BOTH, LEFT, NONE, RIGHT, Anchored

from worldmodel.context_module.models.action_concepts import ActionConcepts, ActionContextConfig

HOME = 0.3


def build(**changes: object) -> ActionConcepts:
    torch.manual_seed(0)
    concepts = ActionConcepts(
        ActionContextConfig(width=8, **changes), ((0, 1), (2, 3)), hidden=16, width=12, map_tokens=3
    )
    for parameter in concepts.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return concepts.eval()


def edited() -> torch.Tensor:
    """Commands of both arms, of the left, of the right, and of none."""
    groups = torch.randn(1, 3, 4, 4).expand(4, 3, 4, 4).clone()
    groups[LEFT, ..., 2:] = groups[RIGHT, ..., :2] = groups[NONE] = HOME
    return groups


def test_embeddings_of_a_module_that_is_not_told_are_sums_already() -> None:
    concepts, groups = build(is_told=False), edited()
    anchored = Anchored(concepts)
    for made, own in zip(anchored(groups), concepts(groups), strict=True):
        torch.testing.assert_close(made, own, atol=1e-4, rtol=0)
    assert anchored.shifts == pytest.approx([0], abs=1e-5)


@pytest.mark.parametrize("part", [0, 1])
def test_a_told_module_is_shifted_and_an_anchored_one_is_the_sum_of_effects(part: int) -> None:
    concepts, groups = build(), edited()
    still = groups[NONE][None]
    home = sum(
        concepts(still, torch.tensor(do).expand(1, 3, 2))[part] for do in ([True, False], [False, True])
    )
    anchored = Anchored(concepts, ("frames", "maps")[part : part + 1])
    made, own = anchored(groups), concepts(groups)
    torch.testing.assert_close(made[part][BOTH], own[part][LEFT] + own[part][RIGHT] - home[0] / 2)
    torch.testing.assert_close(made[part][1:], own[part][1:])
    torch.testing.assert_close(made[1 - part], own[1 - part])
    assert anchored.shifts[0] > 0.1


def test_the_shift_of_a_module_that_does_not_modulate_is_that_of_its_places() -> None:
    anchored = Anchored(build(modulates=False))
    frames, _ = anchored(edited())
    assert not frames.any()
    assert 0.1 < anchored.shifts[0] < 100
