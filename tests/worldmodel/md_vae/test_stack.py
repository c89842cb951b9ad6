import pytest
import torch

from worldmodel.md_vae.stack import StackLoss, train_stack

TARGET = torch.tensor([[1.0], [2.0], [3.0]])  # one a seed


def train(target: torch.Tensor, steps: int = 5, **options: float) -> tuple[torch.Tensor, list[torch.Tensor]]:
    weights = torch.nn.Parameter(torch.zeros_like(target))
    optimizer = torch.optim.SGD([weights], lr=0.1)

    def loss(scale: float) -> StackLoss:
        error = (scale * weights - target).square().mean(1)
        return StackLoss(error, {"error": error})

    parts = [step["error"] for step in train_stack([1.0] * steps, loss, optimizer, **options)]
    return weights.detach(), parts


def test_a_stack_trains_every_seed_as_it_would_train_alone() -> None:
    together, parts = train(TARGET)
    assert torch.equal(together, torch.cat([train(one[None])[0] for one in TARGET]))
    # Gradient descent on (w - t)^2 with rate 0.1: what is left of t shrinks by 0.8 a step.
    assert torch.allclose(together, TARGET * (1 - 0.8**5))
    assert torch.allclose(torch.stack(parts), torch.stack([(TARGET[:, 0] * 0.8**n) ** 2 for n in range(5)]))
    assert not parts[0].requires_grad


def test_the_gradient_of_all_seeds_is_clipped_together() -> None:
    clipped, _ = train(TARGET, steps=1, max_norm=1.0)
    assert (clipped / 0.1).norm().item() == pytest.approx(1.0, abs=1e-5)
    assert torch.allclose(clipped / clipped[0], TARGET)  # the direction stays


def test_the_schedule_moves_after_every_step_and_batches_are_drawn_one_by_one() -> None:
    weights = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weights], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    drawn = []

    def batches():
        for number in range(3):
            drawn.append((number, weights.item()))
            yield number

    for _ in train_stack(batches(), lambda _: StackLoss(-weights.sum()), optimizer, schedule=schedule):
        pass
    assert drawn == [(0, 0.0), (1, 1.0), (2, 1.5)]
    assert weights.item() == 1.75
