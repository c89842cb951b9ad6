"""A host with a context module inside, and the models it is compared with.

    context      pictures --host--> q(z) --module under do--> --host--> pictures
    pooled       the same module, always with do=()
    conditional  no module: a learned vector per concept is added to z (a linear layer on [z, multi-hot do])
    base         the host alone

With a head, a linear map leads from the posterior of a pretrained host's encoder to q(z).
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from worldmodel.checked import read_json, shorten
from worldmodel.checkpoint.folder import CONFIG_FILE, CONTRACT_FILE
from worldmodel.config import load_config, save_config
from worldmodel.context_module.data.types import check_do
from worldmodel.context_module.models.context_module import ContextModule, ContextModuleConfig
from worldmodel.context_module.models.hosts import HostConfig, as_host, build_host
from worldmodel.device import AnyDevice, find_device
from worldmodel.files import read_module, replaced_folder, write_tensors
from worldmodel.md_vae.gaussian import Gaussian

FORMAT = {"format": 1, "model": "ContextModel"}
CHUNK = 512  # pictures or latents that are processed at once
Variant = Literal["context", "pooled", "conditional", "base"]


@dataclass(frozen=True)
class ContextModelConfig:
    """Host, module, and how they are joined."""

    variant: Variant = "context"  # base and pooled ignore contexts; conditional has no module
    has_head: bool = False  # linear map from the host's posterior to q(z)
    host: HostConfig = field(default_factory=HostConfig)
    module: ContextModuleConfig = field(default_factory=ContextModuleConfig)  # num_concepts: all variants

    def __post_init__(self) -> None:
        if self.has_head and self.variant in ("base", "conditional"):
            raise ValueError(f"variant {self.variant} has no module for a head to lead to: has_head=false")


class ContextShift(nn.Module):
    """z plus a learned vector for every concept in do: the usual conditioning of a decoder."""

    def __init__(self, num_concepts: int, latent_dim: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(num_concepts, latent_dim))

    def forward(self, z: Float[Tensor, "b d"], do: Iterable[int] = ()) -> Float[Tensor, "b d"]:
        """Decoder input under do."""
        return z + self.shift[list(check_do(do, len(self.shift)))].sum(0)


class Head(nn.Module):
    """Linear map from mean and log standard deviation of the host's posterior to those of q(z)."""

    def __init__(self, host_dim: int, latent_dim: int, is_identity: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * host_dim, 2 * latent_dim)
        if is_identity:
            self._start_as_identity(host_dim, latent_dim)

    def forward(self, posterior: Gaussian) -> Gaussian:
        """q(z); dimensions that the host lacks start as the prior."""
        features = torch.cat([posterior.mean, posterior.log_std], 1)
        return Gaussian(*self.linear(features).chunk(2, dim=1))

    @torch.no_grad()
    def _start_as_identity(self, host_dim: int, latent_dim: int) -> None:
        if latent_dim < host_dim:
            raise ValueError(
                f"start=identity needs num_concepts * in_width of at least {host_dim}, got {latent_dim}"
            )
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        for part in range(2):
            rows, columns = part * latent_dim, part * host_dim
            self.linear.weight[rows : rows + host_dim, columns : columns + host_dim] = torch.eye(host_dim)


