"""How well a world model predicts two arms, the pixels of each arm apart.

Test episodes of one seed come three ways: both arms move, only the left, only the right. Until an arm pushes
something, the picture of both is put together from the pictures of each, so the truth itself tells which arm
moved a pixel. Clips start at the first frame, where both arms are at home. Arms are held in two ways that
must agree: in the simulator, and by an edit of the commands.
Axes: t generated frames, H and W pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from robotwin_adapters.open_dataset import action_space_for, open_dataset
from worldmodel.data.pose_tracks import stack_tracks
from worldmodel.diagnostics.actions.action_channel import action_channel
from worldmodel.diagnostics.actions.action_groups import group_actions
from worldmodel.diagnostics.actions.world_model_channel import PoseView, world_model_channel
from worldmodel.evaluation.action_edits import HOLD, edit_actions
from worldmodel.evaluation.held_out import HeldOutClip, HeldOutClips, HeldOutConfig, held_out_clips
from worldmodel.evaluation.metrics.video import decibels, masked_mse, moving_pixels
from worldmodel.evaluation.predictors import ModelPredictor
from worldmodel.models.model import WorldModel

SAMPLING_STEPS = 1
EDITS: dict[str, dict[str, str | float]] = {  # which arms move -> what is done to the others
    "both": {},
    "left": {"right_arm": HOLD, "right_gripper": HOLD},
    "right": {"left_arm": HOLD, "left_gripper": HOLD},
    "none": dict.fromkeys(("left_arm", "left_gripper", "right_arm", "right_gripper"), HOLD),
}
Video = Float[Tensor, "t 3 H W"]


@dataclass(frozen=True)
class TestClips:
    """Which arms move -> folder of held-out episodes, and how many of them."""

    folders: Mapping[str, str]
    episodes: int

    def open(self, model: WorldModel) -> list[dict[str, HeldOutClip]]:
        """Episode by episode, the first clip of each way in which it was simulated."""
        found = {name: self._first_clips(model, folder) for name, folder in self.folders.items()}
        return [dict(zip(found, group, strict=True)) for group in zip(*found.values(), strict=True)]

    def _first_clips(self, model: WorldModel, folder: str) -> list[HeldOutClip]:
        source = open_dataset(folder, action_space=action_space_for(model.normalizer))
        config = HeldOutConfig(split="all", episodes=self.episodes)
        clips: HeldOutClips = held_out_clips(source, model.contract, model.normalizer, config)
        clips.places = [(record, 0) for record, _ in clips.places]
        return [clips[number] for number in range(len(clips))]


def predict(model: WorldModel, truth: Mapping[str, HeldOutClip], seed: int) -> dict[str, Video]:
    """Which arms move -> what the model predicts of the commands of both, the others held by edits.

    `added` is the picture of no motion, plus what each arm alone changes in it.
    """
    predictor, clip = ModelPredictor(model, SAMPLING_STEPS), truth["both"]
    commands = {name: predictor.commands(video) for name, video in truth.items()}
    is_left = torch.tensor([name.startswith("left") for name in clip.names])
    home = torch.where(is_left, commands["right"][0], commands["left"][0])
    told = [edit_actions(commands["both"], clip.names, do, before=home) for do in EDITS.values()]
    given = clip.frames[:1].expand(len(told), 1, *clip.frames.shape[1:])
    videos = predictor(given, torch.stack(told), len(clip.frames), seed, clip)[:, 1:]
    found = dict(zip(EDITS, videos.clamp(0, 1), strict=True))
    found["added"] = (found["left"] + found["right"] - found["none"]).clamp(0, 1)
    return found


def arm_pixels(truth: Mapping[str, HeldOutClip]) -> dict[str, Bool[Tensor, "t H W"]]:
    """Where the true picture of both arms moves: anywhere, and by one arm alone."""
    moved = {name: moving_pixels(clip.frames[1:], clip.frames[0]) for name, clip in truth.items()}
    return {
        "moving": moved["both"],
        "left": moved["both"] & moved["left"] & ~moved["right"],
        "right": moved["both"] & moved["right"] & ~moved["left"],
    }


def score_clip(model: WorldModel, truth: Mapping[str, HeldOutClip], seed: int) -> dict[str, float]:
    """Mean squared errors of one episode, by what was predicted and where it is looked at."""
    made, masks = predict(model, truth, seed), arm_pixels(truth)
    real = truth["both"].frames[1:]
    still = truth["both"].frames[:1].expand_as(real)
    ceiling = model.decode(model.encode(truth["both"].frames[None]))[0, 1:].clamp(0, 1)
    candidates = {"direct": made["both"], "added": made["added"], "static": still, "ceiling": ceiling}
    errors = {
        f"{name}/{where}": mean_error(video, real, mask)
        for name, video in candidates.items()
        for where, mask in masks.items()
    }
    for arm in ("left", "right"):
        alone = truth[arm].frames[1:]
        errors[f"alone/{arm}"] = mean_error(made[arm], alone, moving_pixels(alone, truth[arm].frames[0]))
    return errors


@torch.no_grad()
def score_model(model: WorldModel, clips: TestClips, *, diagnosed_clips: int) -> dict[str, Any]:
    """PSNR in dB, mean over episodes, of every error of `score_clip`; and the Type D score of the arms."""
    episodes = clips.open(model.eval())
    errors = [score_clip(model, truth, seed) for seed, truth in enumerate(episodes)]
    return {
        **mean_decibels(errors),
        "episodes": len(errors),
        **arm_effects(model, [truth["both"] for truth in episodes[:diagnosed_clips]]),
    }


def mean_decibels(errors: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean over episodes of every error, in dB; episodes without such pixels are left out."""
    table = torch.tensor([list(entry.values()) for entry in errors])
    return dict(zip(errors[0], decibels(table).nanmean(0).tolist(), strict=True))


def arm_effects(model: WorldModel, clips: list[HeldOutClip]) -> dict[str, float]:
    """As `worldmodel diagnose`: pixels that both arms move, and the compositional contrast between them."""
    frames = torch.stack([clip.frames[:1] for clip in clips])
    actions = torch.stack([clip.actions for clip in clips])
    shape = (len(clips), model.contract.latent_channels, *model.contract.latent_grid)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    view = pose_view(clips) if model.config.draws_poses else None
    generator = world_model_channel(model, frames, num_inference_steps=SAMPLING_STEPS, view=view)
    groups = group_actions(clips[0].names).dimensions
    channel = action_channel(generator, noise, actions, groups, derivative="difference")
    return {"type_d": float(channel.type_d.score), "contrast": float(channel.contrast.normalized)}


def pose_view(clips: list[HeldOutClip]) -> PoseView:
    """Cameras and first hands of the clips, all of one robot."""
    projections = [clip.projections for clip in clips if clip.projections is not None]
    hands = [clip.hands for clip in clips if clip.hands is not None]
    start = stack_tracks(hands) if hands else None
    return PoseView(clips[0].embodiment, torch.stack(projections), start)


def mean_error(made: Video, real: Video, mask: Bool[Tensor, "t H W"]) -> float:
    """Over all marked pixels of all frames; not a number where none is marked."""
    frames = masked_mse(made, real, mask)
    counts = mask.flatten(1).sum(1)
    known = counts > 0
    total = (frames[known] * counts[known]).sum() / counts[known].sum()
    return float(total)
