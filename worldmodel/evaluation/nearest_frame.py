"""The floor without a network: for each command the training frame seen under the nearest one."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from worldmodel.data.clips import clip_pictures, episode_actions, frames_per_step
from worldmodel.data.index import EpisodeIndex
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.types import to_unit_range


class NearestFrames:
    """All training frames at the rate of the clips, by the command that led to each."""

    def __init__(self, index: EpisodeIndex, normalizer: ActionNormalizer) -> None:
        self.index, self.records = index, index.of("train")
        if not self.records:
            raise ValueError(f"no training episode to take frames from: {index.summary()}")
        commands, places = [], []
        for number, record in enumerate(self.records):
            episode = index.open(record)
            raw = episode_actions(episode, index.config)
            ratio = frames_per_step(episode.fps, index.config)
            at = np.floor((1 + np.arange(len(raw))) * ratio + 0.5).astype(int)
            commands.append(normalizer.normalize(raw, record.embodiment, episode.action_names))
            places += [(number, position) for position in at.tolist()]
        self.commands, self.places = torch.cat(commands), places

    def __call__(self, actions: Float[Tensor, "n a"]) -> Float[Tensor, "n 3 H W"]:
        """A frame for each scaled command."""
        found = torch.cdist(actions.double(), self.commands.double()).argmin(1).tolist()
        frames = []
        for number, position in (self.places[one] for one in found):
            episode = self.index.open(self.records[number])
            frames.append(clip_pictures(episode, [position], self.index.config)[0])
        return to_unit_range(torch.stack(frames))
