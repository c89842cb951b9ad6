"""What a session's hands carry: the given frame, and later what they have taken."""

import torch

from worldmodel.models.compositor import GONE, KnownFrame, renewed
from worldmodel.models.pose_track import PoseTrack
from worldmodel.types import map_tensors

LEFT, RIGHT = 7, 15  # columns of the openings
TRUE, NEWEST, LATER = 0.1, 0.5, 0.9  # gray levels of the pictures


def frame(level: float) -> torch.Tensor:
    return torch.full((2, 3, 4, 4), level)


def rows(left: list[float], right: list[float]) -> PoseTrack:
    """Two samples with the same openings, in so many rows."""
    poses = torch.zeros(2, len(left), 16)
    poses[..., LEFT], poses[..., RIGHT] = torch.tensor(left), torch.tensor(right)
    return PoseTrack(poses, torch.zeros(2, len(left), 3, 4))


def levels(known: KnownFrame) -> list[float]:
    return [round(float(known.carried(arm).frame[0].mean()), 3) for arm in range(2)]


def test_a_hand_that_has_closed_and_rests_carries_what_is_seen_then():
    known = KnownFrame(frame(TRUE), rows([1.0], [1.0]))
    closing = renewed(known, frame(NEWEST), rows([0.5, 0.2], [1.0, 1.0]))
    assert closing is known  # it moves still
    closed = renewed(known, frame(NEWEST), rows([0.0, 0.0], [1.0, 1.0]))
    assert levels(closed) == [NEWEST, TRUE]
    assert closed.latest[0].mean() == NEWEST
    assert closed.carried(0).hands.poses[0, LEFT] == 0
    assert torch.equal(closed.frame, known.frame)  # what does not move is still taken from the true frame
    assert renewed(closed, frame(LATER), rows([0.0, 0.0], [1.0, 1.0])) is closed  # nothing has changed since


def test_an_open_hand_carries_the_true_frame_again():
    known = KnownFrame(frame(TRUE), rows([1.0], [1.0]))
    closed = renewed(known, frame(NEWEST), rows([0.0, 0.0], [0.0, 0.0]))
    opened = renewed(closed, frame(LATER), rows([0.0, 0.0], [0.9, 0.9]))
    assert levels(opened) == [NEWEST, TRUE]
    assert torch.equal(opened.latest, frame(LATER))  # it shows what was left


def test_the_place_is_seen_again_when_the_hand_has_gone():
    known = KnownFrame(frame(TRUE), rows([1.0], [1.0]))
    closed = renewed(known, frame(NEWEST), rows([0.0, 0.0], [1.0, 1.0]))
    near, far = rows([0.0, 0.0], [1.0, 1.0]), rows([0.0, 0.0], [1.0, 1.0])
    near.poses[..., 2], far.poses[..., 2] = GONE / 2, 2 * GONE  # lifted
    assert renewed(closed, frame(LATER), near) is closed
    gone = renewed(closed, frame(LATER), far)
    assert levels(gone) == [NEWEST, TRUE]  # what it holds is in the picture of the grasp
    assert torch.equal(gone.latest, frame(LATER))
    assert renewed(gone, frame(TRUE), far) is gone  # once


def test_samples_are_renewed_apart_and_travel_with_their_copies():
    known = KnownFrame(frame(TRUE), rows([1.0], [1.0]))
    last = rows([0.0, 0.0], [1.0, 1.0])
    last.poses[1, :, LEFT] = 1.0  # the second sample's hand stays open
    first, second = renewed(known, frame(NEWEST), last).carried(0).frame.mean((1, 2, 3))
    assert (round(float(first), 3), round(float(second), 3)) == (NEWEST, TRUE)
    copies = map_tensors(renewed(known, frame(NEWEST), last), lambda x: x.repeat_interleave(2, 0))
    assert copies.carried(0).frame[:, 0, 0, 0].tolist() == torch.tensor([NEWEST, NEWEST, TRUE, TRUE]).tolist()
