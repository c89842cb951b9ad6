"""The settings of a first model, chosen from what is in the data, each with its reason in words."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from worldmodel.data.cameras import choose_camera
from worldmodel.data.clips import FPS_TOLERANCE, ClipConfig, clip_starts
from worldmodel.data.trained_on import actions_hash
from worldmodel.types import Episode, EpisodeSource, evenly_spread

PACE = 8.0  # clip frames per second: enough to see a robot move, and a clip spans two seconds
LENGTHS = (17, 13, 9, 5)  # frames of a clip, longest first
NEEDED = 0.8  # share of the episodes that should be as long as a clip
TEST_SHARE, MOST_TEST, MOST_VAL = 0.15, 16, 4  # held-out episodes
MOST_BATCH = 16  # clips of a step
CLIP_STEP = 4  # recorded frames between clip starts
LEAST_EPISODES = 3  # to train, to validate, to test


@dataclass(frozen=True)
class EpisodeFacts:
    """What the choices rest on."""

    uid: str
    num_frames: int
    fps: float
    camera: str
    camera_reason: str
    size: tuple[int, int]  # height and width in pixels
    actions: str = ""  # hash: episodes that hold the same ones are one episode stored twice


@dataclass(frozen=True)
class Choice:
    """One setting, and why."""

    setting: str
    value: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """All settings, as overrides of a training config."""

    choices: tuple[Choice, ...]
    overrides: tuple[str, ...]


def look_at(source: EpisodeSource, camera: str | None = None) -> list[EpisodeFacts]:
    """Open every episode once."""
    return [_facts(source[number], camera) for number in range(len(source))]


def _facts(episode: Episode, camera: str | None) -> EpisodeFacts:
    choice = choose_camera(episode, camera)
    return EpisodeFacts(
        uid=episode.uid,
        num_frames=episode.num_frames,
        fps=episode.fps,
        camera=choice.name,
        camera_reason=choice.reason,
        size=episode.frames[choice.name].size,
        actions=actions_hash(episode),
    )


def make_plan(facts: Sequence[EpisodeFacts]) -> Plan:
    """Camera, rate, length, batch and held-out episodes."""
    camera = _camera(facts)
    rate, pace_of = _pace(facts)
    clip, length = _length(facts, pace_of)
    usable = [one for one in facts if clip_starts(one.num_frames, one.fps, clip)]
    if len(usable) < LEAST_EPISODES:
        raise ValueError(
            f"{len(usable)} of {len(facts)} episodes are as long as a clip of {clip.num_frames} frames, at "
            f"least {LEAST_EPISODES} are needed: one each to train, to validate and to test"
        )
    val, test, held_out = _held_out(usable)
    num_clips = sum(
        len(clip_starts(one.num_frames, one.fps, clip)) for one in usable if one.uid not in {*val, *test}
    )
    batch, batch_choice = _batch(num_clips)
    pace = f"data.clip.fps={clip.fps:g}" if clip.fps else f"data.clip.stride={clip.stride}"
    splits = {"val": 0.0, "test": 0.0, "val_uids": val, "test_uids": test}
    return Plan(
        choices=(camera, rate, length, held_out, batch_choice),
        overrides=(
            f"data.clip.camera={json.dumps(camera.value)}",
            pace,
            f"data.clip.num_frames={clip.num_frames}",
            f"data.clip.step={CLIP_STEP}",
            f"data.splits={json.dumps(splits)}",
            f"fit.global_batch={batch}",
            f"fit.micro_batch={batch}",
        ),
    )


def _camera(facts: Sequence[EpisodeFacts]) -> Choice:
    names = dict.fromkeys(one.camera for one in facts)
    if len(names) > 1:
        raise ValueError(f"episodes show different cameras, {', '.join(names)}: name one with --camera")
    first = facts[0]
    return Choice("camera", first.camera, f"{first.camera_reason}; {first.size[1]}x{first.size[0]} pixels")


def _pace(facts: Sequence[EpisodeFacts]) -> tuple[Choice, ClipConfig]:
    """Every n-th recorded frame; where episodes differ in rate, all are brought to that of the slowest."""
    rates = [one.fps for one in facts]
    low, high = min(rates), max(rates)
    if high - low > FPS_TOLERANCE * high:
        reason = f"episodes have {low:g} to {high:g} frames per second: all go at the slowest rate"
        return Choice("rate", f"{low:g} frames per second", reason), ClipConfig(fps=low)
    stride = max(1, round(high / PACE))
    reason = f"recorded at {high:.4g} frames per second" + (
        f"; about {PACE:g} are enough, and a clip then shows more motion" if stride > 1 else ": all are kept"
    )
    return Choice("rate", f"every {stride} frame(s)", reason), ClipConfig(stride=stride)


def _length(facts: Sequence[EpisodeFacts], pace: ClipConfig) -> tuple[ClipConfig, Choice]:
    """The longest clip that most episodes have room for, at a slower pace if need be."""
    strides = range(pace.stride, 0, -1)
    tried = [
        ClipConfig(num_frames=frames, stride=stride, fps=pace.fps, step=CLIP_STEP)
        for frames in LENGTHS
        for stride in strides
    ]
    shares = [sum(bool(clip_starts(one.num_frames, one.fps, clip)) for one in facts) for clip in tried]
    enough = [clip for clip, count in zip(tried, shares, strict=True) if count >= NEEDED * len(facts)]
    clip = enough[0] if enough else tried[-1]
    count = shares[tried.index(clip)]
    reason = f"{count} of {len(facts)} episodes are long enough"
    if clip.stride != pace.stride:
        reason += f" at every {clip.stride} frame(s), which replaces the rate above"
    return clip, Choice("clip", f"{clip.num_frames} frames", reason)


def _held_out(facts: Sequence[EpisodeFacts]) -> tuple[list[str], list[str], Choice]:
    """Uids to validate and to test; copies of an episode go where it goes."""
    copies: dict[str, list[str]] = {}
    for one in facts:
        copies.setdefault(one.actions or one.uid, []).append(one.uid)
    groups = list(copies.values())
    if len(groups) < LEAST_EPISODES:
        raise ValueError(f"{len(facts)} episodes hold {len(groups)} different ones, {LEAST_EPISODES} needed")
    count = max(1, min(MOST_TEST, round(TEST_SHARE * len(groups))))
    # Between the first and the last episode, which are often the odd ones.
    test = [groups[number + 1] for number in evenly_spread(len(groups) - 2, count)]
    rest = [group for group in groups if group not in test]
    wanted = max(1, min(MOST_VAL, count, len(rest) - 1))
    val = [rest[number] for number in evenly_spread(len(rest), wanted)]
    text = f"{len(test)} to test, {len(val)} to validate, {len(rest) - len(val)} to train"
    twice = len(facts) - len(groups)
    reason = "held-out episodes are named in the settings, and the model remembers what it was trained on"
    reason += f"; {twice} are stored twice and stay together" if twice else ""
    return _flat(val), _flat(test), Choice("episodes", text, reason)


def _flat(groups: Sequence[Sequence[str]]) -> list[str]:
    return [uid for group in groups for uid in group]


def _batch(num_clips: int) -> tuple[int, Choice]:
    batch = MOST_BATCH
    while batch > max(1, num_clips):
        batch //= 2
    return batch, Choice("batch", f"{batch} clips", f"there are {num_clips} clips to train on")
