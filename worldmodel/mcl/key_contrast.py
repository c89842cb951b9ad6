"""One mechanism feature against one key or several: the action, and what else a clip is known by."""

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from worldmodel.mcl.config import ActionMclConfig, MclConfig
from worldmodel.mcl.gathering import gather_rows
from worldmodel.mcl.info_nce import Contrast, equal_conditions, info_nce, near_conditions


def contrast_keys(
    config: MclConfig,
    feature: Float[Tensor, "*s n d"],
    heads: Sequence[tuple[nn.Module, nn.Module]],
    keys: Sequence[Float[Tensor, "*s n _"]],
    valid: Bool[Tensor, "*s n"],
    *,
    gathers: bool,
) -> Contrast:
    """InfoNCE of the feature with every key; accuracy and floor are those of the first.

    Args:
        config: temperature, negatives, tolerance, and how several terms are put together.
        feature: mechanism features, a row each.
        heads: for every key the head of the feature and the head of the key.
        keys: conditions of the rows; the first is the action.
        valid: rows that take part.
        gathers: contrast the rows of all processes.
    """
    if isinstance(config, ActionMclConfig) and config.pairing == "other":
        keys = [_of_others(key) for key in keys]
        valid = valid & _of_others(valid.unsqueeze(-1)).squeeze(-1)
    gather = gather_rows if gathers else _as_they_are
    queries = [gather(head(feature)) for head, _ in heads]
    projected = [gather(head(key)) for (_, head), key in zip(heads, keys, strict=True)]
    equal = [_equal(config, gather(key)) for key in keys]
    takes_part = gather(valid.unsqueeze(-1)).squeeze(-1)

    def contrast(query: Tensor, key: Tensor, same: Tensor, temperature: float) -> Contrast:
        return info_nce(query, key, same, takes_part, temperature=temperature, negatives=config.negatives)

    if isinstance(config, ActionMclConfig) and config.terms == "joint":
        # The scalar product of rows side by side is the sum of their scalar products.
        all_equal = torch.stack(equal).all(0)
        joined = torch.cat(queries, -1), torch.cat(projected, -1)
        return contrast(*joined, all_equal, config.temperature * len(keys))
    terms = [contrast(*rows, config.temperature) for rows in zip(queries, projected, equal, strict=True)]
    return dataclasses.replace(terms[0], loss=torch.stack([term.loss for term in terms]).sum(0))


def _equal(config: MclConfig, keys: Float[Tensor, "*s n a"]) -> Bool[Tensor, "*s n n"]:
    if isinstance(config, ActionMclConfig) and not config.tolerance:
        return near_conditions(keys, config.tolerance_share)
    return equal_conditions(keys, config.tolerance)


def _of_others(rows: Shaped[Tensor, "*s n d"]) -> Shaped[Tensor, "*s n d"]:
    """Each row that of one half of the rows further: the rows of a clip stand side by side."""
    return rows.roll(rows.shape[-2] // 2, -2)


def _as_they_are(rows: Tensor) -> Tensor:
    return rows
