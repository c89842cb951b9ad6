"""A study as a YAML file: groups of rows that share a command, a starting point and most of their settings.

presets: configs/disentanglement/desk            # a row uses the YAML of its name from here, or `preset`
data: [data.path=rooms, data.size=32]            # pictures, for every row
groups:
  - command: train-concepts                      # train, then score the last and the best weights
    start_from: vqvae                            # the model of that row, seed by seed
    settings: [fit.optim.lr=1e-3]
    rows: [{name: encdiff, steps: 650, validate_every: 325}, {name: mddiff, settings: [fit.steps=575]}]
  - scores_of: encdiff                           # score the models of another row in another way
    rows: [{name: encdiff_ica, scoring: [ica=true]}]
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from worldmodel.config import load_config

POINTS = {"last": "model", "best": "best"}  # which weights of a run -> their folder in it


@dataclass(frozen=True)
class RowConfig:
    """Settings of one row."""

    name: str = ""  # in tables and folders
    preset: str = ""  # YAML of its training; empty: the group's, then that of its name
    settings: tuple[str, ...] = ()  # key=value of its training
    scoring: tuple[str, ...] = ()  # key=value of its evaluation
    steps: int = 0  # of training; 0: the group's, then the preset's
    validate_every: int = 0  # steps, also between checkpoints; 0: the group's, then the preset's


@dataclass(frozen=True)
class GroupConfig:
    """Settings shared by rows."""

    command: str = ""  # sub-command of worldmodel that trains them; empty: they are only scored
    scores_of: str = ""  # the row whose models they score; empty: their own
    is_scored: bool = True  # false for first stages
    start_from: str = ""  # the row whose model their training starts from
    preset: str = ""  # of rows without their own
    settings: tuple[str, ...] = ()  # key=value, before those of the row
    steps: int = 0  # of rows without their own
    validate_every: int = 0  # of rows without their own
    rows: list[RowConfig] = field(default_factory=list)

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.scores_of):
            raise ValueError("a group has either a command or scores_of")


@dataclass(frozen=True)
class StudyConfig:
    """The study file."""

    presets: str = ""  # folder of the rows' YAML files
    data: tuple[str, ...] = ()  # data.*=... of training and evaluation
    groups: list[GroupConfig] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """A row of the study, resolved."""

    name: str
    run: str  # name of the row whose runs are scored; its own for rows that train
    command: tuple[str, ...]  # sub-command, config and overrides; empty for rows that only score
    scoring: tuple[str, ...]  # overrides of the evaluation
    is_scored: bool
    needs: tuple[str, ...]  # rows whose models it starts from or scores

    def folder(self, runs: Path, seed: int) -> Path:
        """Folder of one seed of the row."""
        return runs / self.run / f"seed{seed}"


@dataclass(frozen=True)
class Study:
    """The rows in order, and the pictures they share."""

    rows: tuple[Row, ...]
    data: tuple[str, ...]  # overrides data.*=... of training and evaluation

    def stages(self, name: str) -> tuple[Row, ...]:
        """The rows that train a row's model, in order, including itself."""
        row = next(row for row in self.rows if row.name == name)
        before = [stage for need in row.needs for stage in self.stages(need)]
        return tuple(dict.fromkeys([*before, *([row] if row.command else [])]))


def read_study(path: Path) -> Study:
    """Read the rows of a study file; ValueError describes any mistake."""
    config = load_config(StudyConfig, str(path))
    rows: list[Row] = []
    for group in config.groups:
        for one in group.rows:
            row = _row(config, group, one)
            known = {row.name for row in rows}
            if not row.name or row.name in known:
                raise ValueError(f"{path}: every row needs a name of its own, got {row.name!r}")
            if absent := sorted(set(row.needs) - known):
                raise ValueError(f"{path}, row {row.name}: no row {absent[0]!r} stands above it")
            rows.append(row)
    return Study(tuple(rows), config.data)


def _row(config: StudyConfig, group: GroupConfig, row: RowConfig) -> Row:
    needs = tuple(name for name in (group.start_from, group.scores_of) if name)
    command = tuple(_command(config, group, row)) if group.command else ()
    return Row(row.name, group.scores_of or row.name, command, row.scoring, group.is_scored, needs)


def _command(config: StudyConfig, group: GroupConfig, row: RowConfig) -> Iterator[str]:
    """Arguments of the training; {runs} is the folder of all runs, {seed} the seed."""
    yield group.command
    yield f"{config.presets}/{row.preset or group.preset or row.name}.yaml"
    if group.start_from:
        yield f"start_from={{runs}}/{group.start_from}/seed{{seed}}/model"
    yield from (*group.settings, *row.settings)
    if steps := row.steps or group.steps:
        yield f"fit.steps={steps}"
    if every := row.validate_every or group.validate_every:
        yield from (f"fit.validate_every={every}", f"fit.checkpoint_every={every}")
