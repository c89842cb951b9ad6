"""Creates the page's application from a checkpoint."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from robotwin_adapters.open_dataset import open_as_trained
from worldmodel.data.video import MissingVideoError
from worldmodel.environments.tabletop import TASK
from worldmodel.locator.model import Locator
from worldmodel.models.model import WorldModel
from worldmodel.serving.play.app import MAX_LISTED, PlayServer, create_play_app
from worldmodel.serving.play.game import Game
from worldmodel.types import Episode, EpisodeSource


def play_app(
    checkpoint: str = "desk",
    *,
    dataset: str | None = None,
    mapping: str | None = None,
    camera: str | None = None,
    embodiment: str | None = None,
    task: str = TASK,
    num_inference_steps: int = 0,
    out: str = "outputs/play",
    device: str = "auto",
) -> FastAPI:
    """Create the application; loads the model once and tests the first scene."""
    model = WorldModel.from_pretrained(checkpoint, device=device)
    episodes = None
    if dataset:
        known = model.trained_on
        opened = open_as_trained(dataset, model.normalizer, known, camera=camera, mapping=mapping)
        episodes = present_episodes(opened)
        embodiment = embodiment or episodes[0].embodiment
    locator = Locator.from_pretrained("locator", device)

    def new_game() -> Game:
        return Game(
            model,
            embodiment=embodiment,
            task=task,
            dataset=episodes,
            num_inference_steps=num_inference_steps,
            locator=locator,
        )

    new_game().reset(0)
    return create_play_app(PlayServer(new_game, Path(checkpoint).name, Path(out)))


@dataclass(frozen=True)
class PresentEpisodes:
    """The episodes of a dataset whose videos are there."""

    source: EpisodeSource
    numbers: tuple[int, ...]

    @property
    def name(self) -> str:
        """Of the dataset."""
        return self.source.name

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Episode:
        return self.source[self.numbers[index]]


def present_episodes(source: EpisodeSource) -> PresentEpisodes:
    """As many as the page lists; at least one."""
    numbers = []
    for number in range(min(len(source), MAX_LISTED)):
        with contextlib.suppress(MissingVideoError):
            source[number]
            numbers.append(number)
    return PresentEpisodes(source, tuple(numbers or [0]))
