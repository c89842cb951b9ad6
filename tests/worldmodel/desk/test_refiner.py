import pytest
import torch

from worldmodel.desk.refiner import LatentRefiner
from worldmodel.desk.small_net import SmallNetConfig, build_refiner


@pytest.fixture
def latents() -> torch.Tensor:
    return torch.randn(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def sigma() -> torch.Tensor:
    return torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.5, 0.5]])


@torch.no_grad()
def test_an_untrained_refiner_changes_nothing(make_world_model, batch, latents, sigma):
    assert torch.equal(LatentRefiner(4, 8)(latents, torch.zeros_like(latents), sigma), latents)
    plain, refined = (
        make_world_model(small=SmallNetConfig(scene=False, refiner_width=width)) for width in (0, 8)
    )
    noisy = plain.encode(batch.frames)
    arguments = noisy, torch.ones(*noisy.shape[::2][:2]), plain.interface(batch.robot_actions)
    answers = [model.fdm(*arguments, model.text_context()).clean for model in (plain, refined)]
    assert torch.equal(*answers)


@torch.no_grad()
def test_a_frame_is_refined_by_itself_the_one_before_and_the_first(latents, sigma, randomize):
    refiner = LatentRefiner(4, 8)
    randomize(refiner)
    noisy = torch.zeros_like(latents)
    before = refiner(latents, noisy, sigma)
    for changed, reached in ((1, {1, 2}), (2, {2})):
        other = latents.clone()
        other[:, :, changed] += 1
        moved = (refiner(other, noisy, sigma) - before).abs().amax((0, 1, 3, 4)) > 0
        assert set(moved.nonzero().flatten().tolist()) == reached
    # The first frame is given: its estimate is not looked at, what was given is.
    other = latents.clone()
    other[:, :, 0] += 1
    assert torch.equal(refiner(other, noisy, sigma)[:, :, 1:], before[:, :, 1:])
    given = noisy.clone()
    given[:, :, 0] += 1
    moved = (refiner(latents, given, sigma) - before).abs().amax((0, 1, 3, 4)) > 0
    assert moved.tolist() == [False, True, True]


@torch.no_grad()
def test_a_refiner_sees_the_pose_maps_of_a_frame_and_of_the_one_before(latents, sigma, randomize):
    refiner, noisy = LatentRefiner(4, 8, map_channels=8), torch.zeros_like(latents)
    maps = torch.rand(2, 3, 8, *latents.shape[-2:])
    untrained = refiner(latents, noisy, sigma, maps)
    assert torch.equal(untrained, latents)
    randomize(refiner)
    before = refiner(latents, noisy, sigma, maps)
    assert torch.equal(refiner(latents, noisy, sigma), refiner(latents, noisy, sigma, 0 * maps))
    for changed, reached in ((0, {1}), (1, {1, 2}), (2, {2})):
        other = maps.clone()
        other[:, changed] += 1
        moved = (refiner(latents, noisy, sigma, other) - before).abs().amax((0, 1, 3, 4)) > 0
        assert set(moved.nonzero().flatten().tolist()) == reached


def test_every_weight_of_a_refiner_can_learn(randomize):
    refiner = LatentRefiner(4, 8, map_channels=8)
    randomize(refiner)
    latents, maps = torch.randn(2, 4, 3, 8, 8), torch.rand(2, 3, 8, 8, 8)
    refiner(latents, 0 * latents, torch.ones(2, 3), maps).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in refiner.parameters())


def test_what_cannot_be_refined_is_refused():
    with pytest.raises(ValueError, match="refiner_width refines clean estimates, got prediction 'velocity'"):
        SmallNetConfig("velocity", refiner_width=8)
    with pytest.raises(ValueError, match="a refiner halves the latents, got 1x2"):
        build_refiner(SmallNetConfig(refiner_width=8), (3, 1, 2), 16, 0)


@torch.no_grad()
def test_derivatives_of_many_clips_are_taken_at_once(latents, sigma, randomize):
    refiner = LatentRefiner(4, 8)
    randomize(refiner)

    def refine(one: torch.Tensor) -> torch.Tensor:
        return refiner(one[None], torch.zeros_like(one)[None], sigma[:1])[0]

    alone = torch.stack([refine(one) for one in latents])
    torch.testing.assert_close(torch.func.vmap(refine)(latents), alone)
