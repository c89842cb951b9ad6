import numpy as np
import pytest
import torch

from worldmodel.context_module.data.quad import EDGES, Quad, quad_model
from worldmodel.context_module.data.quad_pictures import FACTOR_NAMES, RAMP, ramp_colors, render_quads
from worldmodel.context_module.data.structural_model import Intervention, StructuralModel
from worldmodel.context_module.data.types import check_do, context_name, training_contexts

MANY = np.arange(20_000)


def variables(name: str, do: tuple[int, ...]) -> np.ndarray:
    noise = np.random.default_rng(len(do)).standard_normal((40_000, 8))
    return quad_model(name).sample(do, noise)  # type: ignore[arg-type]


def test_a_chain_has_the_correlation_and_the_effects_of_its_weights() -> None:
    chain = StructuralModel(
        np.array([[0, 0, 0], [0.6, 0, 0], [0, 0.5, 0]]),
        {0: Intervention(3.0, 0.5), 1: Intervention(-2.0, 0.1)},
    )
    noise = np.random.default_rng(0).standard_normal((100_000, 3))
    seen = chain.sample((), noise)
    np.testing.assert_allclose(seen.std(0), 1, atol=0.01)
    np.testing.assert_allclose(np.corrcoef(seen.T)[0], [1, 0.6, 0.3], atol=0.01)
    first = chain.sample((0,), noise)
    np.testing.assert_allclose(first.mean(0), [3, 1.8, 0.9], atol=0.02)
    middle = chain.sample((1,), noise)
    np.testing.assert_allclose(middle.mean(0), [0, -2, -1], atol=0.02)
    assert abs(np.corrcoef(middle.T)[0, 1]) < 0.01  # the parent has lost its say
    both = chain.sample((0, 1), noise)
    np.testing.assert_array_equal(both[:, 0], first[:, 0])
    np.testing.assert_array_equal(both[:, 1:], middle[:, 1:])


def test_impossible_structural_models_are_refused() -> None:
    with pytest.raises(ValueError, match="strictly lower triangular"):
        StructuralModel(np.eye(2), {})
    with pytest.raises(ValueError, match=r"variable 1: its parents explain 1\.44"):
        StructuralModel(np.array([[0, 0], [1.2, 0]]), {})


@pytest.mark.parametrize("name", ["quad", "quad_causal"])
def test_variables_have_unit_variance_and_the_named_graph(name: str) -> None:
    seen = variables(name, ())
    np.testing.assert_allclose(seen.std(0), 1, atol=0.02)
    correlation = np.corrcoef(seen.T) - np.eye(8)
    if name == "quad":
        assert np.abs(correlation).max() < 0.02
    for parent, child in EDGES:
        strength = abs(correlation[FACTOR_NAMES.index(parent), FACTOR_NAMES.index(child)])
        assert (strength > 0.2) == (name == "quad_causal")


def test_an_intervention_moves_its_concept_and_in_the_causal_set_its_descendants() -> None:
    moved = variables("quad", (1,)).mean(0)
    np.testing.assert_allclose(moved, [0, -3, 0, 0, 0, 0, 0, 0], atol=0.03)
    moved = variables("quad_causal", (1,)).mean(0)
    size, orientation = -3 * 0.55, -3 * 0.55 * -0.45
    np.testing.assert_allclose(moved, [0, -3, 0, 0, size, orientation, 0, 0], atol=0.04)


def test_pairs_are_rare_in_training() -> None:
    quad = Quad("quad", 20_000, 16)
    for do in training_contexts(6):
        factors = quad.factors(do, MANY)
        is_moved = np.stack([factors[:, 0] > 0.9, factors[:, 1] < 0.1], 1)
        assert is_moved.all(1).mean() < 0.02
    both = quad.factors((0, 1), MANY)
    assert ((both[:, 0] > 0.85) & (both[:, 1] < 0.15)).mean() > 0.95


def test_pictures_are_a_function_of_context_split_and_index() -> None:
    quad = Quad("quad_causal", 100, 16)
    first = quad.images((0, 2), np.array([3, 7, 3]))
    assert first.shape == (3, 3, 16, 16)
    assert first.dtype == torch.uint8
    assert torch.equal(first[0], first[2])
    assert torch.equal(first, Quad("quad_causal", 100, 16).images((2, 0), np.array([3, 7, 3])))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], Quad("quad_causal", 100, 16, "test").images((0, 2), np.array([3]))[0])
    assert not torch.equal(first[0], quad.images((0,), np.array([3]))[0])
    assert quad.factors((), np.arange(5)).shape == (5, 6)
    with pytest.raises(ValueError, match="even and at least 8"):
        Quad("quad", 10, 15)


def test_colors_and_places_of_the_quadrants() -> None:
    assert torch.equal(ramp_colors(torch.linspace(0, 1, 6)), torch.tensor(RAMP))
    factors = torch.full((1, 8), 0.5)
    factors[0, :4] = torch.tensor([0, 0.2, 0.4, 0.6])
    factors[0, 4] = 0
    picture = render_quads(factors, 64)[0].float() / 255
    corners = picture[:, [0, 0, -1, -1], [0, -1, 0, -1]].T
    torch.testing.assert_close(corners, torch.tensor(RAMP[:4]), atol=0.005, rtol=0)


def test_the_shape_grows_turns_and_darkens() -> None:
    def dark(size: float, orientation: float, shape: float) -> torch.Tensor:
        factors = torch.tensor([[0.4] * 4 + [size, orientation, shape, 0.0]])
        return render_quads(factors, 64)[0].amax(0) < 60

    for shape in (0.1, 0.4, 0.6, 0.9):
        areas = [dark(size, 0.5, shape).sum().item() for size in (0.0, 0.3, 0.6, 1.0)]
        assert areas == sorted(areas)
        assert areas[-1] > 10 * areas[0]
        assert not torch.equal(dark(0.8, 0.2, shape), dark(0.8, 0.8, shape))
    rows, columns = dark(1.0, 0.5, 0.4).nonzero().T
    assert np.ptp(columns.numpy()) > 2.5 * np.ptp(rows.numpy())  # the bar lies flat at 0.5
    kinds = [dark(0.8, 0.4, shape).sum().item() for shape in (0.1, 0.4, 0.6, 0.9)]
    assert len(set(kinds)) == 4


def test_contexts_have_names_and_an_order() -> None:
    assert training_contexts(2) == ((), (0,), (1,))
    assert context_name((), ("a", "b")) == "obs"
    assert context_name((0, 1), ("a", "b")) == "a+b"
    assert check_do([2, 0, 2], 3) == (0, 2)
    with pytest.raises(ValueError, match="concepts are 0 to 2"):
        check_do((-1,), 3)
