"""Reports of all cells of Table 2 -> one table with intervals over episodes and over seeds.

A row has one score per seed and episode. Over episodes: seeds are averaged first, and the interval covers the
choice of episodes. Over seeds: episodes are averaged first, and the interval covers the training run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from studies.table2.cells import ROWS, TASKS, Table2Config, rollout_folder, training_folder
from worldmodel.evaluation.jsonl_store import read_records
from worldmodel.evaluation.rollouts.results import (
    CEILING,
    CLIP_PSNR,
    GAP_METRICS,
    HIGHER_IS_BETTER,
    STATIC,
    SUMMARY_METRICS,
    TRUE,
    Record,
    episode_means,
    episode_scores,
    row_names,
    wins,
)
from worldmodel.report.intervals import NOTHING, Estimate, gap_closed, mean_estimate, ratio_estimate

EFFECT_METRICS = (*SUMMARY_METRICS, "action_error", "gripper_error", "object_in_place")
MCL_PAIRS = {"ACG": ("acg", "acg_mcl"), "LACG": ("lacg", "lacg_mcl")}


@dataclass(frozen=True)
class Evaluated:
    """The records of one row on one task, one list per seed, all of the same episodes."""

    seeds: tuple[int, ...]
    records: tuple[Sequence[Record], ...]

    def scores(self, metric: str, video: str = TRUE) -> Float[np.ndarray, "seeds episodes"]:
        """A metric of the videos with true actions, or of another row of the reports."""
        return np.stack([_episode_values(records, metric, video) for records in self.records])


def collect(config: Table2Config) -> dict[str, Any]:
    """The table of the finished evaluations, as JSON values; estimates are {mean, low, high, count}."""
    found = {task: _read(config, task) for task in TASKS}
    return {
        "action_spaces": _action_spaces(config),
        "kl_bits": _kl_bits(config),
        "tasks": {task: _task(rows) for task, rows in found.items() if rows},
        "mcl": {
            title: {
                task: {metric: effect(rows[without], rows[with_], metric) for metric in EFFECT_METRICS}
                for task, rows in found.items()
                if without in rows and with_ in rows
            }
            for title, (without, with_) in MCL_PAIRS.items()
        },
    }


def _action_spaces(config: Table2Config) -> dict[str, str]:
    """Robot -> the kind of its recorded actions, read from the finished rollouts."""
    folders = (
        rollout_folder(Path(config.output), name, seed, task)
        for task in TASKS
        for name in config.rows
        for seed in config.seeds
    )
    done = [folder / "results.json" for folder in folders if (folder / "results.json").exists()]
    spaces = [json.loads(path.read_text()).get("action_spaces", {}) for path in done]
    return {robot: space for found in spaces for robot, space in found.items()}


def _kl_bits(config: Table2Config) -> dict[str, dict[str, Any]]:
    """Row with latent actions -> bits per transition in the last validation of its trainings."""
    rows = [name for name in config.rows if ROWS[name].drive == "latent"]
    known = {name: [_validated(config, name, seed) for seed in config.seeds] for name in rows}
    found = {name: [bits for bits in values if bits is not None] for name, values in known.items()}
    return {name: mean_estimate(values).to_dict() for name, values in found.items() if values}


def _validated(config: Table2Config, name: str, seed: int) -> float | None:
    path = training_folder(Path(config.output), name, seed) / "metrics.json"
    return json.loads(path.read_text()).get("kl_bits") if path.exists() else None


def effect(without: Evaluated, with_: Evaluated, metric: str) -> dict[str, Any]:
    """The effect of MCL, paired by seed and episode: the same first weights, data order, clip and noise."""
    shared = [seed for seed in without.seeds if seed in with_.seeds]
    before, after = (
        rows.scores(metric)[[rows.seeds.index(seed) for seed in shared]] for rows in (without, with_)
    )
    return _both(after - before)


def paired_spread(config: Table2Config, task: str, name: str, other: str) -> float:
    """Standard deviation over episodes of a difference in PSNR, of finished evaluations; nan without them."""
    rows = _read(config, task)
    if name not in rows or other not in rows:
        return float("nan")
    before, after = (rows[one].scores("psnr").mean(0) for one in (other, name))
    return float((after - before).std(ddof=1))


def smallest_difference(spread: float, count: int) -> float:
    """What a paired test at 5 % finds in 80 % of all repetitions: (t_.975 + t_.8) spread / sqrt(count)."""
    if count < 2:
        return float("nan")
    quantiles = float(stats.t.ppf(0.975, count - 1)) + float(stats.t.ppf(0.8, count - 1))
    return quantiles * spread / count**0.5


def _read(config: Table2Config, task: str) -> dict[str, Evaluated]:
    """The rows with at least one finished seed."""
    rows = {}
    for name in config.rows:
        folders = {seed: rollout_folder(Path(config.output), name, seed, task) for seed in config.seeds}
        done = {seed: folder for seed, folder in folders.items() if (folder / "report.html").exists()}
        if done:
            records = tuple(list(read_records(folder / "clips.jsonl").values()) for folder in done.values())
            rows[name] = Evaluated(tuple(done), records)
    _check_episodes(rows, task)
    return rows


def _check_episodes(rows: Mapping[str, Evaluated], task: str) -> None:
    episodes = {
        tuple(dict.fromkeys(record["uid"] for record in records))
        for evaluated in rows.values()
        for records in evaluated.records
    }
    if len(episodes) > 1:
        raise ValueError(f"the cells of the {task} task were not evaluated on the same episodes")


def _task(rows: Mapping[str, Evaluated]) -> dict[str, Any]:
    some = next(iter(rows.values()))
    # The floor needs no model, and all models share the frozen autoencoder: any report has both.
    ends = {name: {m: some.scores(m, name)[0] for m in GAP_METRICS} for name in (STATIC, CEILING)}
    answer = {
        "episodes": some.scores("psnr").shape[1],
        "floors": {
            name: {metric: _both(some.scores(metric, name)[:1]) for metric in EFFECT_METRICS} for name in ends
        },
        "rows": {
            name: {
                "title": ROWS[name].title,
                "seeds": list(evaluated.seeds),
                **{metric: _both(evaluated.scores(metric)) for metric in EFFECT_METRICS},
                "gap_closed": {
                    metric: _gap(
                        metric, ends[STATIC][metric], evaluated.scores(metric), ends[CEILING][metric]
                    )
                    for metric in GAP_METRICS
                },
                "wins": _wins(evaluated),
            }
            for name, evaluated in rows.items()
        },
    }
    if "no_action" in rows:
        base = _mean(rows["no_action"].scores("gripper_error"), 0)
        for name, evaluated in rows.items():
            ratio = ratio_estimate(_mean(evaluated.scores("gripper_error"), 0), base)
            answer["rows"][name]["gripper_error_to_no_action"] = ratio.to_dict()
    return answer


def _gap(metric: str, floor: np.ndarray, scores: np.ndarray, ceiling: np.ndarray) -> dict[str, Any]:
    better = HIGHER_IS_BETTER[metric]
    per_seed = [gap_closed(floor, one, ceiling, higher_is_better=better).mean for one in scores]
    over_episodes = gap_closed(floor, _mean(scores, 0), ceiling, higher_is_better=better)
    return {"episodes": over_episodes.to_dict(), "seeds": mean_estimate(per_seed).to_dict()}


def _wins(evaluated: Evaluated) -> dict[str, Any]:
    """The share of episodes in which true actions beat each control."""
    controls = [name for name in row_names(evaluated.records[0]) if name not in (CEILING, TRUE)]
    return {
        control: {metric: _win(evaluated, control, metric).to_dict() for metric in CLIP_PSNR}
        for control in controls
    }


def _win(evaluated: Evaluated, control: str, metric: str) -> Estimate:
    """The share for each seed, then the mean: scores averaged over seeds first would win more often."""
    shares = [wins(records, control, metric) for records in evaluated.records]
    known = [share for share in shares if share.count]
    if not known:
        return NOTHING
    mean, low, high = (float(np.mean([getattr(s, end) for s in known])) for end in ("mean", "low", "high"))
    return Estimate(mean, low, high, min(share.count for share in known))


def _both(scores: Float[np.ndarray, "seeds episodes"]) -> dict[str, Any]:
    return {
        "episodes": mean_estimate(_mean(scores, 0)).to_dict(),
        "seeds": mean_estimate(_mean(scores, 1)).to_dict(),
    }


def _mean(scores: Float[np.ndarray, "seeds episodes"], axis: int) -> Float[np.ndarray, " n"]:
    """Mean of the values that are not nan along the axis; nan if there are none."""
    known = ~np.isnan(scores)
    with np.errstate(invalid="ignore"):
        return np.where(known, scores, 0).sum(axis) / known.sum(axis)


def _episode_values(records: Sequence[Record], metric: str, video: str) -> Float[np.ndarray, " episodes"]:
    if metric in SUMMARY_METRICS:
        return episode_scores(records, video, metric)
    if metric in ("action_error", "gripper_error"):
        return episode_means(records, [record.get(metric, {}).get(video) for record in records])
    return episode_means(records, [_object_in_place(record, video) for record in records])


def _object_in_place(record: Record, video: str) -> float | None:
    """1 or 0 for a clip in which the object is moved, else None."""
    judged = record.get("object")
    if not judged or not judged["moved"] or video not in judged["in_place"]:
        return None
    return float(judged["in_place"][video])
