"""What was fixed before anything was trained: held-out episodes, and how clips are cut.

EPISODES was drawn once by `draw` from the readable episodes of each set and is read ever after.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from worldmodel.data.clips import ClipConfig
from worldmodel.data.splits import SplitConfig

SEED = 31  # of the draw
EPISODES = Path(__file__).with_name("episodes.json")
HELD_OUT = {"g1": (18, 6), "cr5": (12, 4)}  # set -> episodes for the test, and for choices
CLIPS_PER_EPISODE = 4  # evenly spread
CLIP = ClipConfig(num_frames=17, stride=4, height=64, width=64, step=1)  # 16 frames from one given, stretched


@dataclass(frozen=True)
class HeldOutEpisodes:
    """Those that no model of this set is trained on."""

    test: tuple[str, ...]
    choice: tuple[str, ...]

    @property
    def splits(self) -> SplitConfig:
        """As a division of the data: choices are made on the validation split."""
        return SplitConfig(val=0.0, test=0.0, val_uids=self.choice, test_uids=self.test)


def draw(uids: Sequence[str], num_test: int, num_choice: int, seed: int = SEED) -> HeldOutEpisodes:
    """Episodes at random; the order in which they are named does not matter."""
    order = np.random.default_rng(seed).permutation(sorted(uids)).tolist()
    test, choice = order[:num_test], order[num_test : num_test + num_choice]
    return HeldOutEpisodes(tuple(sorted(test)), tuple(sorted(choice)))


def held_out_episodes(name: str, file: Path = EPISODES) -> HeldOutEpisodes:
    """Those of a set, as drawn."""
    known = json.loads(file.read_text())[name]
    return HeldOutEpisodes(tuple(known["test"]), tuple(known["choice"]))
