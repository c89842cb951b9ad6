"""How often the verdict 'followed' is false: a frozen model, judged with actions of something else.

    python eval/bench/verdict.py CHECKPOINT DATA [--mapping YAML] [key=value ...]      --help lists the keys

A draw takes four episodes, the fewest with which the rule says 'followed', one clip each at a random start,
and one fault for all of them:

    none         the actions as recorded, a quarter of the draws: how often a sound set is called followed
    other        those of a clip of another episode
    delayed      those of one second before
    dead         the first one throughout

What is then called the true actions goes through the code of `sensitivity.py`, controls and rule. Scales are
not tried: they only add reasons to say 'not followed'. Every draw has clips, partners and noise of its own,
and ends with the first clip that decides it: of four episodes all must pass. Writes OUTPUT/draws.jsonl, from
which a run goes on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from worldmodel.checked import check_ranges
from worldmodel.checkpoint.folder import locate
from worldmodel.evaluation.command_line import run_on_data, settings_of
from worldmodel.evaluation.held_out import HeldOutClips, HeldOutConfig, held_out_clips
from worldmodel.evaluation.jsonl_store import RecordLines
from worldmodel.evaluation.predictors import ModelPredictor
from worldmodel.evaluation.sensitivity.run import SensitivityConfig, SensitivityProbe, probe_model
from worldmodel.evaluation.sensitivity.verdict import LEAST_CHANGE, NEEDED_GAIN, judge
from worldmodel.files import fingerprint
from worldmodel.models.model import WorldModel
from worldmodel.report.intervals import share_estimate
from worldmodel.types import EpisodeSource

FAULTS = ("none", "other", "delayed", "dead")
DELAY = 1.0  # seconds
EPISODES = 4  # of a draw


@dataclass(frozen=True)
class VerdictConfig:
    """How much is drawn, and from what."""

    output: str = "outputs/verdict"  # folder of the results
    allow_external: bool = False  # load also from other places that the model's config.yaml names
    held_out: HeldOutConfig = field(default_factory=lambda: HeldOutConfig(episodes=0, clips_per_episode=9999))
    draws: int = 60  # of each fault, and a quarter as many of the actions as recorded
    seed: int = 0  # of episodes, starts, partners and noise

    def __post_init__(self) -> None:
        check_ranges(self, draws=(1, 10_000))


@dataclass(frozen=True)
class Draws:
    """Clips at every start, and what is asked about them."""

    probe: SensitivityProbe
    predictor: ModelPredictor
    clips: HeldOutClips

    def records(self, fault: str, seed: Sequence[int]) -> list[dict[str, Any]]:
        """Of one draw, as far as it is needed."""
        random = np.random.default_rng(seed)
        by_episode: dict[str, list[int]] = {}
        for number, (record, start) in enumerate(self.clips.places):
            if start >= record.starts[0] + round(DELAY * record.fps):
                by_episode.setdefault(record.uid, []).append(number)
        found: list[dict[str, Any]] = []
        for uid in random.choice([*by_episode], EPISODES, replace=False):
            found.append(self._record(fault, int(random.choice(by_episode[uid])), random))
            if not is_passed(found[-1]):
                break
        return found

    def _record(self, fault: str, number: int, random: np.random.Generator) -> dict[str, Any]:
        clip = self.clips[number]
        commands = self._faulty(fault, number, random)
        record, _ = self.probe.measure(
            clip,
            commands,
            self.predictor.command_names(clip),
            self._commands(self._other(number, random)),
            seed=int(random.integers(2**31)),
            with_response=False,
        )
        return record

    def _faulty(self, fault: str, number: int, random: np.random.Generator) -> Float[Tensor, "n u"]:
        """What is taken for the true actions of a clip."""
        if fault == "other":
            return self._commands(self._other(number, random))
        record, start = self.clips.places[number]
        if fault == "delayed":
            before = start - round(DELAY * record.fps)
            return self._commands(self.clips.places.index((record, before), 0, number))
        commands = self._commands(number)
        return commands[:1].expand_as(commands) if fault == "dead" else commands

    def _other(self, number: int, random: np.random.Generator) -> int:
        """A clip of another episode of the same robot."""
        own, places = self.clips.places[number][0], self.clips.places
        others = [
            at
            for at, (one, _) in enumerate(places)
            if one.uid != own.uid and one.embodiment == own.embodiment
        ]
        return int(random.choice(others))

    def _commands(self, number: int) -> Float[Tensor, "n u"]:
        return self.predictor.commands(self.clips[number])


def is_passed(record: Mapping[str, Any]) -> bool:
    """Whether this clip leaves it open that the actions are followed."""
    error, told = record["error"], record["told"]
    others = [error[name] for name in error if name != "true" and told.get(name, np.inf) >= LEAST_CHANGE]
    return record["moves"] and all(error["true"] < (1 - NEEDED_GAIN) * other for other in others)


def run(checkpoint_source: str, source: EpisodeSource, config: VerdictConfig) -> int:
    """All draws that are not done yet, and the table."""
    folder = locate(checkpoint_source)
    model = WorldModel.from_pretrained(folder, allow_external=config.allow_external)
    clips = held_out_clips(source, model.contract, model.normalizer, config.held_out, model.trained_on)
    probe, predictor = probe_model(model, SensitivityConfig(), clips.embodiments)
    draws = Draws(replace(probe, recover=None), predictor, clips)
    settings = {**settings_of(config), "draws": 0, "data": source.name, "model": fingerprint(folder)}
    lines = RecordLines(Path(config.output) / "draws.jsonl", settings)
    for number, fault in tqdm([*wanted(config.draws)]):
        if (key := f"{fault}#{number}") not in lines:
            seed = (config.seed, FAULTS.index(fault), number)
            lines.add(key, {"clips": draws.records(fault, seed)})
    print(f"{source.name}: {clips.overlap}", table(lines.records, config.draws), sep="\n")
    return 0


def wanted(count: int) -> Iterator[tuple[int, str]]:
    """All draws, the faults in turn."""
    for number in range(count):
        yield from ((number, fault) for fault in FAULTS if fault != "none" or number % 4 == 0)


def table(records: Mapping[str, Mapping[str, Any]], count: int) -> str:
    """How often 'followed' is said."""
    rows = ["| actions | followed | 95 % interval |", "|---|---|---|"]
    for fault in FAULTS:
        numbers = [number for number, name in wanted(count) if name == fault]
        said = [judge(records[f"{fault}#{number}"]["clips"]).is_followed for number in numbers]
        share = share_estimate(sum(said), len(said))
        rows.append(f"| {fault} | {sum(said)} of {len(said)} | {share.low:.0%} to {share.high:.0%} |")
    return "\n".join(rows)


if __name__ == "__main__":
    raise SystemExit(run_on_data(VerdictConfig, run, __doc__ or ""))
