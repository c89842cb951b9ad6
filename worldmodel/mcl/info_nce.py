"""Contrastive losses over the rows of a batch, written for any number of leading (independent) batches.

Axes here: s independent batches (seeds trained side by side; absent in ordinary training), n rows, d width of
the embedding, a size of a condition.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from worldmodel.mcl.config import ActionMclConfig, MclConfig, Negatives
from worldmodel.mcl.critics import Critic
from worldmodel.mcl.rows import few_rows, gather_rows, has_all_rows, num_parts

NEAR = 0.1  # of the median difference of two conditions: nearer ones count as equal
LEARNED = 3.0  # times chance


@dataclass(frozen=True)
class Contrast:
    """A contrastive loss and how well the rows find their own condition; one value per independent batch."""

    loss: Float[Tensor, "*s"]
    accuracy: Float[Tensor, "*s"]  # share of valid rows whose best key carries the row's own condition
    floor: Float[Tensor, "*s"]  # what the loss tends to when every distinct condition is told apart perfectly
    chance: Float[Tensor, "*s"]  # the accuracy of guessing: one over the number of distinct conditions
    # What guessing stays below in 97.5 % of batches, also if it always names the most frequent condition.
    chance_high: Float[Tensor, "*s"]


def is_learned(accuracy: float, chance: float, chance_high: float) -> bool:
    """Whether an accuracy is far above guessing; of the contrast's paths, ask it of the generator's."""
    return accuracy > max(chance_high, min(LEARNED * chance, (1 + chance) / 2))


def equal_conditions(u: Float[Tensor, "*s n a"], tolerance: float) -> Bool[Tensor, "*s n n"]:
    """True where two rows carry the same condition: no entry differs by more than `tolerance`."""
    # p = inf takes plain differences: equal rows are at distance exactly 0 (p = 2 goes through a matmul).
    return torch.cdist(u.detach().float(), u.detach().float(), p=math.inf) <= tolerance


def near_conditions(u: Float[Tensor, "n a"], share: float | None) -> Bool[Tensor, "n n"]:
    """True where no entry of two rows differs by more than `share` of its range over all rows.

    Without a share: a tenth of the median difference of two rows, in those units.
    """
    u = u.detach().float()
    spread = u.amax(0) - u.amin(0)
    scaled = u / torch.where(spread > 0, spread, 1)
    distance = torch.cdist(scaled, scaled, p=math.inf)
    if share is None:
        return distance <= NEAR * distance.flatten().median()
    return distance <= share


def masked_mean(values: Float[Tensor, "*s n"], valid: Bool[Tensor, "*s n"]) -> Float[Tensor, "*s"]:
    """Mean over the valid rows; 0 when there are none."""
    return torch.where(valid, values, 0).sum(-1) / valid.sum(-1).clamp(min=1)


def info_nce(
    queries: Float[Tensor, "*s n d"],
    keys: Float[Tensor, "*s n d"],
    equal: Bool[Tensor, "*s n n"],
    valid: Bool[Tensor, "*s n"],
    *,
    temperature: float,
    negatives: Negatives,
) -> Contrast:
    """-log(sum over positives of e^{q.k/tau} / sum over candidates of e^{q.k/tau}), mean over valid rows.

    `all`: the positive is the row's own key, every other valid key is a negative, equal conditions included.
    `masked`: keys of equal conditions are left out. `multi_positive`: they count as positives.
    """
    own = torch.eye(queries.shape[-2], dtype=torch.bool, device=queries.device).expand_as(equal)
    # A row always keeps its own key, so that rows outside `valid` stay finite; the mean drops them later.
    candidates = valid.unsqueeze(-2) | own
    if negatives == "masked":
        candidates = candidates & (own | ~equal)
    positives = candidates & (equal | own) if negatives == "multi_positive" else own
    precise = torch.promote_types(queries.dtype, torch.float32)  # half precision would blur e^{1 / tau}
    with torch.autocast(queries.device.type, enabled=False):  # would take the product in bfloat16 again
        logits = (queries.to(precise) @ keys.to(precise).transpose(-1, -2)) / temperature
    logits = logits.masked_fill(~candidates, -math.inf)
    positive = logits.masked_fill(~positives, -math.inf).logsumexp(-1)
    row_loss = logits.logsumexp(-1) - positive
    best_is_equal = (equal | own).gather(-1, logits.argmax(-1, keepdim=True)).squeeze(-1)
    # Keys of equal conditions are equal: no model can rank the own key above them.
    indistinct = (candidates & (equal | own)).sum(-1) / positives.sum(-1)
    # The same key many times is one candidate: a condition counts once, however many rows have it.
    sizes = (equal & valid.unsqueeze(-2)).sum(-1).clamp(min=1)
    others = candidates & ~equal & ~own
    chance = masked_mean(1 / (1 + torch.where(others, 1 / sizes.unsqueeze(-2), 0).sum(-1)), valid)
    count = valid.sum(-1).clamp(min=1)
    likely = torch.maximum(chance, (sizes * valid).amax(-1) / count)
    return Contrast(
        loss=masked_mean(row_loss, valid),
        accuracy=masked_mean(best_is_equal.float(), valid),
        floor=masked_mean(indistinct.log(), valid),
        chance=chance,
        chance_high=_upper_end(likely, count),
    )


def _upper_end(share: Float[Tensor, "*s"], count: Int[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """The upper end of the 95 % interval of a share that is measured on `count` rows."""
    return share + 1.96 * (share * (1 - share) / count).sqrt()


def logistic_nce(
    true_scores: Float[Tensor, "*s n"],
    shuffled_scores: Float[Tensor, "*s n"],
    valid: Bool[Tensor, "*s n"],
    shuffled_valid: Bool[Tensor, "*s n"],
) -> Contrast:
    """Logistic noise-contrastive loss: scores of true conditions against scores of other rows' conditions."""
    loss = masked_mean(F.softplus(-true_scores), valid)
    loss = loss + masked_mean(F.softplus(shuffled_scores), shuffled_valid)
    right = masked_mean((true_scores > 0).float(), valid)
    right = right + masked_mean((shuffled_scores < 0).float(), shuffled_valid)
    half = torch.full_like(loss, 0.5)
    high = _upper_end(half, valid.sum(-1).clamp(min=1))
    return Contrast(
        loss=loss, accuracy=right / 2, floor=torch.zeros_like(loss), chance=half, chance_high=high
    )


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
    shift = int(torch.randint(1, max(num_rows, 2), (), generator=rng))
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
