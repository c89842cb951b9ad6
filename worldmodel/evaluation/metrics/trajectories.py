"""Trajectory accuracy of the grippers in a generated video, as defined by WorldArena.

A track is [t, arms, 2], x and y as shares of the image size, with -1, -1 where a gripper was not found. Only
the arm that moves farthest in the truth is used. Both tracks are aligned by dynamic time warping, and the
score is one over the mean distance along the alignment: higher is better, unbounded. Gaps are filled by
interpolation. WorldArena aligns with the approximate `fastdtw`; here the alignment is exact.
"""

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist, pdist

MISSING = -1.0
MAX_MISSING = 0.9  # a track with a larger share of frames without the gripper is not scored


def trajectory_accuracy(made: Float[np.ndarray, "t k 2"], real: Float[np.ndarray, "s k 2"]) -> float:
    """One over the mean warped distance; 0 if the gripper is hardly ever found in the generated video.

    Examples:
        >>> import numpy as np
        >>> real = np.stack([np.linspace([0.2, 0.5], [0.8, 0.5], 9)] * 2, axis=1)
        >>> round(trajectory_accuracy(real + [0.0, 0.1], real), 3)
        10.0
    """
    arm = _farthest_arm(real)
    if _share_missing(made[:, arm]) > MAX_MISSING:
        return 0.0
    distance, steps = warped_distance(fill_gaps(made[:, arm]), fill_gaps(real[:, arm]))
    return steps / max(distance, 1e-12)


def fill_gaps(track: Float[np.ndarray, "t 2"]) -> Float[np.ndarray, "t 2"]:
    """Interpolate missing positions linearly; at the ends, repeat the nearest one found."""
    known = (track != MISSING).any(1)
    if not known.any():
        return track
    frames = np.arange(len(track))
    return np.stack([np.interp(frames, frames[known], column[known]) for column in track.T], axis=1)


def warped_distance(one: Float[np.ndarray, "t 2"], other: Float[np.ndarray, "s 2"]) -> tuple[float, int]:
    """The smallest sum of distances over all alignments, and the number of pairs of that alignment."""
    costs = cdist(one, other)
    total = np.full((len(one) + 1, len(other) + 1), np.inf)
    steps = np.zeros(total.shape, int)
    total[0, 0] = 0.0
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            # Ties prefer a step along one track over a step along both.
            before = min(((i - 1, j), (i, j - 1), (i - 1, j - 1)), key=lambda place: total[place])
            total[i, j] = total[before] + costs[i - 1, j - 1]
            steps[i, j] = steps[before] + 1
    return float(total[-1, -1]), int(steps[-1, -1])


def _farthest_arm(real: Float[np.ndarray, "s k 2"]) -> int:
    spans = [
        -1.0 if _share_missing(track) > MAX_MISSING else pdist(fill_gaps(track)).max(initial=0.0)
        for track in real.swapaxes(0, 1)
    ]
    return int(np.argmax(spans))


def _share_missing(track: Float[np.ndarray, "t 2"]) -> float:
    return float((track == MISSING).all(1).mean())
