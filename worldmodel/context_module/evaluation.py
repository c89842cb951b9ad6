"""Evaluates a context model by comparing generated with real pictures, context by context.

concept sliced Wasserstein distance of prior samples to real pictures; mean over the trained contexts
composition the same for held-out pairs elbo negative evidence lower bound of test pictures in bits per
dimension, trained contexts and pairs mcc correlation of codes and factors on observational test pictures
directions linear independence of how concepts change the decoder's input, and of what the head reads

Every batch has its own real pictures and prior samples.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.context_module.data.types import ContextDataset, Do, context_name, training_contexts
from worldmodel.context_module.models.context_model import ContextModel
from worldmodel.context_module.models.context_module import ContextModule
from worldmodel.context_module.objective import elbo
from worldmodel.diagnostics import concept_directions, concept_mcc, sliced_wasserstein
from worldmodel.diagnostics.contexts.concept_directions import ConceptDirections
from worldmodel.types import to_unit_range


@dataclass(frozen=True)
class ContextScoreConfig:
    """Sample sizes of the evaluation."""

    num_batches: int = 5  # of each context; the published evaluation uses 20 batches of one repeated sample
    batch: int = 256  # pictures of a batch, real and generated
    num_projections: int = 50  # directions of the sliced distance, drawn anew for every batch
    num_elbo: int = 512  # test pictures of each context for the bound
    num_codes: int = 2000  # observational test pictures for the correlation of codes and factors
    seed: int = 0  # of prior samples, directions and posterior noise


def score_contexts(
    model: ContextModel, dataset: ContextDataset, config: ContextScoreConfig
) -> dict[str, Any]:
    """All scores of one model on test pictures, ready for JSON."""
    model.eval()
    trained = training_contexts(len(dataset.concept_names))
    distances = {do: generated_distance(model, dataset, do, config) for do in (*trained, *dataset.held_out)}
    bounds = {do: bound_bits(model, dataset, do, config) for do in (*trained, *dataset.held_out)}
    scores: dict[str, Any] = {
        "concept": _mean(distances, trained),
        "composition": _mean(distances, dataset.held_out),
        "elbo": _mean(bounds, trained),
        "elbo_held_out": _mean(bounds, dataset.held_out),
        "distances": {context_name(do, dataset.concept_names): value for do, value in distances.items()},
    }
    return scores | code_scores(model, dataset, config)


def generated_distance(
    model: ContextModel, dataset: ContextDataset, do: Do, config: ContextScoreConfig
) -> float:
    """Distance of prior samples under do to real pictures of that context."""
    generator = _generator(config, do)
    values = []
    for indices in _batches(dataset, config):
        made = model.sample(len(indices), do, generator=generator).cpu()
        values.append(_distance(_pixels(dataset, do, indices), made, config, generator))
    return float(np.mean(values))


def real_distance(dataset: ContextDataset, do: Do, other: Do, config: ContextScoreConfig) -> float:
    """Distance between real pictures of two contexts; for the same context, the score of a perfect model."""
    generator = _generator(config, do)
    batches = _batches(dataset, config)
    values = [
        _distance(_pixels(dataset, do, first), _pixels(dataset, other, second), config, generator)
        for first, second in zip(batches, batches[1:] + batches[:1], strict=True)
    ]
    return float(np.mean(values))


def reference_distances(dataset: ContextDataset, config: ContextScoreConfig) -> dict[str, float | None]:
    """Scores of a perfect model, and of one that ignores the context."""
    trained, held_out = training_contexts(len(dataset.concept_names)), dataset.held_out
    same = {do: real_distance(dataset, do, do, config) for do in (*trained, *held_out)}
    unmoved = {do: real_distance(dataset, do, (), config) for do in (*trained, *held_out)}
    return {
        "concept_floor": _mean(same, trained),
        "composition_floor": _mean(same, held_out),
        "concept_unmoved": _mean(unmoved, trained),
        "composition_unmoved": _mean(unmoved, held_out),
    }


@torch.no_grad()
def bound_bits(model: ContextModel, dataset: ContextDataset, do: Do, config: ContextScoreConfig) -> float:
    """Negative evidence lower bound of a context's test pictures, bits per dimension."""
    images = dataset.images(do, np.arange(min(config.num_elbo, len(dataset))))
    images = images.to(next(model.parameters()).device)
    bound = elbo(model, images, do, _generator(config, do))
    num_dimensions = model.host.pixels(images[:1]).numel()
    return float((bound.nll + bound.kl).mean()) / np.log(2) / num_dimensions


def code_scores(model: ContextModel, dataset: ContextDataset, config: ContextScoreConfig) -> dict[str, Any]:
    """MCC and independence of directions, where the data and the model allow them."""
    indices = np.arange(min(config.num_codes, len(dataset)))
    codes = model.codes(dataset.images((), indices)).cpu().double().numpy()
    scores: dict[str, Any] = {}
    if (factors := dataset.factors((), indices)) is not None:
        found = concept_mcc(codes, factors)
        scores |= {"mcc": found.aligned, "mcc_matched": found.matched}
    if isinstance(model.module, ContextModule):
        centered = codes - codes.mean(0)
        covariance = np.einsum("nmi,nmj->mij", centered, centered) / len(codes)
        directions = model.module.directions().cpu().double().numpy()
        scores["directions"] = _summary(concept_directions(directions, covariance))
    if model.head is not None:
        rows = model.head.concept_rows(model.num_concepts).cpu().double().numpy()
        scores["head_directions"] = _summary(concept_directions(rows))
    return scores


def _summary(found: ConceptDirections) -> dict[str, Any]:
    values = asdict(found)
    return {
        "smallest_angle": float(found.angles.min()),
        **{name: values[name] for name in ("smallest", "rank", "num_rows", "is_independent")},
    }


def _batches(dataset: ContextDataset, config: ContextScoreConfig) -> list[np.ndarray]:
    """Indices of different pictures for every batch."""
    needed = config.num_batches * config.batch
    if needed > len(dataset):
        raise ValueError(
            f"{dataset.name} has {len(dataset)} test pictures a context, {config.num_batches} batches of "
            f"{config.batch} need {needed}: set data.num_test, or fewer"
        )
    return list(np.arange(needed).reshape(config.num_batches, config.batch))


def _distance(real: Tensor, made: Tensor, config: ContextScoreConfig, generator: torch.Generator) -> float:
    return sliced_wasserstein(real, made, num_projections=config.num_projections, generator=generator)


def _pixels(dataset: ContextDataset, do: Do, indices: np.ndarray) -> Float[Tensor, "n 3 H W"]:
    return to_unit_range(dataset.images(do, indices))


def _generator(config: ContextScoreConfig, do: Do) -> torch.Generator:
    """A separate generator for each context, so that no two share their samples."""
    return torch.Generator().manual_seed(1000 * config.seed + sum(2**concept for concept in do))


def _mean(values: Mapping[Do, float], contexts: tuple[Do, ...]) -> float | None:
    """The mean over contexts; None, which JSON can represent, if there are none."""
    return float(np.mean([values[do] for do in contexts])) if contexts else None
