import math

import pytest
import torch

from worldmodel.mcl.info_nce import Negatives, equal_conditions, info_nce, logistic_nce


def contrast(queries, keys, u, negatives: Negatives = "masked", valid=None, temperature=0.1):
    valid = torch.ones(u.shape[:-1], dtype=torch.bool) if valid is None else valid
    equal = equal_conditions(u, 0.0)
    return info_nce(queries, keys, equal, valid, temperature=temperature, negatives=negatives)


@pytest.mark.parametrize("num_rows", [128, 256])
def test_uninformative_logits_cost_log_b(num_rows: int) -> None:
    same = torch.ones(num_rows, 4) / 2
    result = contrast(same, same, torch.arange(num_rows).float().unsqueeze(1))
    assert result.loss.item() == pytest.approx(math.log(num_rows), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.07, 0.1, 1.0])
def test_aligned_orthogonal_pairs_have_the_closed_form(temperature: float) -> None:
    axes = torch.eye(64)
    result = contrast(axes, axes, torch.arange(64).float().unsqueeze(1), temperature=temperature)
    assert result.loss.item() == pytest.approx(
        math.log1p(63 * math.exp(-1 / temperature)), rel=1e-4, abs=2e-6
    )
    assert result.accuracy.item() == 1


def test_repeated_conditions_leave_a_floor_only_when_they_are_negatives() -> None:
    u = torch.arange(8).repeat(32).float().unsqueeze(1)
    embedding = torch.eye(8).repeat(32, 1)
    literal = contrast(embedding, embedding, u, "all", temperature=0.02)
    assert literal.loss.item() == pytest.approx(math.log(32), abs=1e-4)  # the 3.466 of |U| = 8, B = 256
    assert literal.floor.item() == pytest.approx(math.log(32), abs=1e-5)
    for negatives in ("masked", "multi_positive"):
        result = contrast(embedding, embedding, u, negatives, temperature=0.02)
        assert result.loss.item() == pytest.approx(0, abs=1e-4)
        assert result.floor.item() == 0
        assert result.accuracy.item() == 1


def test_multi_positive_of_uninformative_logits_counts_the_positives() -> None:
    u = torch.arange(4).repeat(16).float().unsqueeze(1)
    same = torch.ones(64, 4) / 2
    assert contrast(same, same, u, "multi_positive").loss.item() == pytest.approx(math.log(4), abs=1e-5)


def test_invalid_rows_change_nothing() -> None:
    torch.manual_seed(0)
    queries, keys = torch.nn.functional.normalize(torch.randn(2, 12, 6), dim=-1)
    u = torch.randn(12, 3)
    valid = torch.arange(12) % 3 != 0
    with_mask = contrast(queries, keys, u, valid=valid)
    alone = contrast(queries[valid], keys[valid], u[valid])
    torch.testing.assert_close(with_mask.loss, alone.loss)
    torch.testing.assert_close(with_mask.accuracy, alone.accuracy)


def test_gradients_stay_finite_without_any_valid_row() -> None:
    queries = torch.randn(5, 3, requires_grad=True)
    result = contrast(queries, torch.randn(5, 3), torch.randn(5, 2), valid=torch.zeros(5, dtype=torch.bool))
    result.loss.backward()
    assert result.loss.item() == 0
    assert queries.grad is not None
    assert queries.grad.abs().max() == 0


def test_independent_batches_do_not_see_each_other() -> None:
    torch.manual_seed(1)
    queries, keys = torch.nn.functional.normalize(torch.randn(2, 3, 10, 4), dim=-1)
    u = torch.randint(0, 4, (3, 10, 1)).float()
    together = contrast(queries, keys, u)
    for index in range(3):
        alone = contrast(queries[index], keys[index], u[index])
        torch.testing.assert_close(together.loss[index], alone.loss)


def test_conditions_are_equal_within_the_tolerance() -> None:
    u = torch.tensor([[0.0, 0.0], [0.04, -0.04], [0.0, 0.2]])
    assert equal_conditions(u, 0.05).tolist() == [
        [True, True, False],
        [True, True, False],
        [False, False, True],
    ]
    assert equal_conditions(u, 0.0).equal(torch.eye(3, dtype=torch.bool))


def test_logistic_nce_of_an_ignorant_critic_is_two_log_two() -> None:
    valid = torch.ones(10, dtype=torch.bool)
    result = logistic_nce(torch.zeros(10), torch.zeros(10), valid, valid)
    assert result.loss.item() == pytest.approx(2 * math.log(2))
    sure = logistic_nce(torch.full((10,), 30.0), torch.full((10,), -30.0), valid, valid)
    assert sure.loss.item() == pytest.approx(0, abs=1e-9)
    assert sure.accuracy.item() == 1


@pytest.mark.parametrize("loss", [0.25, 0.01])
def test_the_gradient_is_that_of_float32_under_autocast(loss: float) -> None:
    generator = torch.Generator().manual_seed(0)
    keys = torch.nn.functional.normalize(torch.randn(16, 64, generator=generator), dim=-1)
    near = torch.nn.functional.normalize(keys + 0.05 * torch.randn(16, 64, generator=generator), dim=-1)
    temperature = {0.25: 0.2305, 0.01: 0.12192}[loss]
    gradients = []
    for is_half in (False, True):
        queries = near.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            found = info_nce(
                queries,
                keys,
                torch.eye(16, dtype=torch.bool),
                torch.ones(16, dtype=torch.bool),
                temperature=temperature,
                negatives="all",
            ).loss
        assert found.item() == pytest.approx(loss, rel=0.01)
        found.backward()
        gradients.append(queries.grad.flatten())
    assert torch.cosine_similarity(*gradients, dim=0) >= 0.999
