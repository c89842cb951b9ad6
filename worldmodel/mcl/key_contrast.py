"""One mechanism feature against one key or several: the action, and what else a clip is known by."""

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from worldmodel.mcl.config import ActionMclConfig, MclConfig
from worldmodel.mcl.critics import Critic
from worldmodel.mcl.gathering import gather_rows, has_all_rows, num_parts
from worldmodel.mcl.info_nce import (
    Contrast,
    equal_conditions,
    info_nce,
    logistic_nce,
    near_conditions,
)
from worldmodel.mcl.rows import few_rows


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
    count = valid.shape[-1] * num_parts()
    if gathers and has_all_rows() and count < config.rows:
        raise ValueError(few_rows(config.rows, count))
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


def contrast_pairs(
    critic: Critic,
    x_hat: Float[Tensor, "..."],
    z: Float[Tensor, "..."],
    u: Float[Tensor, "..."],
    u_for_g: Float[Tensor, "..."],
    valid: Bool[Tensor, "*s n"],
    tolerance: float,
    rng: torch.Generator | None,
) -> Contrast:
    """The critic's score of true (z, u) pairs against that of pairs whose condition is another row's."""
    rows, num_rows = critic.condition_rows, valid.shape[-1]
    shift = int(torch.randint(1, max(num_rows, 2), (), generator=rng, device=z.device))
    keys = rows(u)
    same = (keys - keys.roll(shift, -2)).abs().amax(-1) <= tolerance
    other_u = rows(u_for_g).roll(shift, -2).reshape(u_for_g.shape)
    scores = [critic(x_hat, z, condition).unsqueeze(-1) for condition in (u_for_g, other_u)]
    true, shuffled = (rows(score).squeeze(-1) for score in scores)
    return logistic_nce(true, shuffled, valid, valid & valid.roll(shift, -1) & ~same)


def _equal(config: MclConfig, keys: Float[Tensor, "*s n a"]) -> Bool[Tensor, "*s n n"]:
    if isinstance(config, ActionMclConfig) and not config.tolerance:
        return near_conditions(keys, config.tolerance_share)
    return equal_conditions(keys, config.tolerance)


def _of_others(rows: Shaped[Tensor, "*s n d"]) -> Shaped[Tensor, "*s n d"]:
    """Each row that of one half of the rows further: the rows of a clip stand side by side."""
    return rows.roll(rows.shape[-2] // 2, -2)


def _as_they_are(rows: Tensor) -> Tensor:
    return rows
