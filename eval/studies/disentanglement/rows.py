"""A study as a text file, one row a line ({runs}: the folder of all runs, {seed}: the seed):

data    key=value ...                  pictures, for every row
prepare NAME SCRIPT CONFIG key=value   train, no scores (a first stage)
train   NAME SCRIPT CONFIG key=value   train, then score the last and the best weights
score   NAME RUN key=value             score the models of another row in another way
"""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

POINTS = {"last": "model", "best": "best"}  # which weights of a run -> their folder in it
OTHER_RUN = re.compile(r"\{runs\}/([^/]+)/")


@dataclass(frozen=True)
class Row:
    """A line of the study that trains or scores."""

    name: str
    run: str  # name of the row whose runs are scored; its own for rows that train
    command: tuple[str, ...]  # script, config and overrides; empty for rows that only score
    scoring: tuple[str, ...]  # overrides of the evaluation
    is_scored: bool
    needs: tuple[str, ...]  # rows whose models it starts from or scores

    def folder(self, runs: Path, seed: int) -> Path:
        """Where one seed of it lives."""
        return runs / self.run / f"seed{seed}"


@dataclass(frozen=True)
class Study:
    """The rows in order, and the pictures they share."""

    rows: tuple[Row, ...]
    data: tuple[str, ...]  # overrides data.*=... of training and evaluation

    def stages(self, name: str) -> tuple[Row, ...]:
        """The rows that train what a row's models are made of, in order, up to its own."""
        row = next(row for row in self.rows if row.name == name)
        before = [stage for need in row.needs for stage in self.stages(need)]
        return tuple(dict.fromkeys([*before, *([row] if row.command else [])]))


def read_study(path: Path) -> Study:
    """Parse a study file; ValueError names the line that is wrong."""
    rows: list[Row] = []
    data: tuple[str, ...] = ()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        verb, *words = shlex.split(line)
        if verb == "data":
            data = tuple(words)
            continue
        row = _row(verb, words)
        if row is None:
            expected = "data, prepare, train or score with its words"
            raise ValueError(f"{path}, line {number}: expected {expected}, got {line!r}")
        if absent := sorted(set(row.needs) - {row.name for row in rows}):
            raise ValueError(f"{path}, line {number}: no row {absent[0]!r} stands above it")
        rows.append(row)
    if len({row.name for row in rows}) != len(rows):
        raise ValueError(f"{path}: two rows have the same name")
    return Study(tuple(rows), data)


def _row(verb: str, words: list[str]) -> Row | None:
    if verb in ("prepare", "train") and len(words) >= 3:
        command = tuple(words[1:])
        return Row(words[0], words[0], command, (), verb == "train", _named_runs(command))
    if verb == "score" and len(words) >= 2:
        return Row(words[0], words[1], (), tuple(words[2:]), True, (words[1],))
    return None


def _named_runs(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for word in words for name in OTHER_RUN.findall(word)))
