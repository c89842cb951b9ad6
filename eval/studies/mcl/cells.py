"""The runs of the MCL study: trainings with and without MCL on few episodes, and their evaluations.

OUTPUT/PHASE/REGIME_UPDATE_EPISODES/ARM/seed0/trained     fine-tuned; ARM is `without` or READING_WEIGHT
OUTPUT/PHASE/.../seed0/target, .../transfer               reports of worldmodel rollout

Phase `choose` tries every reading and weight on one robot. Phase `confirm` compares the selected one with no
MCL on another robot, with more seeds, over regimes, updates and amounts of data.
"""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from studies.cells import ROLL_OUT, TRAIN, Cell

WITHOUT = "without"
PHASES = ("choose", "confirm")


@dataclass(frozen=True)
class RobotData:
    """The data of one robot that no pretrained model was trained on."""

    train: str = ""  # folder with {episodes} in its name: few episodes of one task, nested sets
    target_test: str = ""  # held-out episodes of that task
    transfer_test: str = ""  # episodes of another task; empty: not evaluated
    rollout_settings: tuple[str, ...] = ()  # of `worldmodel rollout`, in addition to the common ones


@dataclass(frozen=True)
class Arm:
    """One arm of the study: a reading of MCL with its weight, or no MCL."""

    name: str
    settings: tuple[str, ...]


@dataclass(frozen=True)
class MclStudyConfig:
    """The protocol. Settings are key=value of the commands that the cells run."""

    output: str = "outputs/mcl_study"  # folder of all cells and of the tables
    pretrained: dict[str, str] = field(default_factory=dict)  # regime -> world model to fine-tune
    training: str = "configs/desk/demo.yaml"  # config of `worldmodel train`; the base of every training
    training_settings: tuple[str, ...] = ()  # additional key=value for every training
    rollout_settings: tuple[str, ...] = ()  # of `worldmodel rollout`
    readings: dict[str, list[str]] = field(default_factory=dict)  # name -> settings of model.mcl
    weights: tuple[float, ...] = (0.003, 0.03, 0.3, 1.0)  # lambda_MCL
    updates: dict[str, list[str]] = field(default_factory=dict)  # what trains: name -> settings
    choose: RobotData = field(default_factory=RobotData)  # robot on which reading and weight are selected
    confirm: RobotData = field(default_factory=RobotData)  # robot on which they are confirmed
    choose_seeds: tuple[int, ...] = (0, 1)  # of phase choose
    confirm_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # of phase confirm
    choose_episodes: int = 25  # episodes of that robot
    episodes: tuple[int, ...] = (5, 10, 25, 100)  # episodes of the confirming robot
    chosen: dict[str, str] = field(default_factory=dict)  # regime -> READING_WEIGHT, after phase choose
    # Additional arms of phase confirm, with `choose_episodes` and the first update.
    controls: dict[str, list[str]] = field(default_factory=dict)  # name -> settings, including the weight

    def __post_init__(self) -> None:
        if not self.pretrained or not self.readings or not self.updates:
            raise ValueError("pretrained, readings and updates must not be empty")
        if unknown := set(self.chosen.values()) - {arm.name for arm in self.arms}:
            raise ValueError(
                f"chosen names {sorted(unknown)}; arms are READING_WEIGHT, as in {self.arms[-1].name}"
            )

    @property
    def arms(self) -> tuple[Arm, ...]:
        """No MCL, and every reading with every weight."""
        return _arms(self)

    @property
    def control_arms(self) -> tuple[Arm, ...]:
        """The arms of `controls`."""
        return tuple(Arm(name, tuple(settings)) for name, settings in self.controls.items())


def _arms(config: MclStudyConfig) -> tuple[Arm, ...]:
    pairs = itertools.product(config.weights, config.readings.items())
    with_mcl = (
        Arm(f"{name}_{weight:g}", (*settings, f"model.objective.mcl_weight={weight:g}"))
        for weight, (name, settings) in pairs
    )
    return (Arm(WITHOUT, ("model.mcl=null",)), *with_mcl)


