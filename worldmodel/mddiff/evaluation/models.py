"""Opens any trained concept model as `encode(images) -> codes` and `decode(codes) -> images`."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from worldmodel.checked import read_json
from worldmodel.checkpoint.folder import CONTRACT_FILE
from worldmodel.diagnostics import IcaAligner
from worldmodel.mddiff.models.image_vae import ImageVae
from worldmodel.mddiff.models.mddiff import MDDiff
from worldmodel.mddiff.models.protocol import ConceptModel


@dataclass(frozen=True)
class SampledPictures:
    """A diffusion model that decodes with a fixed number of DDIM steps."""

    model: MDDiff
    num_steps: int

    def encode(self, images: UInt8[Tensor, "n 3 H W"]) -> Float[Tensor, "n d"]:
        """The concepts of images."""
        return self.model.encode(images)

    def decode(self, codes: Float[Tensor, "n d"]) -> Float[Tensor, "n 3 H W"]:
        """Decode from one shared noise sample, so that images differ only by their codes."""
        return self.model.decode(codes, num_steps=self.num_steps)


@dataclass(frozen=True)
class IndependentCodes:
    """A model whose codes are replaced by their independent components (ICA).

    Directions without variance have no component; zeros take their place to keep the number of codes.
    """

    model: ConceptModel
    aligner: IcaAligner

    def components(self, codes: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Unit-variance components of the model's codes, padded with zeros."""
        found = self.aligner.transform(codes)
        return np.pad(found, ((0, 0), (0, codes.shape[1] - found.shape[1]))).astype(np.float32)

    def encode(self, images: UInt8[Tensor, "n 3 H W"]) -> Float[Tensor, "n d"]:
        """The components of images."""
        return torch.from_numpy(self.components(self.model.encode(images).cpu().numpy()))

    def decode(self, codes: Float[Tensor, "n d"]) -> Float[Tensor, "n 3 H W"]:
        """Images decoded from the codes with these components."""
        kept = codes[:, : self.aligner.num_components_].cpu().numpy().astype(np.float64)
        mixed = self.aligner.inverse_transform(kept)
        return self.model.decode(torch.from_numpy(mixed).float())


def open_concept_model(folder: str | Path, *, ddim_steps: int = 50, device: str = "auto") -> ConceptModel:
    """Load the model in a folder written by `save_pretrained`; its contract file names the model class."""
    path = Path(folder) / CONTRACT_FILE
    if not path.is_file():
        raise ValueError(f"no model at {folder}: expected {CONTRACT_FILE} in it")
    kind = read_json(path).get("model")
    if kind == "ImageVae":
        return ImageVae.from_pretrained(folder, device)
    if kind == "MDDiff":
        return SampledPictures(MDDiff.from_pretrained(folder, device), ddim_steps)
    raise ValueError(f"{path}: expected a model ImageVae or MDDiff, found {kind!r}")


def with_independent_codes(
    model: ConceptModel, codes: Float[np.ndarray, "n d"], *, seed: int = 0
) -> IndependentCodes:
    """Fit independent components to codes of the model; needs no factor labels."""
    return IndependentCodes(model, IcaAligner(seed=seed).fit(codes))
