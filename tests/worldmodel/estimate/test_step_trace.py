import torch
from torch import nn

from worldmodel.estimate.step_trace import trace_step

MIB = 2**20


class Chain(nn.Module):
    """Two square matrix products with a saved activation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(512, 512, bias=False), nn.Linear(512, 512, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))).sum()


def step(model: nn.Module) -> torch.Tensor:
    return model(torch.zeros(1024, 512))


def test_flops_of_matrix_products_are_exact() -> None:
    # Forward 2 x 2nmk; backward twice that, less the gradient of the input, which nobody asks for.
    product = 2 * 1024 * 512 * 512
    traced = trace_step(Chain, step, autocast=False, is_accumulating=False)
    assert traced.flops == 5 * product


class Attention(nn.Module):
    """One linear layer whose output attends to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x).view(2, 128, 4, 16).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(y, y, y).sum()


def test_flops_of_attention_are_counted() -> None:
    traced = trace_step(
        Attention, lambda model: model(torch.zeros(2, 128, 64)), autocast=True, is_accumulating=False
    )
    layer = 2 * 256 * 64 * 64
    product = 2 * (2 * 4) * 128 * 128 * 16  # of queries and keys, or of weights and values
    # Backward: the weights again, and the gradients of four matrices.
    assert traced.flops == 2 * layer + (2 + 5) * product


def test_peak_memory_is_that_of_the_tensors_alive_together() -> None:
    # Each activation is 2 MiB, each gradient of a weight 1 MiB. At worst the input, tanh's output and
    # the gradients of both sides of tanh are alive, with the gradient of the second weight.
    traced = trace_step(Chain, step, autocast=False, is_accumulating=False)
    assert 7 * MIB <= traced.peak_bytes <= 10 * MIB


def test_gradients_that_exist_before_the_step_are_not_counted_as_activations() -> None:
    fresh = trace_step(Chain, step, autocast=False, is_accumulating=False)
    kept = trace_step(Chain, step, autocast=False, is_accumulating=True)
    assert kept.peak_bytes <= fresh.peak_bytes + MIB
    assert kept.flops == fresh.flops


def test_half_precision_halves_what_is_saved() -> None:
    def saved(autocast: bool) -> int:
        def wide(model: nn.Module) -> torch.Tensor:
            return model(torch.zeros(65536, 512))

        return trace_step(Chain, wide, autocast=autocast, is_accumulating=True).peak_bytes

    assert 0.4 < saved(True) / saved(False) < 0.8


def test_masks_count_as_if_they_were_full() -> None:
    def masked(model: Chain) -> torch.Tensor:
        x = model.first(torch.zeros(1024, 512))
        return x[x > 0].sum()

    assert trace_step(Chain, masked, autocast=False, is_accumulating=False).peak_bytes > 4 * MIB
