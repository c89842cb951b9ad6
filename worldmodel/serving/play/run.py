"""Creates the page's application from a checkpoint."""

import contextlib
from pathlib import Path

from fastapi import FastAPI

from robotwin_adapters.open_dataset import open_as_trained
from worldmodel.data.video import MissingVideoError
from worldmodel.environments.tabletop import TASK
from worldmodel.locator.model import Locator
from worldmodel.models.model import WorldModel
from worldmodel.serving.play.app import PlayServer, create_play_app
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
) -> FastAPI:
    """Create the application; loads the model once and tests the first scene."""
    model = WorldModel.from_pretrained(checkpoint)
    episodes = None
    if dataset:
        known = model.trained_on
        episodes = open_as_trained(dataset, model.normalizer, known, camera=camera, mapping=mapping)
        embodiment = embodiment or _first_readable(episodes).embodiment
    locator = Locator.from_pretrained("locator")

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


def _first_readable(episodes: EpisodeSource) -> Episode:
    """The first episode, or the first whose video is not missing."""
    for number in range(len(episodes) - 1):
        with contextlib.suppress(MissingVideoError):
            return episodes[number]
    return episodes[len(episodes) - 1]
