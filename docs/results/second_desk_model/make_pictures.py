"""The animation and the sheets of the page: python make_pictures.py MODEL LEFT RIGHT --carry CARRY."""

import argparse
from pathlib import Path

import torch
from PIL import Image

from worldmodel.evaluation.command_line import open_for_model
from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
from worldmodel.evaluation.predictors import ModelPredictor
from worldmodel.models.model import WorldModel
from worldmodel.types import to_uint8

HERE = Path(__file__).parent
NUM_FRAMES, SCALE = 25, 3
LONG_FRAMES, LONG_EVERY = 241, 40
CLIPS = (20, 44)  # of each task


def pairs(
    model: WorldModel, source: str, folders: list[str], num_frames: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Truth and prediction of the chosen clips."""
    predict, found = ModelPredictor(model, num_inference_steps=1), []
    config = HeldOutConfig(split="all", num_frames=num_frames)
    for folder in folders:
        clips = held_out_clips(open_for_model(source, folder), model.contract, model.normalizer, config)
        for clip in (clips[number] for number in CLIPS):
            given, told = clip.frames[None, :1], predict.commands(clip)[None]
            found.append((clip.frames, predict(given, told, num_frames, 0, clip)[0].clamp(0, 1)))
    return found


def picture(rows: list[list[torch.Tensor]]) -> Image.Image:
    """Rows of frames as one enlarged picture."""
    frames = to_uint8(torch.cat([torch.cat(row, 2) for row in rows], 1)).permute(1, 2, 0).numpy()
    image = Image.fromarray(frames)
    return image.resize((image.width * SCALE, image.height * SCALE), Image.Resampling.NEAREST)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("folders", nargs="+", help="held-out episodes, one folder for each task")
    parser.add_argument("--carry", required=True, help="long held-out episodes")
    options = parser.parse_args()
    model = WorldModel.from_pretrained(options.model)
    found = pairs(model, options.model, options.folders, NUM_FRAMES)
    animation = [picture([[pair[side][t] for pair in found] for side in (0, 1)]) for t in range(NUM_FRAMES)]
    animation = [frame.quantize(128) for frame in animation]
    animation[0].save(
        HERE / "rollouts.gif", save_all=True, append_images=animation[1:], duration=120, loop=0, optimize=True
    )
    times = range(0, NUM_FRAMES, 4)
    picture([[video[t] for t in times] for pair in found for video in pair]).save(HERE / "rollouts.png")
    times = range(0, LONG_FRAMES, LONG_EVERY)
    found = pairs(model, options.model, [options.carry], LONG_FRAMES)
    picture([[video[t] for t in times] for pair in found for video in pair]).save(HERE / "carry.png")
