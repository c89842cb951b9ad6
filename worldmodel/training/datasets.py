"""Opens the datasets of a config and splits their episodes.

Everything that needs a model is in `model_data.py`, so that an index can be opened without importing the
model libraries, which take 200 MB.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from robotwin_adapters.mapping import mapping_text
from robotwin_adapters.open_dataset import open_dataset
from worldmodel.data.action_spaces import check_action_space
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import ClipDataset, check_action_names
from worldmodel.data.decode_cache import Verify
from worldmodel.data.index import EpisodeIndex, OnBad, index_episodes
from worldmodel.data.kept_frames import KeptSource
from worldmodel.data.latents import LatentTable
from worldmodel.data.normalize import ActionNormalizer, share_scales
from worldmodel.data.provenance import TrainedEpisode, TrainedOn
from worldmodel.data.splits import Split, SplitConfig
from worldmodel.data.synthetic import synthetic_source
from worldmodel.data.video.decord_frames import DecoderName, choose_decoder
from worldmodel.files import check_apart
from worldmodel.types import EpisodeSource, RowReader


@dataclass(frozen=True)
class DataConfig:
    """Where episodes come from, how clips are cut, and where latents are cached."""

    paths: tuple[str, ...] = ()  # datasets: folders, files or archives of any supported format
    mapping: str = ""  # YAML of DataMapping, a file or {key: value}; empty: a dataset.yaml in the folder
    synthetic_episodes: int = 0  # episodes of moving shapes instead of paths, for tests
    synthetic_embodiments: int = 1  # number of embodiments in them
    latents: str = ""  # folder of the latent cache; empty: encode frames in every step
    frames: str = ""  # folder of frames decoded once at clip size; empty: decode for each use
    latents_dtype: str = "float16"  # number type of cached latents: float16, bfloat16 or float32
    # RoboTwin files hold several kinds of actions, by default joint_commands is read; others hold one
    action_space: str = ""  # joint_commands, pose_commands or measured_poses; empty: the default
    action_scale: Literal["own", "shared"] = (
        "own"  # map each embodiment's own range to [-1, 1], or a shared range for equal action names
    )
    # RoboTwin repeats frames where two motions meet; 0 drops equal ones, ray-traced datasets need about 1.
    static_tolerance: float | None = None  # gray levels up to which a frame repeats the last; none: keep all
    # Files that were decoded once are remembered by content in the user's cache folder (or WORLDMODEL_CACHE).
    verify: Verify = "once"  # decode videos to find broken ones: never, once per content, or at each start
    decoder: DecoderName = "auto"  # of videos: auto (pyav, the faster one), pyav or decord; same pixels
    on_bad: OnBad = "stop"  # an unreadable episode ends the run (stop) or is listed and skipped (skip)
    clip: ClipConfig = field(default_factory=ClipConfig)
    splits: SplitConfig = field(default_factory=SplitConfig)

    def __post_init__(self) -> None:
        if self.paths and self.synthetic_episodes:
            raise ValueError(
                f"data has either paths or synthetic_episodes, got {list(self.paths)} and "
                f"{self.synthetic_episodes}: set data.synthetic_episodes=0 to train on the paths"
            )
        check_action_space(self.action_space)
        if self.latents_dtype not in ("float16", "bfloat16", "float32"):
            raise ValueError(f"latents_dtype is float16, bfloat16 or float32, got {self.latents_dtype!r}")

    def check_given(self) -> None:
        """Refuse a run without data."""
        if not self.paths and not self.synthetic_episodes:
            raise ValueError("no data to train on: set data.paths=[FOLDER]")


def open_index(config: DataConfig) -> EpisodeIndex:
    """Index all episodes; data without a single clip is refused."""
    for folder in filter(None, (config.latents, config.frames)):
        check_apart(folder, *config.paths)
    choose_decoder(config.decoder)
    index = index_episodes(
        open_sources(config), config.clip, config.splits, config.on_bad, verify=config.verify
    )
    if not index.records:
        raise ValueError(f"data.paths={list(config.paths)}: {_why_no_clips(index)}")
    return replace(index, stats=share_scales(index.stats)) if config.action_scale == "shared" else index


def trained_on(config: DataConfig, index: EpisodeIndex) -> TrainedOn:
    """The provenance to store in the model: the episodes of the training split."""
    is_comparable = config.static_tolerance is None
    return TrainedOn(
        config.splits,
        tuple(
            TrainedEpisode(record.uid, record.embodiment, record.actions if is_comparable else "")
            for record in index.of("train")
        ),
        skips_bad=config.on_bad == "skip",
        mapping=mapping_text(config.mapping) if config.mapping else "",
        static_tolerance=config.static_tolerance,
    )


def extended_normalizer(config: DataConfig, index: EpisodeIndex, known: ActionNormalizer) -> ActionNormalizer:
    """The action table of a trained model, extended by the embodiments of new data."""
    check_action_names(index, [r for r in index.records if r.embodiment in known.stats], known)
    stats = share_scales(index.stats, known.stats) if config.action_scale == "shared" else index.stats
    return known.with_embodiments(stats)


def open_sources(config: DataConfig) -> list[EpisodeSource]:
    """The datasets of a config; no episode is read."""
    if config.paths:
        opened = [
            open_dataset(
                path,
                camera=config.clip.camera if isinstance(config.clip.camera, str) else None,
                mapping=config.mapping or None,
                action_space=config.action_space,
                static_tolerance=config.static_tolerance,
                verify=False,  # checked when indexing
            )
            for path in config.paths
        ]
        if config.frames:
            return [KeptSource(source, config.frames, config.clip) for source in opened]
        return opened
    names = tuple(f"robot{i}" for i in range(config.synthetic_embodiments))
    size = (config.clip.height, config.clip.width)
    num_frames = 2 * config.clip.num_frames
    return [synthetic_source(config.synthetic_episodes, num_frames, size, embodiments=names)]


def _why_no_clips(index: EpisodeIndex) -> str:
    """A hint for data without a clip."""
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


def open_clips(
    config: DataConfig,
    index: EpisodeIndex,
    split: Split,
    normalizer: ActionNormalizer,
    latents: LatentTable | None,
    with_frames: bool,
    reader: RowReader | None = None,
) -> ClipDataset:
    """The clips of one split, with frames if needed or if there are no latents."""
    with_frames = with_frames or latents is None
    return ClipDataset(index, split, normalizer, latents, with_frames, config.on_bad, reader)
