"""Settings for a first model, chosen from the data, each with its reason."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from worldmodel.data.cameras import UNNAMED
from worldmodel.data.clips import ClipConfig
from worldmodel.data.splits import SplitConfig
from worldmodel.data.suggested_config import (
    LEAST_EPISODES,
    PACE,
    EpisodeFacts,
    choose_batch,
    choose_clip,
    choose_pace,
    hold_out,
    long_enough,
    num_clips,
    num_different,
)

ENOUGH_TRAIN = 70  # episodes of the real humanoid whose commands were followed after 17 core minutes
LEAST_TEST = 4  # held-out episodes: all must be won before an interval lies above one half

SHAPED = {
    "stretch": "to fit in both directions, which changes their shape. To cut instead: data.clip.aspect=crop",
    "crop": "to fit, and cut at the sides",
}


@dataclass(frozen=True)
class Choice:
    """One setting, with its reason."""

    setting: str
    value: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """All settings, as overrides of a training config."""

    choices: tuple[Choice, ...]
    overrides: tuple[str, ...]
    num_test: int  # held-out episodes


def make_plan(facts: Sequence[EpisodeFacts]) -> Plan:
    """Choose camera, rate, length, batch and held-out episodes."""
    camera, clip = _camera(facts), choose_clip(facts)
    usable = long_enough(facts, clip)
    if len(usable) < LEAST_EPISODES:
        short = f", {len(usable)} as long as a clip of {clip.num_frames} frames"
        raise ValueError(
            f"{len(facts)} episode(s){short if len(usable) < len(facts) else ''}: at least {LEAST_EPISODES} "
            "are needed, one each to train, to validate and to test. To show that actions are followed, "
            f"record at least {3 * LEAST_TEST}"
        )
    splits = hold_out(usable)
    held_out = _held_out(usable, splits)
    named = {*splits.val_uids, *splits.test_uids}
    count = num_clips([one for one in usable if one.uid not in named], clip)
    batch = choose_batch(count)
    # A rate replaces the stride set in the preset.
    pace = (f"data.clip.fps={clip.fps:g}",) if clip.fps else ()
    shares = {"val": 0.0, "test": 0.0, "val_uids": splits.val_uids, "test_uids": splits.test_uids}
    return Plan(
        choices=(camera, _pace(facts), _length(facts, clip), held_out, _batch(batch, count)),
        overrides=(
            f"data.clip.camera={json.dumps(camera.value)}",
            *pace,
            f"data.clip.stride={clip.stride}",
            f"data.clip.num_frames={clip.num_frames}",
            f"data.clip.step={clip.step}",
            f"data.splits={json.dumps(shares)}",
            f"fit.global_batch={batch}",
            f"fit.micro_batch={batch}",
        ),
        num_test=len(splits.test_uids),
    )


def _camera(facts: Sequence[EpisodeFacts]) -> Choice:
    names = dict.fromkeys(one.camera for one in facts)
    if len(names) > 1:
        raise ValueError(f"episodes show different cameras, {', '.join(names)}: name one with --camera")
    first = facts[0]
    other = "; another one: --camera NAME" if first.camera_reason.startswith(UNNAMED) else ""
    return Choice(
        "camera", first.camera, f"{first.camera_reason}{other}; {first.size[1]}x{first.size[0]} pixels"
    )


def _pace(facts: Sequence[EpisodeFacts]) -> Choice:
    rates, pace = [one.fps for one in facts], choose_pace(facts)
    if pace.fps:
        reason = (
            f"episodes have {min(rates):g} to {max(rates):g} frames per second: all go at the slowest rate"
        )
        return Choice("rate", f"{pace.fps:g} frames per second", reason)
    reason = f"recorded at {max(rates):.4g} frames per second" + (
        f"; about {PACE:g} are enough, and a clip then shows more motion"
        if pace.stride > 1
        else ": all are kept"
    )
    return Choice("rate", _every(pace.stride), reason)


def _every(stride: int) -> str:
    return "every frame" if stride == 1 else f"one frame in {stride}"


def _length(facts: Sequence[EpisodeFacts], clip: ClipConfig) -> Choice:
    reason = f"{len(long_enough(facts, clip))} of {len(facts)} episodes are long enough"
    if clip.stride != choose_pace(facts).stride:
        reason += f", if clips take {_every(clip.stride)}, which replaces the rate above"
    return Choice("clip", f"{clip.num_frames} frames", reason)


def _held_out(facts: Sequence[EpisodeFacts], splits: SplitConfig) -> Choice:
    different = num_different(facts)
    if different < LEAST_EPISODES:
        raise ValueError(f"{len(facts)} episodes hold {different} different ones, {LEAST_EPISODES} needed")
    val, test = len(splits.val_uids), len(splits.test_uids)
    text = f"train {len(facts) - val - test}, validate {val}, test {test}"
    twice = len(facts) - different
    reason = "held-out episodes are named in the settings, and the model remembers what it was trained on"
    reason += f"; {twice} are stored twice and stay together" if twice else ""
    return Choice("episodes", text, f"{reason}. {too_few(len(facts) - val - test, test)}".removesuffix(". "))


def too_few(train: int, test: int) -> str:
    """What cannot be expected of so many episodes, in words; nothing where there are enough."""
    found = []
    if train < ENOUGH_TRAIN:
        found.append(f"{train} are few to learn from: a real humanoid was followed with {ENOUGH_TRAIN}")
    if test < LEAST_TEST:
        found.append(
            f"{test} held-out cannot show that actions are followed, {LEAST_TEST} can: record at least "
            f"{3 * LEAST_TEST} episodes"
        )
    return ". ".join(found)


def size_choice(recorded: tuple[int, int], clip: ClipConfig) -> Choice:
    """How pictures of (height, width) are resized, as decided by the training config."""
    height, width = recorded
    reason = f"as the model takes them; pictures of {width}x{height} are made "
    if recorded == (clip.height, clip.width):
        reason = "as recorded"
    elif height * clip.width == width * clip.height:
        reason += "smaller" if height > clip.height else "larger"
    else:
        reason += SHAPED[clip.aspect]
    return Choice("size", f"{clip.width}x{clip.height} pixels", reason)


def _batch(batch: int, count: int) -> Choice:
    return Choice("batch", f"{batch} clips", f"there are {count} clips to train on")
