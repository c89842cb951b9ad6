"""The error of a world model's pictures, beside that of its latents: what is seen must be right."""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from worldmodel.models.actions.pose_maps import ARMS
from worldmodel.models.compositor import KnownFrame
from worldmodel.models.model import WorldModel
from worldmodel.models.pose_track import PoseTrack
from worldmodel.models.vae import decode_video
from worldmodel.objectives.pictures import EDGE_WEIGHT, LATER_SHARE, MOVING_WEIGHT, head_loss, picture_loss
from worldmodel.types import FRAMES_PER_LATENT, ClipBatch, Extras, map_tensors, to_unit_range


@dataclass(frozen=True)
class ClipEstimate:
    """What a model makes of noisy clips."""

    clean: Float[Tensor, "b c f h w"]
    data: Float[Tensor, "b c f h w"]  # the truth
    is_made: Bool[Tensor, "b f"]  # latent frames that are generated; the others are given
    extras: Extras  # rows of the action paths; a compositor reads where the hands are

    def first(self, count: int) -> "ClipEstimate":
        """Of the first clips."""
        some: ClipEstimate = map_tensors(self, lambda part: part[:count])
        return some

    @property
    def latents(self) -> Float[Tensor, "b c f h w"]:
        """Given frames as they are, and the others as estimated."""
        return torch.where(self.is_made[:, None, :, None, None], self.clean, self.data)


def pixel_error(
    model: WorldModel, estimate: ClipEstimate, batch: ClipBatch, generator: torch.Generator
) -> Float[Tensor, ""]:
    """The error of the first clips' pictures: `objective.pixel_share` of the batch."""
    if model.vae is None:
        raise ValueError("pixel_weight needs an autoencoder to see pictures: name one in model.vae")
    count = math.ceil(model.config.objective.pixel_share * len(estimate.clean))
    estimate = estimate.first(count)
    made = decode_video(model.vae, estimate.latents)
    if model.compositor is None and model.head is None:
        with torch.no_grad():
            real = decode_video(model.vae, estimate.data)
        return picture_loss(made, real, moving_weight=MOVING_WEIGHT, edge_weight=EDGE_WEIGHT)
    if batch.frames is None:
        raise ValueError(
            f"a compositor or a picture head learns from frames, got none: {batch.sources[0]}, ..."
        )
    if model.head is not None:
        decoded = rearrange(made[:, :, 1:] + 1, "b c t H W -> b t c H W") / 2
        return head_loss(model.head, decoded, to_unit_range(batch.frames[:count]).to(made), generator)
    real = rearrange(batch.frames[:count].to(made) / 127.5 - 1, "b t c H W -> b c t H W")
    return _composed_error(model, estimate, made, real, batch.embodiment[:count], generator)


def _composed_error(
    model: WorldModel,
    estimate: ClipEstimate,
    made: Float[Tensor, "b 3 t H W"],
    real: Float[Tensor, "b 3 t H W"],
    robots: Int[Tensor, " b"],
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    """The error of the composed frames of one latent frame of every clip, drawn at random."""
    assert model.compositor is not None, "pixel_error asks only then"
    hands = model.compositor.track(estimate.extras)
    chosen = _draw_made(estimate.is_made, generator)
    within = torch.arange(1, FRAMES_PER_LATENT + 1, device=chosen.device)
    frames = FRAMES_PER_LATENT * (chosen[:, None] - 1) + within
    rows = torch.arange(len(chosen), device=chosen.device)[:, None]
    track = map_tensors(hands, lambda x: x[rows, frames])
    first, truth = real[:, :, :1], real.movedim(2, 1)[rows, frames]
    known = KnownFrame((first[:, :, 0] + 1) / 2, hands.rows(0, 1), robots)
    known = _with_later(known, hands, real, frames[:, 0], generator)
    composed = model.compose((made.movedim(2, 1)[rows, frames] + 1) / 2, track, known)
    pair = (torch.cat([first, x.movedim(1, 2)], 2) for x in (2 * composed.frames - 1, truth))
    return picture_loss(*pair, moving_weight=MOVING_WEIGHT, edge_weight=EDGE_WEIGHT)


def _with_later(
    known: KnownFrame,
    track: PoseTrack,
    real: Float[Tensor, "b 3 t H W"],
    frames: Int[Tensor, " b"],
    generator: torch.Generator,
) -> KnownFrame:
    """In half of the clips a true frame drawn from those before these is known too, as in a stream."""
    draw = torch.rand(2, len(frames), generator=generator).to(real.device)
    number, rows = (draw[0] * frames).long(), torch.arange(len(frames), device=real.device)
    hands = map_tensors(track, lambda x: x[rows, number][:, None])
    later, is_later = KnownFrame((real.movedim(2, 1)[rows, number] + 1) / 2, hands), draw[1] < LATER_SHARE
    return known.taking(later, is_later[:, None].expand(-1, len(ARMS))).keeping(later.frame, is_later)


def _draw_made(is_made: Bool[Tensor, "b f"], generator: torch.Generator) -> Int[Tensor, " b"]:
    """One generated latent frame of each clip."""
    draw = torch.rand(is_made.shape, generator=generator).to(is_made.device)
    return draw.masked_fill(~is_made, -1).argmax(1)
