"""Assigns episodes to training, validation and test, each by its name alone."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class SplitConfig:
    """Fractions of episodes to hold out by hash; episodes listed by name override the hash."""

    val: float = 0.1  # fraction of episodes for validation
    test: float = 0.1  # fraction of episodes for testing
    seed: int = 0  # another seed gives another split
    train_uids: tuple[str, ...] = ()  # episodes that always train
    val_uids: tuple[str, ...] = ()  # episodes that always validate
    test_uids: tuple[str, ...] = ()  # episodes that always test

    def __post_init__(self) -> None:
        if self.val < 0 or self.test < 0 or self.val + self.test > 1:
            raise ValueError(
                f"split fractions are >= 0 and sum to at most 1, got val={self.val} test={self.test}"
            )
        listed = [*self.train_uids, *self.val_uids, *self.test_uids]
        twice = sorted({uid for uid in listed if listed.count(uid) > 1})
        if twice:
            raise ValueError(f"episodes listed in more than one split: {', '.join(twice)}")


def check_listed(config: SplitConfig, uids: Collection[str]) -> None:
    """Refuse listed names that match no episode: a typo would put a test episode into training."""
    for name in ("train_uids", "val_uids", "test_uids"):
        for uid in getattr(config, name):
            if uid not in uids:
                near = get_close_matches(uid, uids, n=3) or sorted(uids)[:3]
                raise ValueError(
                    f"splits.{name} lists {uid!r}, no episode has this name; near it: {', '.join(near)}"
                )


def split_of(uid: str, config: SplitConfig) -> Split:
    """The split of one episode, which does not depend on other episodes."""
    if uid in config.train_uids:
        return "train"
    if uid in config.val_uids:
        return "val"
    if uid in config.test_uids:
        return "test"
    digest = hashlib.sha256(f"{config.seed}:{uid}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < config.test:
        return "test"
    return "val" if position < config.test + config.val else "train"
