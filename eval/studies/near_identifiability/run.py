"""Vanilla autoencoders + ICA: do runs agree with each other, and with the true factors?

    python eval/study.py near_identifiability OUT [key=value ...]        --help lists the keys

Cells: synthetic sources (uniform, Laplace, and Gaussian as the negative control) through a smooth, more or
less nonlinear generator, and the images of the dSprites grid. Every finished cell adds a line to
OUT/cells.jsonl; existing cells are skipped. Tables and figures are made from all of them.
"""

import itertools
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from studies.cells_file import finite, open_cells
from studies.near_identifiability.cells import (
    Cell,
    StudyConfig,
    decoder,
    dsprites_cells,
    encode,
    synthetic_cells,
    train,
)
from studies.near_identifiability.report import write_report
from worldmodel.cli_errors import one_way_out
from worldmodel.config import config_parser, load_config
from worldmodel.diagnostics import IcaAligner, NearIdentifiability, bi_lipschitz


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    parser = config_parser(StudyConfig, __doc__)
    parser.add_argument("out", metavar="OUT", type=Path, help="folder of the results")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args(argv)
    config = load_config(StudyConfig, None, arguments.overrides)
    cells = itertools.chain(synthetic_cells(config), dsprites_cells(config) if config.dsprites else ())
    done = open_cells(arguments.out, "near_identifiability")
    for cell in cells:
        key = cell.name.replace(" ", "_")
        if key in done:
            continue
        result = measure(cell, config)
        done.add(key, finite(result))
        print(f"{cell.name}: {result['total_cpu_s']:.0f} s CPU")
    write_report(arguments.out)
    return 0


def measure(cell: Cell, config: StudyConfig) -> dict:
    """Train a cell and compare its runs with each other and with the factors."""
    started = time.process_time()
    model, error = train(cell, config)
    runs = encode(model, cell.rows)
    train_s = time.process_time() - started
    ica = IcaAligner(restarts=config.restarts, max_iter=config.max_iter)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = NearIdentifiability(ica=ica).fit(runs, cell.factors)
    points = [torch.from_numpy(run[:: max(1, len(run) // 200)]) for run in runs]
    ratios = [bi_lipschitz(decoder(model, seed), z).ratio_median for seed, z in enumerate(points)]
    return {
        "cell": cell.name,
        "facts": cell.facts,
        "relative_error": error.tolist(),
        "decoder_ratio_median": ratios,
        "statistical": [asdict(pair) for pair in report.statistical_],
        "structural": [asdict(agreement) for agreement in report.structural_],
        "ica": [
            {
                "num_components": aligner.num_components_,
                "stability": aligner.stability_.tolist(),
                "kurtosis": aligner.kurtosis_.tolist(),
                "converged": aligner.converged_.tolist(),
            }
            for aligner in report.aligners_
        ],
        "warnings": sorted({str(warning.message) for warning in caught}),
        "train_cpu_s": train_s,
        "total_cpu_s": time.process_time() - started,
        "config": asdict(config),
    }
