"""Summarizes a dataset: counts, sizes and ranges as a text table, and pictures."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from robotwin_adapters.angles import TURNS, jumps
from robotwin_adapters.open_dataset import describe_format
from robotwin_adapters.tools.command_lag import CommandLag, commanded_and_measured, measure_lag
from robotwin_adapters.tools.contact_sheet import contact_sheet, save_png, write_action_video
from robotwin_adapters.tools.picture_lag import PictureLag, measure_picture_lag, small_pictures
from worldmodel.data.action_deltas import describe_deltas
from worldmodel.data.action_spaces import describe_action_space
from worldmodel.data.cameras import find_camera
from worldmodel.data.clips import frames_per_step
from worldmodel.data.decode_cache import check_frames
from worldmodel.data.suggested_config import (
    EpisodeFacts,
    choose_clip,
    facts_of,
    hold_out,
    long_enough,
    num_different,
)
from worldmodel.data.video import MissingVideoError
from worldmodel.plain_text import folded, unbroken
from worldmodel.types import Episode, EpisodeSource, FrameReader, evenly_spread

MAX_LISTED = 12  # tasks, notes and skipped files shown in full
SHEET_EPISODES = 8  # rows of the contact sheet
BLACK = 16  # highest gray level of a picture that counts as black
LOOKED_AT = 4  # episodes whose pictures are looked at before the summary is shown
FEW_EPISODES = 40  # datasets up to this size get their held-out episodes listed in the suggested settings
LAG_EPISODES = 24  # evenly spaced episodes that the command lag is measured on
VIDEO_FRAMES = 600  # the action video adds whole episodes until it is this long


@dataclass
class ActionRange:
    """Running extremes and moments of the actions of one embodiment."""

    names: tuple[str, ...]
    count: int = 0
    low: Float[np.ndarray, " a"] = field(default_factory=lambda: np.array(np.inf))
    high: Float[np.ndarray, " a"] = field(default_factory=lambda: np.array(-np.inf))
    total: Float[np.ndarray, " a"] = field(default_factory=lambda: np.array(0.0))
    largest_step: Float[np.ndarray, " a"] = field(default_factory=lambda: np.array(0.0))

    def add(self, actions: Float[np.ndarray, "n a"]) -> None:
        """Add the actions of one episode."""
        self.count += len(actions)
        self.low = np.minimum(self.low, actions.min(axis=0))
        self.high = np.maximum(self.high, actions.max(axis=0))
        self.total = self.total + actions.sum(axis=0, dtype=np.float64)
        if len(actions) > 1:
            self.largest_step = np.maximum(self.largest_step, np.abs(np.diff(actions, axis=0)).max(axis=0))


@dataclass
class DatasetSummary:
    """Counts over the episodes that could be opened, and the errors of the others."""

    name: str
    format: str
    num_listed: int  # episodes in the dataset
    num_frames: int = 0
    seconds: float = 0.0
    facts: list[EpisodeFacts] = field(default_factory=list)  # facts of each readable episode
    fps: Counter[float] = field(default_factory=Counter)
    cameras: Counter[str] = field(default_factory=Counter)
    shown: Counter[str] = field(default_factory=Counter)  # the camera of the pictures, and why it was chosen
    embodiments: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    actions: dict[str, ActionRange] = field(default_factory=dict)  # by embodiment
    good: list[int] = field(default_factory=list)  # positions of the readable episodes
    skipped: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # the episodes without a video
    readers: list[tuple[int, FrameReader]] = field(default_factory=list)  # position and frames of each camera
    picture_lag: PictureLag | None = None

    def add(self, episode: Episode, *, with_pictures: bool = True) -> None:
        """Count one more episode; `with_pictures` also looks at them."""
        self.num_frames += episode.num_frames
        self.seconds += episode.num_frames / episode.fps
        self.facts.append(facts_of(episode))
        self.fps[episode.fps] += 1
        for camera, reader in episode.frames.items():
            self.cameras[f"{camera} {reader.size[1]}x{reader.size[0]}"] += 1
        self.shown[f"{self.facts[-1].camera}: {self.facts[-1].camera_reason}"] += 1
        self.embodiments[episode.embodiment] += 1
        self.tasks[episode.task or "(none)"] += 1
        self.notes.update((*episode.notes, *oddities(episode, with_pictures=with_pictures)))
        space = describe_action_space(episode.action_space)
        kind = describe_deltas(episode.delta_actions, episode.action_names)
        key = f"{episode.embodiment}, {len(episode.action_names)} dimensions: {space}; {kind}"
        self.actions.setdefault(key, ActionRange(episode.action_names)).add(episode.robot_actions)


def oddities(episode: Episode, *, with_pictures: bool = True) -> list[str]:
    """Unusual properties of an episode as text: black pictures, angles that wrap around."""
    found = []
    for name, reader in episode.frames.items() if with_pictures else ():
        if reader.read([len(reader) // 2]).max() <= BLACK:
            found.append(f"camera {name} is black in the middle of some episodes")
    for turn in TURNS:
        wraps = np.flatnonzero(jumps(episode.robot_actions, turn))
        if named := [episode.action_names[column] for column in wraps]:
            found.append(
                f"actions {', '.join(named)} jump by {turn:.3g}: angles that wrap around. A model sees a "
                "large motion; record sine and cosine"
            )
    return found


def config_line(summary: DatasetSummary, path: str, mapping: str | None = None) -> str:
    """The line of YAML that configures training for this dataset."""
    facts = summary.facts
    clip = choose_clip(facts)
    pace = f"fps: {clip.fps:g}, stride: 1" if clip.fps else f"stride: {clip.stride}"
    pace += ", step: 1" if clip.step == 1 else ""
    parts = [f"paths: [{_quoted(path)}]"]
    parts += [f"mapping: {_quoted(mapping)}"] if mapping else []
    parts += ["on_bad: skip"] if summary.skipped else []
    parts.append(f"clip: {{camera: {_quoted(facts[0].camera)}, num_frames: {clip.num_frames}, {pace}}}")
    # The hash split can leave a small dataset without validation episodes, and can separate identical copies.
    is_few = summary.num_listed <= FEW_EPISODES or num_different(facts) < len(facts)
    if len(facts) + len(summary.skipped) >= summary.num_listed and is_few:
        splits = hold_out(long_enough(facts, clip))
        listed = {"val_uids": list(splits.val_uids), "test_uids": list(splits.test_uids)}
        named = "".join(f", {name}: {_quoted(uids)}" for name, uids in listed.items() if uids)
        parts.append(f"splits: {{val: 0, test: 0{named}}}")
    return f"data: {{{', '.join(parts)}}}"


def lag_lines(
    summary: DatasetSummary, source: EpisodeSource, in_space: Callable[[str], EpisodeSource]
) -> list[str]:
    """How far each robot trails its commands, at the rate of the suggested clips; empty if unknown.

    Args:
        summary: of the dataset.
        source: the dataset.
        in_space: opens it with the actions of a space; RoboTwin files keep commands and measurements apart.
    """
    clip, lines = choose_clip(summary.facts), []
    chosen = [summary.good[number] for number in evenly_spread(len(summary.good), LAG_EPISODES)]
    episodes = _with_measured_poses(chosen, in_space) or [source[position] for position in chosen]
    for robot in dict.fromkeys(episode.embodiment for episode in episodes):
        own = [episode for episode in episodes if episode.embodiment == robot]
        parts, names = commanded_and_measured(own)
        step = max(1, round(frames_per_step(own[0].fps, clip)))
        lag = measure_lag(parts, names, step) if parts else None
        if lag is not None:
            lines.append(f"{robot}: {_lag_words(lag, own[0].fps / step)}, {len(own)} episode(s)")
    return lines


def _with_measured_poses(
    positions: Sequence[int], in_space: Callable[[str], EpisodeSource]
) -> list[Episode] | None:
    """Episodes with commanded poses as actions and measured ones as states; None if the files lack either."""
    try:
        commands, measured = in_space("pose_commands"), in_space("measured_poses")
        return [
            replace(commands[position], robot_states=measured[position].robot_states)
            for position in positions
        ]
    except (ValueError, OSError):
        return None


def _lag_words(lag: CommandLag, fps: float) -> str:
    named = lag.columns if len(lag.columns) <= 3 else (lag.columns[0], "..", lag.columns[-1])
    apart = (
        f"{' '.join(named)} are {lag.distance:.2g} from their commands, {lag.remaining:.2g} with "
        f"{lag.share:.2f} of the last motion taken back, at {fps:.4g} frames per second"
    )
    if lag.is_explained:
        setting = f"model: {{actions: {{pose_maps: {{command_lag: {lag.share:.2f}}}}}}}"
        return f"{setting} where poses are drawn: {apart}"
    if lag.share > 1 and lag.remaining < lag.distance / 2:
        return f"more than one motion behind, a larger data.clip.stride is needed for command_lag: {apart}"
    return f"no command_lag, arms are off by more than a lag: {apart}"


def _quoted(value: str | list[str]) -> str:
    """Quote as JSON that is also valid YAML, which has no escapes beyond 16 bits."""
    return json.dumps(value, ensure_ascii=False)


def parse_positions(text: str, count: int) -> list[int]:
    """Episode positions from "0,3,5-9"."""
    positions: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise ValueError(f"episodes are given as 0,3,5-9, got {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < count:
            raise ValueError(f"episodes {part.strip()} asked for, the dataset has 0..{count - 1}")
        positions.extend(range(first, last + 1))
    return positions


def summarize(
    source: EpisodeSource, positions: Iterable[int], on_bad: str = "stop", way_out: str = ""
) -> DatasetSummary:
    """Open these episodes and count; with on_bad="skip" unreadable ones are listed instead.

    `way_out` is a hint added to the error of an unreadable episode if others can be read.
    """
    summary = DatasetSummary(source.name, describe_format(source), len(source))
    looked_at = evenly_spread(len(source), LOOKED_AT)
    for position in positions:
        try:
            episode = _opened(source, position)
            summary.add(episode, with_pictures=position in looked_at)
            summary.good.append(position)
            summary.readers += [(position, reader) for reader in episode.frames.values()]
        except MissingVideoError as error:
            summary.missing.append(str(error))
        except (ValueError, OSError) as error:
            if on_bad != "skip":
                raise ValueError(f"{error}{way_out if summary.good else ''}") from error
            summary.skipped.append(str(error))
    if not summary.good:
        raise _none_left(summary)
    return summary


def check_videos(summary: DatasetSummary, on_bad: str = "stop", way_out: str = "") -> list[str]:
    """Decode every video once, unless it was before; the damaged ones leave the summary and are returned."""
    broken = check_frames([reader for _, reader in summary.readers], "once")
    bad = {summary.readers[number][0]: reason for number, reason in broken.items()}
    if bad and on_bad != "skip":
        raise ValueError(f"{next(iter(bad.values()))}{way_out if len(bad) < len(summary.good) else ''}")
    kept = [place for place, position in enumerate(summary.good) if position not in bad]
    summary.facts = [summary.facts[place] for place in kept]
    summary.good = [summary.good[place] for place in kept]
    summary.skipped += bad.values()
    if not summary.good:
        raise _none_left(summary)
    return list(bad.values())


def _none_left(summary: DatasetSummary) -> ValueError:
    first = (summary.skipped + summary.missing)[0]
    return ValueError(
        f"{summary.name}: none of its {summary.num_listed} episodes can be read; the first: {first}"
    )


def write_pictures(
    source: EpisodeSource, summary: DatasetSummary, out: Path, on_bad: str = "stop"
) -> list[Path]:
    """Write contact_sheet.png and actions.mp4 of evenly spaced episodes; returns the paths.

    The motion of their pictures is compared with the commands on the way: `summary.picture_lag`.
    """
    chosen = evenly_spread(len(summary.good), SHEET_EPISODES)
    episodes, pictures = [], []
    for position in (summary.good[index] for index in chosen):
        episode = _opened(source, position)
        try:
            pictures.append(small_pictures(find_camera(episode)))
            episodes.append(episode)
        except (ValueError, OSError) as error:
            if on_bad != "skip":
                raise
            summary.skipped.append(str(error))
    if not episodes:
        raise ValueError(f"{source.name}: no episode has frames that can be read")
    summary.picture_lag = measure_picture_lag(episodes, pictures)
    sheet, video = out / "contact_sheet.png", out / "actions.mp4"
    save_png(contact_sheet(episodes), sheet)
    write_action_video(video, _first_episodes(episodes))
    return [sheet, video]


def format_summary(summary: DatasetSummary) -> str:
    """The table that `worldmodel inspect` prints."""
    lengths = np.array([one.num_frames for one in summary.facts])
    opened = (
        f"{len(lengths)}" if len(lengths) == summary.num_listed else f"{len(lengths)} of {summary.num_listed}"
    )
    minutes, seconds = divmod(summary.seconds, 60)
    rows = [
        ("dataset", [summary.name]),
        ("format", [summary.format]),
        ("episodes", [opened]),
        ("frames", [f"{summary.num_frames} ({lengths.min()} to {lengths.max()} an episode)"]),
        ("duration", [f"{minutes:.0f} min {seconds:.1f} s"]),
        ("fps", [", ".join(f"{fps:.4g}" for fps in sorted(summary.fps))]),
        ("cameras", _counted(summary.cameras, len(lengths))),
        ("shown", _counted(summary.shown, len(lengths))),
        ("embodiments", _counted(summary.embodiments, len(lengths))),
        ("tasks", _counted(summary.tasks, len(lengths))),
    ]
    for embodiment, actions in summary.actions.items():
        rows.append(("actions", [embodiment, *_action_table(actions)]))
    if copies := len(summary.facts) - num_different(summary.facts):
        summary.notes[
            f"{copies} episodes hold the actions of another one: copies, which belong into one split"
        ] = len(lengths)
    if summary.notes:
        rows.append(("notes", _counted(folded(summary.notes), len(lengths))))
    if summary.missing:
        lines = [f"{line}: left out, also in training" for line in _folded_lines(summary.missing)]
        rows.append((f"no video {len(summary.missing)}", lines))
    if summary.skipped:
        rows.append((f"skipped {len(summary.skipped)}", _folded_lines(summary.skipped)))
    return "\n".join(
        unbroken(f"{'' if number else title:<12} {line}")
        for title, lines in rows
        for number, line in enumerate(lines)
    )


def _opened(source: EpisodeSource, position: int) -> Episode:
    episode = source[position]
    if not episode.frames:
        raise ValueError(f"{episode.source}: no camera in the episode")
    for name, reader in episode.frames.items():
        if len(reader) != episode.num_frames:
            raise ValueError(
                f"{episode.source}: camera {name} has {len(reader)} frames, not {episode.num_frames}"
            )
    if not np.isfinite(episode.robot_actions).all():
        raise ValueError(f"{episode.source}: actions hold NaN or infinity")
    return episode


def _first_episodes(episodes: list[Episode]) -> list[Episode]:
    ends = np.cumsum([episode.num_frames for episode in episodes])
    return episodes[: max(1, int(np.searchsorted(ends, VIDEO_FRAMES, side="right")))]


def _counted(counter: Counter[str], total: int) -> list[str]:
    """Entries, with their count unless all episodes share them."""
    return _shortened([key if count == total else f"{key} ({count})" for key, count in counter.most_common()])


def _folded_lines(lines: Sequence[str]) -> list[str]:
    """One line for each kind."""
    kinds = folded(Counter(lines))
    return _shortened([f"{line} and {n - 1} more" if n > 1 else line for line, n in kinds.items()])


def _shortened(lines: list[str]) -> list[str]:
    more = len(lines) - MAX_LISTED
    return lines if more <= 0 else [*lines[:MAX_LISTED], f"... and {more} more"]


def _action_table(actions: ActionRange) -> list[str]:
    width = max(4, *(len(name) for name in actions.names))
    head = f"{'name':<{width}} {'min':>10} {'max':>10} {'mean':>10} {'max step':>10}"
    mean = actions.total / max(actions.count, 1)
    columns = zip(actions.names, actions.low, actions.high, mean, actions.largest_step, strict=True)
    return [head, *(f"{name:<{width}} " + " ".join(f"{v:>10.4g}" for v in row) for name, *row in columns)]
