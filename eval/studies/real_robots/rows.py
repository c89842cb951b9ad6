"""All rows of a set by the judge: one record for every row and held-out clip."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from worldmodel.data.clips import resize_frames
from worldmodel.data.index import EpisodeIndex
from worldmodel.evaluation.controls import controlled_actions, static_video
from worldmodel.evaluation.held_out import HeldOutClip, HeldOutClips
from worldmodel.evaluation.jsonl_store import RecordLines
from worldmodel.evaluation.metrics.clips import score_clip
from worldmodel.evaluation.nearest_frame import NearestFrames
from worldmodel.evaluation.predictors import ModelPredictor, predict_each
from worldmodel.models.model import WorldModel
from worldmodel.models.picture_head import PictureHead, resized
from worldmodel.quickstart.direct import DirectPredictor
from worldmodel.types import FRAMES_PER_LATENT, EpisodeSource, to_unit_range

Videos = dict[str, Float[Tensor, "t 3 H W"]]  # generated frames by row
STEPS = 1  # sampling steps a latent frame


@dataclass(frozen=True)
class Judged:
    """What is compared, on the held-out clips of every split."""

    model: WorldModel
    heads: Mapping[str, PictureHead]  # by row; the first is under every wrong action too
    direct: DirectPredictor | None
    others: Mapping[str, WorldModel]  # by row: without a head
    clips: Mapping[str, HeldOutClips]  # by split
    index: EpisodeIndex  # whose training split gives the nearest frames


def shown(
    head: PictureHead, decoded: Float[Tensor, "t 3 h w"], given: Float[Tensor, "3 H W"]
) -> Float[Tensor, "t 3 H W"]:
    """A decoded video as a session would show it, a latent frame at a time."""
    state, parts = head.open(given[None, None]), []
    for block in decoded[None].split(FRAMES_PER_LATENT, 1):
        frames, state = head(block, state)
        parts.append(frames[0])
    return torch.cat(parts)


@torch.no_grad()
def clip_videos(judged: Judged, clips: HeldOutClips, number: int, nearest: NearestFrames) -> Videos:
    """Every row of a clip."""
    clip, partner = clips[number], clips.partner(number)
    given, count = clip.frames[0], len(clip.frames) - 1
    other = None if partner is None else clips[partner].actions
    generator = torch.Generator().manual_seed(number)
    told = controlled_actions(clip.actions, clip.names, other=other, generator=generator)
    predictor = ModelPredictor(judged.model, STEPS)
    made = predict_each(predictor, clip, told, num_given=1, seed=number, max_batch=16)
    coded = judged.model.decode(judged.model.encode(clip.frames[None]))[0, 1:]
    videos = {"static": static_video(given, count), "nearest": nearest(clip.actions), "autoencoder": coded}
    videos["base"] = made["true"][1:]
    for place, (row, head) in enumerate(judged.heads.items()):
        under = made if place == 0 else {"true": made["true"]}
        videos |= {f"{row}/{name}": shown(head, video[1:], given) for name, video in under.items()}
    for row, model in judged.others.items():
        alone = predict_each(
            ModelPredictor(model, STEPS), clip, {"true": clip.actions}, num_given=1, seed=number, max_batch=1
        )
        videos[row] = alone["true"][1:]
    if judged.direct is None:
        return videos
    known = {name: actions for name, actions in told.items() if actions is not None}
    drawn = judged.direct(given.expand(len(known), -1, -1, -1), torch.stack(list(known.values())))
    return videos | {f"direct/{name}": video for name, video in zip(known, drawn, strict=True)}


def judge_rows(judged: Judged, output: Path) -> None:
    """Measure what is not measured yet; OUTPUT/clips.jsonl holds all of it."""
    nearest = NearestFrames(judged.index, judged.model.normalizer)
    records = RecordLines(output / "clips.jsonl", {"study": "real_robots"})
    for split, clips in judged.clips.items():
        for number, key in enumerate(tqdm(clips.keys, desc=split)):
            if f"{split}/{key}" in records:
                continue
            clip = clips[number]
            videos = clip_videos(judged, clips, number, nearest)
            scores = {
                name: asdict(score_clip(video, clip.frames[1:], clip.frames[0]))
                for name, video in videos.items()
            }
            records.add(f"{split}/{key}", {"uid": clip.uid, "split": split, "rows": scores})


def camera_frames(source: EpisodeSource, judged: Judged, clip: HeldOutClip) -> Float[Tensor, "t 3 H W"]:
    """The clip at the camera's own size."""
    record = next(record for record in judged.index.records if record.uid == clip.uid)
    frames = source[record.episode].frames[judged.model.contract.camera].read(clip.recorded)
    return to_unit_range(resize_frames(frames, *frames.shape[1:3]))


@torch.no_grad()
def camera_size_videos(
    judged: Judged, clip: HeldOutClip, frames: Float[Tensor, "t 3 H W"], seed: int
) -> Videos:
    """The base enlarged, and the head at the size of these frames."""
    predictor = ModelPredictor(judged.model, STEPS)
    made = predict_each(predictor, clip, {"true": clip.actions}, num_given=1, seed=seed, max_batch=1)
    decoded, size = made["true"][1:], (frames.shape[2], frames.shape[3])
    return {
        "static": static_video(frames[0], len(decoded)),
        "base": resized(decoded, size),
        "head": shown(next(iter(judged.heads.values())), decoded, frames[0]),
    }
