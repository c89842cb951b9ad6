"""Figures of what codes control: traversals, factor swaps, and attention to concepts."""

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from worldmodel.diagnostics import mig
from worldmodel.diagnostics.scores.factor_sampling import FEW_POINTS
from worldmodel.diagnostics.scores.information import entropies
from worldmodel.mddiff.data.types import FactorDataset
from worldmodel.mddiff.models.attention import concept_attention
from worldmodel.mddiff.models.mddiff import MDDiff
from worldmodel.mddiff.models.protocol import ConceptModel
from worldmodel.report.figures import draw_rows
from worldmodel.types import to_unit_range

DEAD = 0.05  # standard deviation below which a code is not shown, as in the FactorVAE score
INFORMED = 0.1  # share of a factor's entropy that a code must contain to be named after it


@dataclass(frozen=True)
class CodeMeanings:
    """Which factor each code encodes, by mutual information, and the range of each code."""

    codes: Float[np.ndarray, "n d"]  # codes of a sample of images
    share: Float[np.ndarray, "d K"]  # mutual information as a share of the factor's entropy
    factor_names: tuple[str, ...]

    @property
    def shown(self) -> Int[np.ndarray, " shown"]:
        """Codes that vary, the most informative first."""
        alive = np.flatnonzero(self.codes.std(0) >= DEAD)
        return alive[np.argsort(-self.share[alive].max(1), kind="stable")]

    def name(self, code: int) -> str:
        """The code's number and the factor that it shares most information with."""
        factor = int(self.share[code].argmax())
        told = self.share[code, factor]
        return f"{code}: {self.factor_names[factor]} {told:.2f}" if told >= INFORMED else f"{code}: -"

    def codes_of(self, factor: int) -> Int[np.ndarray, " codes"]:
        """Codes that share more information with this factor than with any other."""
        alive = self.codes.std(0) >= DEAD
        best = self.share.argmax(1) == factor
        return np.flatnonzero(alive & best & (self.share[:, factor] >= INFORMED))


def code_meanings(
    model: ConceptModel, dataset: FactorDataset, *, num_pictures: int = 4000, seed: int = 0
) -> CodeMeanings:
    """Encode a random sample and measure the mutual information of codes and factors."""
    rng = np.random.default_rng(seed)
    indices = rng.choice(len(dataset), min(num_pictures, len(dataset)), replace=False).astype(np.int64)
    parts = np.array_split(indices, max(1, len(indices) // 256))
    codes = np.concatenate([model.encode(dataset.images(part)).cpu().numpy() for part in parts])
    factors = dataset.factors(indices)
    information = mig(codes, factors, seed=seed, num_train=max(len(codes), FEW_POINTS)).table
    known = np.maximum(entropies(factors), 1e-12)
    return CodeMeanings(codes, information / known, dataset.factor_names)


@torch.no_grad()
def traversals(
    model: ConceptModel,
    meanings: CodeMeanings,
    start: Float[Tensor, " d"],
    *,
    rows: int = 10,
    columns: int = 8,
) -> dict[str, Float[Tensor, "columns 3 H W"]]:
    """One row of images per code: the code moves from its 2nd to its 98th percentile, the others stay."""
    shown = meanings.shown[:rows]
    if not len(shown):  # a collapsed model has no code to show
        return {}
    moved = start.repeat(len(shown), columns, 1)
    for row, code in enumerate(shown):
        low, high = np.percentile(meanings.codes[:, code], (2, 98))
        moved[row, :, code] = torch.linspace(float(low), float(high), columns)
    pictures = model.decode(moved.flatten(0, 1)).cpu().unflatten(0, (len(shown), columns))
    return {meanings.name(int(code)): row for code, row in zip(shown, pictures, strict=True)}


@torch.no_grad()
def factor_swaps(
    model: ConceptModel, meanings: CodeMeanings, source: Tensor, target: Tensor
) -> dict[str, Float[Tensor, "n 3 H W"]]:
    """Source images with the codes of one factor replaced by those of the target images, for each factor."""
    codes, others = model.encode(source), model.encode(target)
    columns = {
        "source": to_unit_range(source),
        "target": to_unit_range(target),
        "rebuilt": model.decode(codes),
    }
    for factor, name in enumerate(meanings.factor_names):
        taken = torch.from_numpy(meanings.codes_of(factor)).to(codes.device)
        if len(taken):
            mixed = codes.clone()
            mixed[:, taken] = others[:, taken]
            columns[name] = model.decode(mixed)
    return {name: pictures.cpu() for name, pictures in columns.items()}


def draw_attention(
    path: Path, model: MDDiff, meanings: CodeMeanings, images: Tensor, rows: int = 8
) -> tuple[float, float]:
    """Images (first row) and, for each informative concept, the denoiser's attention to its token.

    Returns the lowest and the highest attention, relative to uniform attention.
    """
    maps = concept_attention(model, images)
    shown = [int(code) for code in meanings.shown[:rows]]
    attention = maps[max(maps)].cpu()[:, shown] * model.config.num_concepts
    overlays, low, high = attention_overlays(images, attention)
    names = [meanings.name(code) for code in shown]
    draw_rows(path, {"picture": to_unit_range(images), **dict(zip(names, overlays.unbind(1), strict=True))})
    return low, high


def attention_overlays(
    images: UInt8[Tensor, "n 3 H W"], attention: Float[Tensor, "n c side side"]
) -> tuple[Float[Tensor, "n c 3 H W"], float, float]:
    """Attention as color over gray images, on one scale for all concepts; returns the scale's limits too."""
    smooth = F.interpolate(attention, size=images.shape[-2:], mode="bilinear", align_corners=False)
    low, high = (float(end) for end in smooth.aminmax()) if smooth.numel() else (0.0, 0.0)
    level = (smooth - low) / max(high - low, 1e-9)
    colors = torch.from_numpy(matplotlib.colormaps["inferno"](level.numpy())[..., :3]).float().movedim(-1, 2)
    gray = images.float().mean(1, keepdim=True)[:, None] / 255
    return 0.7 * colors + 0.3 * gray, low, high
