"""Times FactorVAE score and DCI against plain implementations of the reference algorithms, on real codes.

    python eval/bench/disentanglement.py [key=value ...]        --help lists the keys

Both sides run alternately in one process and must give the same scores. FactorVAE is compared by CPU time (it
uses one core, and other load on the machine does not count), DCI also by wall-clock time, since ours fits
several factors at once.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier

from worldmodel.cli_errors import one_way_out
from worldmodel.config import config_parser, load_config
from worldmodel.diagnostics import dci, factor_vae_score
from worldmodel.diagnostics.scores.dci import completeness, disentanglement

SAME_DCI = 0.005  # both sides break ties between equal gains at random
SIZES = (3, 6, 10, 16, 16)  # sizes of the factors of the codes


@dataclass(frozen=True)
class BenchConfig:
    """What is timed."""

    codes: str = (
        "../shared/data/disentanglement/metric_test_vectors/codes_dsprites_grid.npz"  # [46080, 10] each
    )
    name: str = "VAE"  # of the codes
    rounds: int = 5  # of FactorVAE, both sides alternately
    dci_train: int = 10_000  # points; 0 skips DCI
    dci_test: int = 5_000  # points
    jobs: int = 2  # of our DCI


@one_way_out
def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(BenchConfig, __doc__)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    config = load_config(BenchConfig, None, parser.parse_args(argv).overrides)
    with np.load(config.codes) as file:
        codes = file[config.name]
    factors = np.stack(np.unravel_index(np.arange(len(codes)), SIZES), axis=1)
    bench_factor_vae(codes, factors, config.rounds)
    if config.dci_train:
        bench_dci(codes, factors, config)


def bench_factor_vae(codes: np.ndarray, factors: np.ndarray, rounds: int) -> None:
    plain_s, ours_s = [], []
    for _ in range(rounds):
        expected, _, seconds = timed(lambda: plain_factor_vae(codes))
        plain_s.append(seconds)
        score, _, seconds = timed(lambda: factor_vae_score(codes, factors))
        ours_s.append(seconds)
        assert (score.train, score.value) == expected, "the scores differ"
    ratio = statistics.median(plain / ours for plain, ours in zip(plain_s, ours_s, strict=True))
    print(
        f"FactorVAE score: plain {min(plain_s):.3f} s, ours {min(ours_s):.3f} s CPU (best); ratio "
        f"{min(plain_s) / min(ours_s):.1f} of the best, {ratio:.1f} in the median of {rounds} rounds"
    )


def bench_dci(codes: np.ndarray, factors: np.ndarray, config: BenchConfig) -> None:
    counts = config.dci_train, config.dci_test
    ours, ours_s, ours_cpu = timed(
        lambda: dci(codes, factors, num_train=counts[0], num_test=counts[1], jobs=config.jobs)
    )
    expected, plain_s, plain_cpu = timed(lambda: plain_dci(codes, *counts))
    found = ours.disentanglement, ours.completeness, ours.informativeness
    assert np.allclose(found, expected, rtol=0, atol=SAME_DCI), f"the scores differ: {found}, {expected}"
    print(
        f"DCI {counts[0]}/{counts[1]}: plain {plain_s:.0f} s, ours with {config.jobs} jobs {ours_s:.0f} s on "
        f"the wall; ratio {plain_s / ours_s:.1f}; load average {os.getloadavg()[0]:.1f}; CPU time "
        f"{plain_cpu:.0f} and {ours_cpu:.0f} s, ratio {plain_cpu / ours_cpu:.1f}; scores "
        f"{np.round(expected, 4)} and {np.round(found, 4)}"
    )


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result of the work, its wall-clock seconds and its CPU seconds over all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def sample(count: int, rng: np.random.RandomState) -> np.ndarray:
    return np.stack([rng.randint(size, size=count) for size in SIZES], axis=1)


def row(factors: np.ndarray) -> np.ndarray:
    return np.ravel_multi_index(tuple(factors.T), SIZES)


def plain_factor_vae(codes: np.ndarray) -> tuple[float, float]:
    """The reference loop on encoded images: one vote at a time."""
    rng = np.random.RandomState(0)
    variance = np.var(codes[row(sample(10_000, rng))], axis=0, ddof=1)
    active = np.sqrt(variance) >= 0.05

    def votes(count: int) -> np.ndarray:
        table = np.zeros((len(SIZES), active.sum()), dtype=int)
        for _ in range(count):
            k = rng.randint(len(SIZES))
            factors = sample(64, rng)
            factors[:, k] = factors[0, k]
            local = np.var(codes[row(factors)], axis=0, ddof=1)
            table[k, np.argmin(local[active] / variance[active])] += 1
        return table

    train, test = votes(10_000), votes(5_000)
    return train.max(0).sum() / 10_000, test[train.argmax(0), np.arange(active.sum())].sum() / 5_000


def plain_dci(codes: np.ndarray, num_train: int, num_test: int) -> tuple[float, float, float]:
    """One classifier at a time, on points drawn sixteen at a time."""
    rng = np.random.RandomState(0)
    parts = []
    for count in (num_train, num_test):
        batches = [sample(min(16, count - start), rng) for start in range(0, count, 16)]
        parts.append(np.concatenate(batches))
    train, test = parts
    importance, accuracy = [], []
    for k in range(len(SIZES)):
        model = GradientBoostingClassifier(random_state=0).fit(codes[row(train)], train[:, k])
        model.score(codes[row(train)], train[:, k])
        importance.append(np.abs(model.feature_importances_))
        accuracy.append(model.score(codes[row(test)], test[:, k]))
    matrix = np.stack(importance, axis=1)
    return disentanglement(matrix), completeness(matrix), float(np.mean(accuracy))


if __name__ == "__main__":
    main()