@dataclass(frozen=True)
class Comparison:
    """Trainings that differ only in the arm."""

    phase: str
    regime: str
    update: str
    episodes: int

    @property
    def name(self) -> str:
        """Folder name below OUTPUT."""
        return f"{self.phase}/{self.regime}_{self.update}_{self.episodes}"


def comparisons(config: MclStudyConfig, phase: str) -> list[Comparison]:
    """The comparisons of a phase.

    `choose` has one amount of data and the first update. `confirm` has the first update with every amount of
    data, and the other updates with the largest.
    """
    first, *others = config.updates
    if phase == "choose":
        return [Comparison(phase, regime, first, config.choose_episodes) for regime in config.pretrained]
    points = [(first, episodes) for episodes in config.episodes]
    points += [(other, max(config.episodes)) for other in others]
    return [Comparison(phase, regime, *point) for regime in config.pretrained for point in points]


def arms_of(config: MclStudyConfig, comparison: Comparison) -> list[Arm]:
    """Every arm in phase choose; in phase confirm no MCL, the one selected for the regime, and controls."""
    if comparison.phase == "choose":
        return list(config.arms)
    if comparison.regime not in config.chosen:
        raise ValueError(
            f"chosen has no arm for {comparison.regime}: run --phase choose, and write what it prints into"
            " the config"
        )
    names = (WITHOUT, config.chosen[comparison.regime])
    arms = [arm for arm in config.arms if arm.name in names]
    as_chosen = (next(iter(config.updates)), config.choose_episodes)
    is_controlled = (comparison.update, comparison.episodes) == as_chosen
    return [*arms, *config.control_arms] if is_controlled else arms


def plan(config: MclStudyConfig, phase: str) -> list[Cell]:
    """All cells of a phase; all arms of one seed come before the next seed."""
    seeds = config.choose_seeds if phase == "choose" else config.confirm_seeds
    robot = config.choose if phase == "choose" else config.confirm
    return [
        cell
        for seed in seeds
        for comparison in comparisons(config, phase)
        for arm in arms_of(config, comparison)
        for cell in _cells(config, comparison, robot, arm, seed)
    ]


def arm_folder(config: MclStudyConfig, comparison: Comparison, arm: str, seed: int) -> Path:
    """Folder of an arm's training and reports."""
    return Path(config.output) / comparison.name / arm / f"seed{seed}"


def _cells(
    config: MclStudyConfig, comparison: Comparison, robot: RobotData, arm: Arm, seed: int
) -> Iterator[Cell]:
    folder = arm_folder(config, comparison, arm.name, seed)
    place = folder.relative_to(config.output).as_posix()
    trained = folder / "trained"
    settings = (
        config.training,
        f"output={trained}",
        f"start_from={config.pretrained[comparison.regime]}",
        f"model.regime={comparison.regime}",
        f"data.paths=[{robot.train.format(episodes=comparison.episodes)}]",
        f"fit.seed={seed}",
        *config.training_settings,
        *config.updates[comparison.update],
        *arm.settings,
    )
    yield Cell(f"{place}/trained", trained, TRAIN, settings, (sys.executable,), trained / "model")
    drive = "latent" if comparison.regime == "lacg" else "robot"
    tests: Mapping[str, str] = {"target": robot.target_test, "transfer": robot.transfer_test}
    more = (f"drive={drive}", *config.rollout_settings, *robot.rollout_settings)
    for task, data in tests.items():
        if data:
            report = folder / task
            given = (str(trained / "model"), data, f"output={report}", *more)
            needs = (f"{place}/trained",)
            yield Cell(
                f"{place}/{task}", report, ROLL_OUT, given, (sys.executable,), report / "report.html", needs
            )


def arm_names(arms: Sequence[Arm]) -> list[str]:
    """Names of the arms with MCL."""
    return [arm.name for arm in arms if arm.name != WITHOUT]
