"""From paths in a config to clips: open datasets, divide episodes, build or find the cached latents."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import nn
from tqdm import tqdm

from robotwin_adapters.open_dataset import open_dataset
from worldmodel.data.action_spaces import current_action_space
from worldmodel.data.clips import ClipConfig, Merge, frames_per_step, merge_rule
from worldmodel.data.dataset import ClipDataset, check_action_names
from worldmodel.data.index import EpisodeIndex, OnBad, index_episodes
from worldmodel.data.latents import LatentCache, LatentTable, module_identity
from worldmodel.data.normalize import ActionNormalizer, share_scales
from worldmodel.data.splits import Split, SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.data.trained_on import TrainedEpisode, TrainedOn
from worldmodel.data.verified import Verify
from worldmodel.models.world_model.config import FPS_TOLERANCE, FrameContract
from worldmodel.models.world_model.wan import VideoAutoencoder, encode_video
from worldmodel.types import EpisodeSource, evenly_spread

RATIO_TOLERANCE = 0.01  # of height to width: what rounding to whole pixels may change


@dataclass(frozen=True)
class DataConfig:
    """Where episodes come from, how clips are cut, and where their latents are kept."""

    paths: tuple[str, ...] = ()  # datasets: folders, files or archives of any supported format
    mapping: str = ""  # YAML of DataMapping: keys and names; empty: a dataset.yaml in the folder
    synthetic_episodes: int = 0  # episodes of moving shapes instead of paths, for tests
    synthetic_embodiments: int = 1  # embodiments that take turns in them
    latents: str = ""  # folder of the latent cache; empty: encode frames in every step
    latents_dtype: str = "float16"  # number type of cached latents: float16, bfloat16 or float32
    # RoboTwin files hold several kinds of actions, by default joint_commands is read; others hold one
    action_space: str = ""  # joint_commands, pose_commands or measured_poses; empty: the default
    action_scale: Literal["own", "shared"] = (
        "own"  # each embodiment's own range goes to [-1, 1], or one range for all with the same action names
    )
    # RoboTwin repeats frames where two motions meet; 0 drops equal ones, ray-traced sets need about 1. It is
    # for training only: evaluation keeps every frame.
    static_tolerance: float | None = None  # gray levels up to which a frame repeats the last; none: keep all
    # What was decoded once is remembered by content in the user's cache folder (or WORLDMODEL_CACHE).
    verify: Verify = (
        "once"  # decode videos to find broken ones: never, once for each content, or at each start
    )
    on_bad: OnBad = "stop"  # an unreadable episode ends the run (stop) or is listed and left out (skip)
    clip: ClipConfig = field(default_factory=ClipConfig)
    splits: SplitConfig = field(default_factory=SplitConfig)

    def __post_init__(self) -> None:
        if self.paths and self.synthetic_episodes:
            raise ValueError(
                f"data has either paths or synthetic_episodes, got {list(self.paths)} and "
                f"{self.synthetic_episodes}: set data.synthetic_episodes=0 to train on the paths"
            )
        current_action_space(self.action_space)
        if self.latents_dtype not in ("float16", "bfloat16", "float32"):
            raise ValueError(f"latents_dtype is float16, bfloat16 or float32, got {self.latents_dtype!r}")

    def check_given(self) -> None:
        """Refuse a run without data."""
        if not self.paths and not self.synthetic_episodes:
            raise ValueError("no data to train on: set data.paths=[FOLDER]")


def open_index(config: DataConfig) -> EpisodeIndex:
    """Every episode looked at once; data without a single clip is refused."""
    index = index_episodes(
        _open_sources(config), config.clip, config.splits, config.on_bad, verify=config.verify
    )
    if not index.records:
        raise ValueError(f"data.paths={list(config.paths)}: {_why_no_clips(index)}")
    return replace(index, stats=share_scales(index.stats)) if config.action_scale == "shared" else index


def trained_on(config: DataConfig, index: EpisodeIndex) -> TrainedOn:
    """The episodes of the training split, for the model to remember."""
    is_comparable = config.static_tolerance is None
    return TrainedOn(
        config.splits,
        tuple(
            TrainedEpisode(record.uid, record.embodiment, record.actions if is_comparable else "")
            for record in index.of("train")
        ),
    )


def extended_normalizer(config: DataConfig, index: EpisodeIndex, known: ActionNormalizer) -> ActionNormalizer:
    """The table of a trained model with the embodiments of new data added."""
    check_action_names(index, [r for r in index.records if r.embodiment in known.stats], known)
    stats = share_scales(index.stats, known.stats) if config.action_scale == "shared" else index.stats
    return known.with_embodiments(stats)


def _open_sources(config: DataConfig) -> list[EpisodeSource]:
    if config.paths:
        return [
            open_dataset(
                path,
                camera=config.clip.camera if isinstance(config.clip.camera, str) else None,
                mapping=config.mapping or None,
                action_space=config.action_space,
                static_tolerance=config.static_tolerance,
                verify=False,  # the index does it
            )
            for path in config.paths
        ]
    names = tuple(f"robot{i}" for i in range(config.synthetic_embodiments))
    size = (config.clip.height, config.clip.width)
    num_frames = 2 * config.clip.num_frames
    return [synthetic_source(config.synthetic_episodes, num_frames, size, embodiments=names)]


def _why_no_clips(index: EpisodeIndex) -> str:
    """What to do about data without a clip."""
    if not index.too_short:
        found = f"; the first: {index.skipped[0].reason}" if index.skipped else ""
        return f"no episode to train on, {len(index.skipped)} unreadable{found}"
    clip, longest = index.config, max(index.too_short, key=index.too_short.__getitem__)
    pace = f"{clip.fps:g} a second" if clip.fps else f"every {clip.stride} recorded"
    change = "raise data.clip.fps" if clip.fps else "lower data.clip.stride"
    return (
        f"no episode is as long as a clip of {clip.num_frames} frames, {pace}. The longest of "
        f"{len(index.too_short)}, {longest}, has {index.too_short[longest]} recorded frames: lower "
        f"data.clip.num_frames or {change}"
    )


def frame_contract(index: EpisodeIndex, vae: VideoAutoencoder) -> FrameContract:
    """What all clips of this index are, for the model to remember and to insist on."""
    config = index.config
    _check_cameras(index)
    _check_sizes(index)
    return FrameContract(
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
    """The projection that some clips of the data have in common at every frame; empty where they differ."""
    tracks = [clips[number].pose_track for number in evenly_spread(len(clips), count)]
    seen = torch.cat([track.projections for track in tracks if track is not None])
    first = seen[0]
    return tuple(first.flatten().tolist()) if torch.allclose(seen, first.expand_as(seen)) else ()


def _common_merge(index: EpisodeIndex) -> Merge:
    """The rule by which actions of coarser steps are made, as simple as the robots allow."""
    merge = index.config.merge
    rules = {merge_rule(merge, entry.names, entry.deltas) for entry in index.stats.values()}
    return rules.pop() if len(rules) == 1 else merge


def _common_rate(index: EpisodeIndex) -> float:
    """Frames per second of the clips; refused when episodes differ in it."""
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
    """Refuse pictures that would be distorted each in its own way."""
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
    with_poses: bool = False,
    with_progress: bool = False,
) -> LatentTable:
    """Encode what the cache lacks (of every episode, or of a part of them) and say where the latents are."""
    identity = module_identity(vae, dict(vae.config))  # type: ignore[arg-type]
    cache = LatentCache(config.latents, identity, config.latents_dtype, with_poses=with_poses)  # type: ignore[arg-type]
    records = index.records[part]
    with tqdm(total=len(records), desc="latents", unit="episode", disable=not with_progress) as bar:
        return cache.build(index, partial(_encode, vae), records, on_bad=config.on_bad, on_done=bar.update)


def on_device(vae: VideoAutoencoder, device: torch.device | str) -> VideoAutoencoder:
    """The autoencoder, moved."""
    nn.Module.to(vae, device)  # type: ignore[type-var]  # diffusers wraps `to` without a useful signature
    return vae


def _encode(vae: VideoAutoencoder, video: torch.Tensor) -> torch.Tensor:
    return encode_video(vae, video.to(vae.device))


def open_clips(
    config: DataConfig,
    index: EpisodeIndex,
    split: Split,
    normalizer: ActionNormalizer,
    latents: LatentTable | None,
    with_frames: bool,
    with_poses: bool = False,
) -> ClipDataset:
    """The clips of one split, with frames where they are needed or where there are no latents."""
    with_frames = with_frames or latents is None
    return ClipDataset(index, split, normalizer, latents, with_frames, config.on_bad, with_poses)
