"""Minutes become steps: what each part of a quickstart takes, from short trials on this machine."""

import time
from dataclasses import dataclass

EVALUATION_SHARE = 0.15  # of all minutes at most: rollouts, controls and report
HEAD_SHARE = 0.3  # of the minutes for training
LEAST_STEPS, MOST_STEPS = 20, 20_000
LEAST_HEAD, MOST_HEAD = 100, 2_000  # steps: fewer do not make a picture sharper
CLIPS_A_STEP, MOST_CLIPS = 2, 1_400  # recorded predictions for a head
BUSY = 0.2  # share of a step that waits: more is said
ROLLOUTS, AROUND = 30, 20.0  # of a held-out clip, in the time of one made in a batch; seconds around all


@dataclass(frozen=True)
class Speeds:
    """Seconds without waiting for other programs, timed once at the beginning."""

    step: float  # of training
    head_step: float = 0.0  # 0: no head can be trained
    rollout: float = 0.0  # of a clip, in a batch
    waiting: float = 0.0  # share of a step's wall time that other programs took


def at_rest(wall: float, cpu: float) -> float:
    """Seconds that work would take on a machine with nothing else to do, at most.

    Its threads together cannot compute for less than one of them does, so what is beyond their CPU time is
    waiting.
    """
    return min(wall, cpu)


class Stopwatch:
    """Calls return the seconds since it was made, as they would be at rest."""

    def __init__(self) -> None:
        self.started = time.monotonic(), time.process_time()

    def __call__(self) -> float:
        wall, cpu = self.started
        return at_rest(time.monotonic() - wall, time.process_time() - cpu)


@dataclass(frozen=True)
class Budget:
    """Steps that were decided from the speeds; stored, so that a stopped run ends with equal results."""

    speeds: Speeds
    steps: int
    head_steps: int
    evaluation: float  # seconds

    @property
    def head_clips(self) -> int:
        """Training clips whose predictions the head learns from."""
        return min(MOST_CLIPS, CLIPS_A_STEP * self.head_steps)

    @property
    def predictions(self) -> float:
        """Seconds to record them."""
        return self.head_clips * self.speeds.rollout

    def parts(self) -> list[tuple[str, str, str]]:
        """The plan in words: name, minutes and content of each part."""
        step, head = self.speeds.step, self.speeds.head_step
        found = [("base", _minutes(self.steps * step), f"{self.steps} steps of {step:.2f} s")]
        if self.head_steps:
            learned = f"of {self.head_clips} clips, to train the head on"
            found += [
                ("predictions", _minutes(self.predictions), learned),
                ("head", _minutes(self.head_steps * head), f"{self.head_steps} steps of {head:.2f} s"),
            ]
        elif head:
            why = f"fewer than {LEAST_HEAD} steps would fit: pictures stay soft, more minutes make them sharp"
            found.append(("head", _minutes(0), why))
        return [*found, ("evaluation", _minutes(self.evaluation), "held-out clips, true and wrong actions")]


def share_out(minutes: float, spent: float, speeds: Speeds, held_out_clips: int) -> Budget:
    """What fits into the minutes behind the seconds spent so far.

    A head gets HEAD_SHARE of the training, or nothing where that is too little to be of use.
    """
    evaluation = min(
        60 * minutes * EVALUATION_SHARE, AROUND + held_out_clips * ROLLOUTS * (speeds.rollout or speeds.step)
    )
    left, head_steps = 60 * minutes - spent - evaluation, 0
    if speeds.head_step:
        seconds = speeds.head_step + CLIPS_A_STEP * speeds.rollout
        head_steps = min(MOST_HEAD, int(HEAD_SHARE * left / seconds))
    head_steps = head_steps if head_steps >= LEAST_HEAD else 0
    budget = Budget(speeds, 0, head_steps, evaluation)
    left -= budget.predictions + head_steps * speeds.head_step
    steps = max(LEAST_STEPS, min(MOST_STEPS, int(left / speeds.step)))
    return Budget(speeds, steps, head_steps, evaluation)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"
