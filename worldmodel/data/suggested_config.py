"""Suggested clip and split settings for a dataset: `inspect` prints them, `quickstart` uses them.

A clip spans about two seconds. If episodes are short, the frame rate is reduced first, then the clip length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from worldmodel.data.cameras import choose_camera
from worldmodel.data.clips import FPS_TOLERANCE, ClipConfig, clip_starts
from worldmodel.data.provenance import actions_hash
from worldmodel.data.splits import SplitConfig
from worldmodel.types import Episode, evenly_spread

PACE = 8.0  # clip frames per second: enough to resolve robot motion
LENGTHS = (17, 13, 9, 5)  # frames of a clip, longest first
NEEDED = 0.8  # share of the episodes that should be at least as long as a clip
CLIP_STEP = 4  # recorded frames between clip starts
LEAST_EPISODES = 3  # one each to train, validate and test
MOST_BATCH = 16  # clips per step
TEST_SHARE, ENOUGH_TEST, MOST_TEST, MOST_VAL = 0.2, 8, 24, 4  # held-out episodes


@dataclass(frozen=True)
class EpisodeFacts:
    """The properties of an episode that the suggestions depend on."""

    uid: str
    num_frames: int
    fps: float
    camera: str
    camera_reason: str
    size: tuple[int, int]  # height and width in pixels
    actions: str = ""  # hash: episodes with the same one are copies


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
    """A stride or rate for the clips; if frame rates differ, all episodes are resampled to the slowest."""
    rates = [one.fps for one in facts]
    if max(rates) - min(rates) > FPS_TOLERANCE * max(rates):
        return ClipConfig(fps=min(rates))
    return ClipConfig(stride=max(1, round(max(rates) / PACE)))


def choose_clip(facts: Sequence[EpisodeFacts]) -> ClipConfig:
    """The longest clip that fits most episodes, at a lower frame rate if necessary."""
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
    """Number of clips in these episodes."""
    return sum(len(clip_starts(one.num_frames, one.fps, clip)) for one in facts)


def choose_batch(count: int) -> int:
    """The usual batch size, halved until there are enough clips to fill one."""
    batch = MOST_BATCH
    while batch > max(1, count):
        batch //= 2
    return batch


def long_enough(facts: Sequence[EpisodeFacts], clip: ClipConfig) -> list[EpisodeFacts]:
    """The episodes with at least one such clip."""
    return [one for one in facts if clip_starts(one.num_frames, one.fps, clip)]


def hold_out(facts: Sequence[EpisodeFacts]) -> SplitConfig:
    """Episodes to validate and test by name, keeping copies together; none if there are too few."""
    groups = _copies(facts)
    if len(groups) < LEAST_EPISODES:
        return SplitConfig(val=0.0, test=0.0)
    # Of 24 episodes a third: 8 let a control win once by chance without hiding what the others show.
    share = max(1, min(MOST_TEST, round(TEST_SHARE * len(groups))))
    count = max(share, min(ENOUGH_TEST, len(groups) // 3))
    # Skip the first and last episodes, which are often atypical.
    test = [groups[number + 1] for number in evenly_spread(len(groups) - 2, count)]
    rest = [group for group in groups if group not in test]
    wanted = max(1, min(MOST_VAL, share, len(rest) - 1))
    val = [rest[number] for number in evenly_spread(len(rest), wanted)]
    return SplitConfig(val=0.0, test=0.0, val_uids=_flat(val), test_uids=_flat(test))


def num_different(facts: Sequence[EpisodeFacts]) -> int:
    """Number of episodes without copies."""
    return len(_copies(facts))


def _copies(facts: Sequence[EpisodeFacts]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for one in facts:
        groups.setdefault(one.actions or one.uid, []).append(one.uid)
    return list(groups.values())


def _flat(groups: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(uid for group in groups for uid in group)
