"""Opens any supported dataset as one EpisodeSource, after detecting the format of the folder or archive."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from robotwin_adapters.arrays.agibot import AgibotDataset, is_agibot
from robotwin_adapters.arrays.calvin import CalvinDataset, is_calvin
from robotwin_adapters.arrays.droid import DroidDataset, find_droid
from robotwin_adapters.arrays.hdf5_files import Hdf5FilesDataset, is_hdf5_files
from robotwin_adapters.arrays.loose_files import (
    JsonLinesDataset,
    PictureFoldersDataset,
    is_json_lines,
    is_picture_folders,
)
from robotwin_adapters.arrays.npz import NpzDataset, is_npz_frames
from robotwin_adapters.arrays.rlds import RldsDataset, is_rlds
from robotwin_adapters.arrays.robomimic import RobomimicDataset, is_robomimic
from robotwin_adapters.arrays.zarr_replay import ZarrReplayDataset, is_zarr_replay
from robotwin_adapters.hdf5_tree import hdf5_kind
from robotwin_adapters.labeled import LabeledDataset
from robotwin_adapters.lerobot.dataset import LerobotDataset, is_lerobot
from robotwin_adapters.mapping import DataMapping, read_mapping
from robotwin_adapters.robotwin.dataset import RobotwinDataset, find_robotwin
from robotwin_adapters.storage import walk_tree
from robotwin_adapters.video_folder import VideoFolderDataset, is_video_folder
from worldmodel.data.action_spaces import check_action_space, describe_action_space
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.data.provenance import TrainedOn
from worldmodel.data.splits import SplitConfig
from worldmodel.shipped import is_hub_id
from worldmodel.types import Episode, EpisodeSource

MAX_DEPTH = 6  # depth of the search for datasets below the given folder
LOOKED_FOR = """\
  RoboTwin: data/episode*.hdf5 or episode*/*.pkl at any depth, one .hdf5 file, or a .zip of them
  LeRobot v2.0, v2.1, v3.0: meta/info.json
  ALOHA / ACT: episode_*.hdf5 with action and observations
  robomimic, LIBERO, Isaac Lab, ManiSkill: *.hdf5 with data/demo_* or traj_*
  RLDS: *.tfrecord-00000-of-00001
  Diffusion Policy, UMI: a .zarr folder or .zarr.zip with meta/episode_ends
  NPZ: *.npz with pictures and actions inside
  CALVIN: episode_*.npz, a frame each, with ep_start_end_ids.npy
  AgiBot World: proprio_stats/ beside observations/
  DROID raw: trajectory.h5 beside recordings/MP4/ at any depth
  videos with annotations: annotation/ beside videos/, or a dataset.yaml that maps the keys
  loose pictures: a folder of PNG or JPEG files for each episode, with actions.npy or the like beside it
  lists: *.jsonl, a line per episode with its video, or a line per frame with its picture"""
NAME_ARRAYS = "an episode a file, name its arrays in a mapping (camera_keys, action_keys)"
BAGS = "bags of ROS are not read: convert them to LeRobot or MP4 with CSV first"
UNPACK = "archives of files are not read: unpack them first"
HINTS = {
    ".tar": UNPACK,
    ".gz": UNPACK,
    ".tgz": UNPACK,
    ".arrow": "tables of the datasets library are not read: save pictures and actions as LeRobot or NPZ",
    ".mcap": BAGS,
    ".bag": BAGS,
    ".db3": BAGS,
    ".npy": "arrays of objects are pickles, which we do not open: save pictures and actions as NPZ",
    ".pkl": "pickles are not opened: save pictures and actions as NPZ",
    ".parquet": "LeRobot tables need meta/info.json beside data/",
    ".mp4": "videos need actions: a file of the same name beside each, or a mapping (dataset.yaml)",
}


class ForeignDataset(EpisodeSource, Protocol):
    """A dataset of another format than RoboTwin's, with one kind of actions."""

    format: str  # format name for messages
    action_space: str


# Formats of named arrays, each with the function that recognizes it.
ARRAY_FORMATS: tuple[tuple[Callable[[Path, str | Path | None], bool], Callable[..., ForeignDataset]], ...] = (
    (is_agibot, AgibotDataset),
    (is_calvin, CalvinDataset),
    (is_hdf5_files, Hdf5FilesDataset),
    (is_robomimic, RobomimicDataset),
    (is_rlds, RldsDataset),
    (is_zarr_replay, ZarrReplayDataset),
    (is_npz_frames, NpzDataset),
)
LOOSE_FORMATS: tuple[tuple[Callable[[Path, str | Path | None], bool], Callable[..., ForeignDataset]], ...] = (
    (is_json_lines, JsonLinesDataset),
    (is_picture_folders, PictureFoldersDataset),
)


@dataclass(frozen=True)
class JoinedDatasets:
    """Several datasets concatenated; a uid begins with the relative path of its dataset."""

    name: str
    sources: tuple[EpisodeSource, ...]
    places: tuple[str, ...]  # one per source, relative to the opened folder; "" keeps the uids unchanged

    @property
    def stamp(self) -> str:
        """A digest that changes when the files or the reader settings change; empty if unknown."""
        stamps = [getattr(source, "stamp", "") for source in self.sources]
        return "" if not all(stamps) else hashlib.sha256(f"{self.places} {stamps}".encode()).hexdigest()

    def __len__(self) -> int:
        return sum(len(source) for source in self.sources)

    def __getitem__(self, index: int) -> Episode:
        position = index + len(self) if index < 0 else index
        for source, place in zip(self.sources, self.places, strict=True):
            if 0 <= position < len(source):
                episode = source[position]
                return replace(episode, uid=f"{place}/{episode.uid}") if place else episode
            position -= len(source)
        raise IndexError(f"episode {index} of {len(self)}")


@dataclass(frozen=True)
class _Options:
    """The arguments of `open_dataset`."""

    camera: str | None
    mapping: str | Path | None
    verify: bool
    action_space: str
    static_tolerance: float | None

    def of_readers(self) -> dict[str, Any]:
        """The arguments of readers for formats other than RoboTwin."""
        return {"camera": self.camera, "mapping": self.mapping, "verify": self.verify}


def open_dataset(
    path: str | Path,
    *,
    camera: str | None = None,
    mapping: str | Path | None = None,
    verify: bool = True,
    action_space: str = "",
    static_tolerance: float | None = None,
) -> EpisodeSource:
    """The dataset at `path`, or all datasets below it as one.

    Args:
        path: a folder of any supported format, a tree of such folders, a .zip or an .hdf5 file; or the id of
            a dataset on the Hugging Face hub (owner/name), which is downloaded once.
        camera: keep this camera only; None keeps all, the overview camera first.
        mapping: YAML of DataMapping: which keys are actions, states and cameras, and their names.
        verify: decode each video once (`decode_cache.py`), so that a damaged one is found when its episode is
            opened; False postpones this to `index_episodes`, which checks only the cameras in use.
        action_space: joint_commands, pose_commands or measured_poses; "" selects joint_commands of RoboTwin
            files, and whatever the files of other formats contain.
        static_tolerance: RoboTwin only: drop frames that repeat the one before, up to this mean difference in
            gray levels; None keeps all.

    Examples:
        >>> from worldmodel import open_dataset
        >>> open_dataset("no/such/folder")
        Traceback (most recent call last):
        ...
        ValueError: no dataset at no/such/folder: no such file or folder
        >>> episodes = open_dataset("data/finch")  # doctest: +SKIP
        >>> episodes[0].robot_actions.shape, episodes[0].fps  # doctest: +SKIP
        ((149, 14), 16.666666666666668)
    """
    options = _Options(camera, mapping, verify, check_action_space(action_space), static_tolerance)
    if not str(path).strip():  # such as an unset shell variable; Path would read it as the current folder
        raise ValueError("no dataset at an empty path; write . for the current folder")
    path = find_dataset(str(path))
    single = _open_here(path, options)
    if single is not None:
        return single
    found = (list(_open_below(path, options)) or list(_loose(path, options))) if path.is_dir() else []
    if not found:
        given = f"\n  (videos by the patterns of {mapping})" if mapping else ""
        there = _found_instead(path)
        raise ValueError(f"{path}: no supported dataset. {there}Looked for\n{LOOKED_FOR}{given}")
    if len(found) == 1 and not found[0][0]:
        return found[0][1]
    places, sources = zip(*found, strict=True)
    return JoinedDatasets(path.resolve().name, sources, places)


def open_as_trained(
    path: str | Path,
    normalizer: ActionNormalizer,
    trained_on: TrainedOn | None,
    *,
    camera: str | None = None,
    mapping: str | Path | None = None,
    verify: bool = True,
) -> EpisodeSource:
    """The dataset at `path`, read as a model's training data were, unless a mapping is given."""
    known = trained_on or TrainedOn(SplitConfig(), ())
    found = find_dataset(str(path))
    try:
        return open_dataset(
            found,
            camera=camera,
            mapping=mapping or known.mapping or None,
            verify=verify,
            action_space=action_space_for(normalizer),
            static_tolerance=known.static_tolerance if find_robotwin(found) else None,
        )
    except ValueError as error:
        if mapping or not known.mapping:
            raise
        hint = "read as in training; another mapping: --mapping YAML, none: --mapping {}"
        raise ValueError(f"{error}; {hint}") from error


def find_dataset(name: str) -> Path:
    """The folder of a dataset given by path or hub id; what lies in the hub's local cache is not fetched."""
    if Path(name).exists():
        return Path(name)
    if not is_hub_id(name):
        raise ValueError(f"no dataset at {name}: no such file or folder")
    from huggingface_hub import snapshot_download  # takes a moment, and folders do not need it
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, repo_type="dataset"))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"no dataset at {name}: no such folder, nor on the hub ({reason})") from error


def describe_format(source: EpisodeSource) -> str:
    """Name of the file format for messages."""
    if isinstance(source, JoinedDatasets):
        return ", ".join(dict.fromkeys(describe_format(part) for part in source.sources))
    return getattr(source, "format", "unknown")


def action_space_for(normalizer: ActionNormalizer) -> str:
    """The action space of a normalizer's statistics; "" if there are several or none."""
    spaces = {stats.action_space for stats in normalizer.stats.values()}
    return spaces.pop() if len(spaces) == 1 else ""


def _open_here(path: Path, options: _Options) -> EpisodeSource | None:
    source = _foreign(path, options)
    if source is None:
        is_ours = path.is_file() and path.suffix in (".zip", ".hdf5")
        return _robotwin(path, options) if is_ours else None
    return _checked(source, path, options)


def _checked(source: ForeignDataset, path: Path, options: _Options) -> EpisodeSource:
    """Refuse options that these files do not support."""
    if options.static_tolerance is not None:
        raise ValueError(f"{path}: static_tolerance is for RoboTwin files, these are {source.format}")
    if options.action_space not in ("", source.action_space):
        raise ValueError(
            f"{path}: asked for {describe_action_space(options.action_space)}, but "
            f"{_stated(source.action_space)}; only RoboTwin files hold several kinds of actions"
        )
    return _labeled(source, path, options)


def _foreign(path: Path, options: _Options) -> ForeignDataset | None:
    """The dataset at this path itself, if its format is not RoboTwin's."""
    if is_lerobot(path):
        return LerobotDataset(path, **options.of_readers())
    for is_here, build in ARRAY_FORMATS:
        if is_here(path, options.mapping):
            return build(path, **options.of_readers())
    if path.is_dir() and is_video_folder(path, options.mapping):
        return VideoFolderDataset(path, **options.of_readers())
    return None


def _stated(space: str) -> str:
    return f"its actions are {describe_action_space(space)}" if space else describe_action_space(space)


def _open_below(root: Path, options: _Options) -> Iterator[tuple[str, EpisodeSource]]:
    """(place, dataset) for each dataset in the tree; all RoboTwin episodes form one dataset."""
    if find_robotwin(root):
        yield "", _robotwin(root, options)
    if find_droid(root):
        yield "", _checked(DroidDataset(root, **options.of_readers()), root, options)
    for here, folders, files in walk_tree(root):
        place = here.relative_to(root).as_posix()
        source = _open_here(here, options) if here != root else None
        if source is not None:
            yield place, source
        if source is not None or len(here.relative_to(root).parts) >= MAX_DEPTH:
            folders.clear()
            continue
        for path in (here / name for name in sorted(files) if name.endswith(".zip")):
            if _foreign(path, options) is not None or find_robotwin(path):
                source = _open_here(path, options)
                assert source is not None, path
                yield path.relative_to(root).with_suffix("").as_posix(), source


def _loose(root: Path, options: _Options) -> Iterator[tuple[str, EpisodeSource]]:
    """Loose pictures and JSON lists; searched last, because other formats may contain such files as well."""
    for here, folders, _ in walk_tree(root):
        build = next((build for is_here, build in LOOSE_FORMATS if is_here(here, options.mapping)), None)
        if build is not None:
            place = here.relative_to(root).as_posix()
            yield "" if here == root else place, _checked(build(here, **options.of_readers()), here, options)
        if build is not None or len(here.relative_to(root).parts) >= MAX_DEPTH:
            folders.clear()


def _found_instead(root: Path) -> str:
    """What the folder contains instead, with a hint."""
    files = [root] if root.is_file() else [h / name for h, _, names in walk_tree(root) for name in names]
    counts = Counter(path.suffix.lower() for path in files if path.suffix)
    if not counts:
        return ""
    listed = ", ".join(f"{count} {suffix}" for suffix, count in counts.most_common(6))
    hints = [f"  {suffix}: {HINTS[suffix]}\n" for suffix in counts if suffix in HINTS]
    for path in [path for path in files if path.suffix.lower() in (".hdf5", ".h5")][:1]:
        inside = hdf5_kind(path) or "nothing that HDF5 can read"
        hints.append(f"  {path.name} holds {inside[:200]}: {NAME_ARRAYS}\n")
    return f"Found {listed}.\n{''.join(hints)}"


def _robotwin(path: Path, options: _Options) -> EpisodeSource:
    cameras = None if options.camera is None else (options.camera,)
    source = RobotwinDataset(
        path,
        cameras=cameras,
        action_space=options.action_space,
        static_tolerance=options.static_tolerance,
    )
    return _labeled(source, path, options)


def _labeled(source: EpisodeSource, path: Path, options: _Options) -> LabeledDataset:
    mapping = read_mapping(path, options.mapping) or DataMapping()
    read_as = (options.camera, options.action_space, options.static_tolerance)
    return LabeledDataset(source, mapping, str(path), f"{type(source).__name__} {read_as}")
