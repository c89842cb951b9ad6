"""First clip and split settings for a dataset: `inspect` prints them, `quickstart` uses them.

A clip spans about two seconds. Where episodes are short, its pace slows down first, then it gets shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from worldmodel.data.cameras import choose_camera
from worldmodel.data.clips import FPS_TOLERANCE, ClipConfig, clip_starts
from worldmodel.data.provenance import actions_hash
from worldmodel.data.splits import SplitConfig
from worldmodel.types import Episode, evenly_spread

PACE = 8.0  # clip frames per second: enough to see a robot move, and a clip spans two seconds
LENGTHS = (17, 13, 9, 5)  # frames of a clip, longest first
NEEDED = 0.8  # share of the episodes that should be as long as a clip
CLIP_STEP = 4  # recorded frames between clip starts
LEAST_EPISODES = 3  # to train, to validate, to test
MOST_BATCH = 16  # clips of a step
TEST_SHARE, ENOUGH_TEST, MOST_TEST, MOST_VAL = 0.15, 4, 16, 4  # held-out episodes


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


def facts_of(episode: Episode, camera: str | None = None) -> EpisodeFacts:
    """The facts of one episode."""
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


def choose_pace(facts: Sequence[EpisodeFacts]) -> ClipConfig:
    """Every n-th recorded frame; where episodes differ in rate, all are brought to that of the slowest."""
    rates = [one.fps for one in facts]
    if max(rates) - min(rates) > FPS_TOLERANCE * max(rates):
        return ClipConfig(fps=min(rates))
    return ClipConfig(stride=max(1, round(max(rates) / PACE)))


def choose_clip(facts: Sequence[EpisodeFacts]) -> ClipConfig:
    """The longest clip that most episodes have room for, at a slower pace if need be."""
    pace = choose_pace(facts)
    tried = [
        ClipConfig(num_frames=frames, stride=stride, fps=pace.fps, step=CLIP_STEP)
        for frames in LENGTHS
        for stride in range(pace.stride, 0, -1)
    ]
    enough = (clip for clip in tried if len(long_enough(facts, clip)) >= NEEDED * len(facts))
    clip = next(enough, tried[-1])
    return clip if num_clips(facts, clip) >= MOST_BATCH else replace(clip, step=1)


def num_clips(facts: Sequence[EpisodeFacts], clip: ClipConfig) -> int:
    """Clips of all these episodes."""
    return sum(len(clip_starts(one.num_frames, one.fps, clip)) for one in facts)


def choose_batch(count: int) -> int:
    """The usual batch, halved until so many clips fill one."""
    batch = MOST_BATCH
    while batch > max(1, count):
        batch //= 2
    return batch


def long_enough(facts: Sequence[EpisodeFacts], clip: ClipConfig) -> list[EpisodeFacts]:
    """The episodes that hold at least one such clip."""
    return [one for one in facts if clip_starts(one.num_frames, one.fps, clip)]


def hold_out(facts: Sequence[EpisodeFacts]) -> SplitConfig:
    """Named episodes to validate and to test, copies of one together; none where there are too few."""
    groups = _copies(facts)
    if len(groups) < LEAST_EPISODES:
        return SplitConfig(val=0.0, test=0.0)
    # Four that are all won are the fewest whose interval lies above one half.
    share = max(1, min(MOST_TEST, round(TEST_SHARE * len(groups))))
    count = max(share, min(ENOUGH_TEST, len(groups) // 3))
    # Between the first and the last episode, which are often the odd ones.
    test = [groups[number + 1] for number in evenly_spread(len(groups) - 2, count)]
    rest = [group for group in groups if group not in test]
    wanted = max(1, min(MOST_VAL, share, len(rest) - 1))
    val = [rest[number] for number in evenly_spread(len(rest), wanted)]
    return SplitConfig(val=0.0, test=0.0, val_uids=_flat(val), test_uids=_flat(test))


def num_different(facts: Sequence[EpisodeFacts]) -> int:
    """Episodes without the copies."""
    return len(_copies(facts))


def _copies(facts: Sequence[EpisodeFacts]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for one in facts:
        groups.setdefault(one.actions or one.uid, []).append(one.uid)
    return list(groups.values())


def _flat(groups: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(uid for group in groups for uid in group)
