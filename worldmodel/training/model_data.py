"""The data of a model: the frame contract that all clips share, and cached latents."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import nn
from tqdm import tqdm

from worldmodel.data.clips import FPS_TOLERANCE, Merge, frames_per_step, merge_rule
from worldmodel.data.dataset import ClipDataset, record_transitions
from worldmodel.data.index import EpisodeIndex
from worldmodel.data.latents import LatentCache, LatentTable, encoder_identity
from worldmodel.data.video.decord_frames import choose_decoder
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.models.config import InputSpec
from worldmodel.models.vae import VideoAutoencoder, encode_video
from worldmodel.signals import stop_on_signals
from worldmodel.training.datasets import DataConfig, open_index, open_sources
from worldmodel.types import RowReader, evenly_spread

ENCODED = "what is encoded is in {}, the same command goes on from there"
RATIO_TOLERANCE = 0.01  # of height to width: tolerance for rounding to whole pixels


def frame_contract(index: EpisodeIndex, vae: VideoAutoencoder) -> InputSpec:
    """The common format of all clips of this index, which the model stores and enforces."""
    config = index.config
    _check_cameras(index)
    _check_sizes(index)
    return InputSpec(
        num_frames=config.num_frames,
        height=config.height,
        width=config.width,
        fps=_common_rate(index),
        camera=index.records[0].camera,
        layout=config.layout if isinstance(config.camera, tuple) else None,
        aspect=config.aspect,
        merge=_common_merge(index),
        latent_channels=vae.config["z_dim"],
        latent_scale=vae.config["scale_factor_spatial"],
    )


def still_projection(clips: ClipDataset, count: int = 16) -> tuple[float, ...]:
    """The projection shared by some clips of the data at every frame; empty if they differ."""
    places = [clips.locate(number) for number in evenly_spread(len(clips), count)]
    found = [record_transitions(clips.index, record, record.starts[clip]).views for record, clip in places]
    if any(views is None for views in found):
        return ()
    seen = torch.cat([views for views in found if views is not None])
    first = seen[0]
    return tuple(first.flatten().tolist()) if torch.allclose(seen, first.expand_as(seen)) else ()


def _common_merge(index: EpisodeIndex) -> Merge:
    """The merge rule for actions of coarser steps, as simple as the robots allow."""
    merge = index.config.merge
    rules = {merge_rule(merge, entry.names, entry.deltas) for entry in index.stats.values()}
    return rules.pop() if len(rules) == 1 else merge


def _common_rate(index: EpisodeIndex) -> float:
    """Frames per second of the clips; refused if episodes differ in it."""
    rates = [record.fps / frames_per_step(record.fps, index.config) for record in index.records]
    low, high = (rates.index(rate) for rate in (min(rates), max(rates)))
    if rates[high] - rates[low] > FPS_TOLERANCE * rates[high]:
        slowest = min(record.fps for record in index.records)
        raise ValueError(
            f"{index.records[low].file} gives clips of {rates[low]:g} frames per second, "
            f"{index.records[high].file} of {rates[high]:g}: one model has one rate. Set data.clip.fps to a "
            f"rate that all can be resampled to ({slowest:g} or lower), without data.clip.stride"
        )
    return rates[high]


def _check_cameras(index: EpisodeIndex) -> None:
    first = index.records[0]
    for record in index.records:
        if record.camera != first.camera:
            raise ValueError(
                f"{first.file} shows camera {first.camera!r}, {record.file} camera {record.camera!r}: one "
                "model has one camera. Set data.clip.camera to one that all episodes have, or train on them "
                "apart"
            )


def _check_sizes(index: EpisodeIndex) -> None:
    """Refuse episodes with different aspect ratios, which would be distorted differently."""
    if index.config.aspect == "crop":
        return
    ratios = [record.size[0] / record.size[1] for record in index.records]
    low, high = (ratios.index(ratio) for ratio in (min(ratios), max(ratios)))
    if ratios[high] - ratios[low] > RATIO_TOLERANCE * ratios[high]:
        one, other = index.records[low], index.records[high]
        raise ValueError(
            f"{one.file} has pictures of {one.size[0]}x{one.size[1]} pixels, {other.file} of "
            f"{other.size[0]}x{other.size[1]}: stretched to one size, the same thing would look different in "
            "them. Set data.clip.aspect=crop, which cuts both to the same shape"
        )


def cache_latents(
    config: DataConfig,
    index: EpisodeIndex,
    vae: VideoAutoencoder,
    *,
    part: slice = slice(None),
    reader: RowReader | None = None,
    with_progress: bool = False,
) -> LatentTable:
    """Encode what the cache lacks (of every episode, or of a part of them); returns the table of latents."""
    identity = encoder_identity(vae, dict(vae.config))  # type: ignore[arg-type]
    cache = LatentCache(config.latents, identity, config.latents_dtype, reader=reader)  # type: ignore[arg-type]
    records = index.records[part]
    with (
        tqdm(total=len(records), desc="latents", unit="episode", disable=not with_progress) as bar,
        stop_on_signals() as stop,
    ):

        def go_on(*_: Any) -> None:
            bar.update()
            stop.check(ENCODED.format(config.latents))

        return cache.build(
            index,
            partial(_encode, vae),
            records,
            on_bad=config.on_bad,
            on_done=go_on,
            groups_apart=isinstance(vae, CausalAutoencoder),
        )


def on_device(vae: VideoAutoencoder, device: torch.device | str) -> VideoAutoencoder:
    """Move the autoencoder to a device."""
    nn.Module.to(vae, device)  # type: ignore[type-var]  # diffusers wraps `to` without a useful signature
    return vae


def _encode(vae: VideoAutoencoder, video: torch.Tensor) -> torch.Tensor:
    return encode_video(vae, video.to(vae.device))


def shared_index(config: DataConfig) -> EpisodeIndex:
    """`open_index` in the main process alone, because it reads every episode; the others get its result."""
    state = PartialState()
    if state.num_processes == 1:
        return open_index(config)
    found: list[Any] = [None]
    try:
        if state.is_main_process:
            found = [replace(open_index(config), sources=())]
    except (ValueError, OSError) as error:
        found = [str(error)]
    broadcast_object_list(found)
    if isinstance(found[0], str):
        raise ValueError(found[0])
    choose_decoder(config.decoder)
    index: EpisodeIndex = replace(found[0], sources=tuple(open_sources(config)))
    return index
