from bench.world_model import LIMITS, cases, make_batch, measure, table

from tests.support.tiny_wan import tiny_wan
from worldmodel.models.config import InputSpec


def test_every_limit_is_measured_against_the_bare_step_of_its_kernel():
    contract = InputSpec(num_frames=9, height=32, width=32, fps=10.0, latent_scale=4)
    steps = cases(tiny_wan(), contract, make_batch(contract, 2))
    results = measure(steps, rounds=2)
    assert set(results) >= {"bare", "bare, math attention", *LIMITS}
    assert results["bare"]["ratio"] == 1
    # A second network call and a double backward cannot be cheaper than one plain step.
    assert results["mcl finite_difference"]["ratio"] > 1.2
    assert results["mcl exact"]["ratio"] > 1.2
    assert results["mcl first_order"]["ratio"] > 1.2
    assert "| mcl exact |" in table({"tiny": results})
    some = cases(tiny_wan(), contract, make_batch(contract, 2), ["mcl first_order, a quarter"])
    assert list(some) == ["bare", "acg", "mcl first_order, a quarter"]