class ContextModel(nn.Module):
    """Encode, intervene, decode; trained by `objective.py`."""

    def __init__(self, config: ContextModelConfig, host: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        built: Any = build_host(config.host) if host is None else host
        self.host, host_dim = built, built.latent_dim
        has_module = config.variant in ("context", "pooled")
        self.latent_dim: int = config.module.latent_dim if has_module else host_dim
        if has_module and not config.has_head and self.latent_dim != host_dim:
            raise ValueError(
                f"the host has {host_dim} latent dimensions, {config.module.num_concepts} concepts of "
                f"{config.module.in_width} need {self.latent_dim}: make them equal, or set has_head=true"
            )
        is_identity = config.module.start == "identity"
        self.head = Head(host_dim, self.latent_dim, is_identity) if config.has_head else None
        self.module: ContextModule | ContextShift | None = None
        if has_module:
            self.module = ContextModule(config.module, host_dim)
        elif config.variant == "conditional":
            self.module = ContextShift(config.module.num_concepts, host_dim)

    @property
    def num_concepts(self) -> int:
        """Concepts that can be intervened on."""
        return self.config.module.num_concepts

    def posterior(self, pixels: Float[Tensor, "n c H W"]) -> Gaussian:
        """q(z | x), independent of the context."""
        posterior: Gaussian = self.host.posterior(pixels)
        return posterior if self.head is None else self.head(posterior)

    def decode(self, z: Float[Tensor, "n z"], do: Iterable[int] = ()) -> Float[Tensor, "n c H W"]:
        """Output of the host's decoder under do."""
        if self.module is not None:
            z = self.module(z, () if self.config.variant == "pooled" else do)
        decoded: Tensor = self.host.decode(z)
        return decoded

    @torch.no_grad()
    def sample(
        self, count: int, do: Iterable[int] = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n 3 H W"]:
        """Pictures in [0, 1] decoded from prior samples, under do."""
        return self.pictures(torch.randn(count, self.latent_dim, generator=generator), do)

    @torch.no_grad()
    def pictures(self, z: Float[Tensor, "n z"], do: Iterable[int] = ()) -> Float[Tensor, "n 3 H W"]:
        """Pictures in [0, 1] decoded from given latents, under do."""
        device = next(self.parameters()).device
        return torch.cat([self.host.pictures(self.decode(part.to(device), do)) for part in z.split(CHUNK)])

    @torch.no_grad()
    def codes(self, images: UInt8[Tensor, "n 3 H W"], do: Iterable[int] = ()) -> Float[Tensor, "n m o"]:
        """Concepts of pictures in a context; without a module, equal slices of the latent."""
        device = next(self.parameters()).device
        parts = [self.posterior(self.host.pixels(part.to(device))).mean for part in images.split(CHUNK)]
        z = torch.cat(parts)
        if isinstance(self.module, ContextModule):
            return self.module.codes(z, () if self.config.variant == "pooled" else do)
        width = z.shape[1] // self.num_concepts
        return z[:, : width * self.num_concepts].unflatten(1, (self.num_concepts, width))

    def project(self) -> None:
        """Project constrained weights back into their range."""
        if isinstance(self.module, ContextModule):
            self.module.project()

    def freeze_host(self) -> None:
        """Freeze the host, so that only the head and the context module train."""
        if self.module is None:
            raise ValueError("a base model without its host has nothing to train")
        self.host.requires_grad_(False)

    def train(self, mode: bool = True) -> "ContextModel":
        """A frozen host stays in evaluation mode: its batch statistics are frozen too."""
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.host.parameters()):
            self.host.eval()
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config and weights as one folder; an older one there is replaced at the end."""
        if self.config.host.kind == "other":
            raise ValueError("a host of your own is not described by a config: save its weights yourself")
        with replaced_folder(Path(folder), CONTRACT_FILE) as new:
            save_config(self.config, new / CONFIG_FILE)
            (new / CONTRACT_FILE).write_text(json.dumps(FORMAT) + "\n")
            write_tensors(new / "model.safetensors", self.state_dict())

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: AnyDevice = "auto") -> "ContextModel":
        """A saved model, in evaluation mode, on a device (see `device.py`)."""
        place = find_device(device)
        path = Path(folder) / CONTRACT_FILE
        if not path.is_file():
            raise ValueError(f"no model at {folder}: expected {path.name} in it")
        if (found := read_json(path)) != FORMAT:
            raise ValueError(f"{path}: expected {FORMAT}, got {shorten(found)}")
        config = load_config(ContextModelConfig, os.fspath(path.with_name(CONFIG_FILE)))
        model = read_module(lambda: cls(config), path.with_name("model.safetensors"), str(folder))
        return model.eval().to(place)


def wrap_host(
    host: nn.Module, module: ContextModuleConfig, *, has_head: bool = False, image_size: int = 64
) -> ContextModel:
    """Put a context module into any host; with start=identity its outputs stay the same until training.

    Example:
        >>> model = wrap_host(ImageVae.from_pretrained("outputs/disentanglement/beta_vae/model"), config)
        >>> model.sample(16, do=(0, 2))
    """
    wrapped, described = as_host(host, image_size)
    config = ContextModelConfig(has_head=has_head, host=described, module=module)
    return ContextModel(config, wrapped)
