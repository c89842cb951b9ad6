"""Which parameters MCL trains: those that a mode excludes, and a report measured from the gradients."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, autograd, nn

from worldmodel.mcl.config import MclConfig
from worldmodel.mcl.contrast import MechanisticContrast


def freeze_unreached(contrast: MechanisticContrast) -> MechanisticContrast:
    """Freeze what this mode cannot train: distributed training would wait for its gradients."""
    config, critic = contrast.config, contrast.critic
    assert isinstance(critic, nn.Module)
    if config.variant in ("nce", "fisher", "denoising"):
        contrast.gradient_head.requires_grad_(False)
        contrast.condition_head.requires_grad_(False)
    elif config.variant == "jacobian_vjp" or config.mode not in ("exact", "first_order", "hessian_diag"):
        critic.requires_grad_(False)
    if config.critic == "fixed":
        critic.requires_grad_(False)
    if config.variant != "nce":
        # A constant in the score has zero derivative with respect to z.
        last = [layer for layer in critic.modules() if isinstance(layer, nn.Linear)][-1]
        last.bias.requires_grad_(False)
    return contrast


@dataclass(frozen=True)
class GradientFlow:
    """The gradient of one loss with respect to one group of parameters."""

    num_tensors: int
    num_connected: int  # tensors that the loss depends on
    gradient_norm: float  # 0 also where a zero-initialized layer follows the connected parameters

    @property
    def is_reached(self) -> bool:
        """Whether any tensor of the group gets a gradient that is not zero."""
        return self.gradient_norm > 0


def gradient_flow(
    loss: Float[Tensor, "*s"], groups: Mapping[str, Iterable[Tensor]]
) -> dict[str, GradientFlow]:
    """Which groups of parameters receive gradient from `loss`; the graph is kept and no .grad is touched."""
    reach = {}
    for name, members in groups.items():
        tensors = [tensor for tensor in members if tensor.requires_grad]
        gradients = (
            autograd.grad(loss.sum(), tensors, retain_graph=True, allow_unused=True) if tensors else ()
        )
        connected = [gradient for gradient in gradients if gradient is not None]
        norm = math.hypot(*(float(torch.linalg.vector_norm(gradient)) for gradient in connected))
        reach[name] = GradientFlow(len(tensors), len(connected), norm)
    return reach


def flow_report(config: MclConfig, reach: Mapping[str, GradientFlow]) -> str:
    """The report logged once per run: one line per group of parameters."""
    lines = [f"MCL ({config.variant}, {config.mode}) sends gradient to:"]
    for name, group in reach.items():
        verdict = f"yes, norm {group.gradient_norm:.2e}" if group.is_reached else "NO"
        if not group.is_reached and group.num_connected:
            verdict = "connected, but the gradient is zero at this point"
        lines.append(f"  {name}: {verdict} ({group.num_connected} of {group.num_tensors} tensors)")
    return "\n".join(lines)
