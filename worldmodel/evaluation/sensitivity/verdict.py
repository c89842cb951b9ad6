"""Decides by a fixed rule whether the actions are followed, from the records of `sensitivity.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worldmodel.evaluation.controls import CONTROLS
from worldmodel.evaluation.rollouts.results import episode_means, means_by_name
from worldmodel.report.intervals import Estimate, mean_estimate, win_estimate

NEEDED_SHARE = 0.95  # of episodes, against every control
NEEDED_LOW = 0.5  # required lower end of the 95 % interval, so that a few lucky episodes are not enough
NEEDED_GAIN = 0.01  # relative: a smaller difference in error is a tie
LEAST_CHANGE = 0.05  # rms of commands, in half ranges: a control closer to the true commands is no control
SCALE_GAIN = 0.1  # relative: a scale that fits better by this much counts as the right one
SAME = 1e-5  # mean absolute difference of two videos in [0, 1]: below, only rounding
SILENT = 0.02  # of the strongest dimension's response: less counts as no response

RULE = (
    "The actions are followed when two things hold. First, the video under the true actions is nearer to the "
    "true video than the static frame and than the video under every control. Nearer means a mean squared "
    f"error that is lower by more than {NEEDED_GAIN:.0%}. It must be so in at least {NEEDED_SHARE:.0%} of "
    "the episodes in which something moves, with the lower end of the 95 % interval above "
    f"{NEEDED_LOW:.0%}. Second, no other scale of the actions fits the true video better by more than "
    f"{SCALE_GAIN:.0%}, as far as the 95 % interval of the ratio tells. A control whose commands "
    "hardly differ from the true ones in a clip is not counted there."
)

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """Comparison of the true actions with one control."""

    control: str
    wins: Estimate  # share of episodes
    error_ratio: Estimate  # error under true actions / error under the control, per episode
    change: Estimate  # mean absolute difference of the two videos in [0, 1]
    is_passed: bool


@dataclass(frozen=True)
class Following:
    """The verdict and its evidence."""

    is_followed: bool
    reasons: tuple[str, ...]  # the failures in words, or that there are none
    checks: tuple[Check, ...]
    best_scale: float | None  # scale of the actions with the lowest error; None if scales were not tested

    @property
    def title(self) -> str:
        """The verdict in one sentence."""
        return "The actions are followed." if self.is_followed else "The actions are not followed."


def judge(records: Sequence[Record]) -> Following:
    """Apply RULE to the records."""
    moving = [record for record in records if record["moves"]]
    if not moving:
        return Following(False, ("Nothing moves in any of the clips, so nothing can be said.",), (), None)
    controls = dict.fromkeys(name for record in moving for name in record["error"] if name != "true")
    checks = tuple(_check(moving, name) for name in controls)
    reasons = [_failure(check) for check in checks if not check.is_passed]
    if not any(check.change.mean > SAME for check in checks if check.control in CONTROLS):
        reasons.insert(0, "The video is the same whatever is commanded: the model does not read its actions.")
    errors = scale_errors(moving)
    best = min(errors, key=lambda scale: errors[scale].mean) if errors else None
    # With few clips any scale may win by chance: the interval of the ratio must lie below the threshold.
    if best not in (None, 1.0) and scale_ratio(moving, best).high < 1 - SCALE_GAIN:
        reasons.append(
            f"The video fits the truth best with the actions multiplied by {best:g}: their scale is wrong."
        )
    is_followed = not reasons
    if is_followed:
        reasons.append(f"True actions beat every control ({', '.join(controls)}).")
    if silent := unresponsive_dimensions(moving):
        reasons.append(f"No visible response to {', '.join(silent)}.")
    return Following(is_followed, tuple(reasons), checks, best)


def scale_errors(records: Sequence[Record]) -> dict[float, Estimate]:
    """Error with the true actions times each tested scale, on the clips where it was tested."""
    return {float(scale): error for scale, error in means_by_name(records, "scale_error").items()}


def scale_ratio(records: Sequence[Record], scale: float) -> Estimate:
    """Error with the true actions times this scale, over that with the true actions, on the same episodes."""
    tried = [record for record in records if record.get("scale_error")]
    errors = [{float(name): error for name, error in record["scale_error"].items()} for record in tried]
    one, other = (episode_means(tried, [error[at] for error in errors]) for at in (1.0, scale))
    return mean_estimate(other / np.maximum(one, 1e-12))


def responses(records: Sequence[Record]) -> dict[str, Estimate]:
    """Mean absolute change of the video when one dimension is perturbed."""
    return means_by_name(records, "response")


def unresponsive_dimensions(records: Sequence[Record]) -> list[str]:
    """Dimensions whose whole response interval is below a share of the strongest one."""
    found = responses(records)
    strongest = max((estimate.mean for estimate in found.values()), default=0.0)
    return [name for name, estimate in found.items() if estimate.high <= SILENT * strongest]


def _check(records: Sequence[Record], control: str) -> Check:
    used = [record for record in records if record["told"].get(control, np.inf) >= LEAST_CHANGE]
    true = episode_means(used, [record["error"]["true"] for record in used])
    other = episode_means(used, [record["error"].get(control) for record in used])
    wins = win_estimate(true, other * (1 - NEEDED_GAIN), higher_is_better=False)
    return Check(
        control,
        wins,
        mean_estimate(true / np.maximum(other, 1e-12)),
        mean_estimate(episode_means(used, [record["change"].get(control) for record in used])),
        is_passed=wins.count > 0 and wins.mean >= NEEDED_SHARE and wins.low > NEEDED_LOW,
    )


def _failure(check: Check) -> str:
    if not check.wins.count:
        return f"{check.control}: no clip in which this control differs from the true actions."
    return (
        f"{check.control}: true actions are better in {check.wins.mean:.0%} of {check.wins.count} episodes "
        f"(95 % interval {check.wins.low:.0%} to {check.wins.high:.0%}); at least {NEEDED_SHARE:.0%} is "
        f"needed, with the interval above {NEEDED_LOW:.0%}."
    )
