"""Selects reference images of a robot's hands from its training clips, which are stored in the model."""

import logging

import torch

from worldmodel.data.dataset import ClipDataset
from worldmodel.models.hand_references import HandReferences
from worldmodel.models.model import WorldModel
from worldmodel.models.pose_track import PoseTrack
from worldmodel.types import evenly_spread

log = logging.getLogger(__name__)

MAX_CLIPS = 96  # clips per robot whose frames are searched, evenly spaced


def fill_references(model: WorldModel, references: HandReferences, clips: ClipDataset) -> None:
    """Add hand images for every robot in the clips that has none yet."""
    assert model.compositor is not None, "references belong to a compositor"
    numbers = _clips_by_robot(clips)
    for robot, own in numbers.items():
        if references.is_known[robot].any():
            continue
        chosen = [clips[own[place]] for place in evenly_spread(len(own), MAX_CLIPS)]
        frames = [clip.frames[1:] for clip in chosen if clip.frames is not None]
        hands = [model.compositor.track(clip.extras).rows(1) for clip in chosen]
        rows = PoseTrack(
            torch.cat([track.poses for track in hands]), torch.cat([track.projections for track in hands])
        )
        references.fill(robot, torch.cat(frames), rows)
        name = model.normalizer.embodiments[robot]
        log.info("%s: %d arms shown in reference pictures", name, int(references.is_known[robot].sum()))


def _clips_by_robot(clips: ClipDataset) -> dict[int, list[int]]:
    """Clip indices by embodiment index."""
    numbers: dict[int, list[int]] = {}
    first = 0
    for record in clips.records:
        robot = clips.normalizer.index(record.embodiment)
        numbers.setdefault(robot, []).extend(range(first, first + len(record.starts)))
        first += len(record.starts)
    return numbers
