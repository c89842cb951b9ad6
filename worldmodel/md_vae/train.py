"""Train one cell of the identifiability study, or a list of cells in turn; both resume where they stopped.

worldmodel train-identifiability configs/identifiability/ivae.yaml data.latent_dim=10 out=outputs/d10
worldmodel train-identifiability --study configs/identifiability/study.yaml
torchrun --nproc_per_node 8 -m worldmodel train-identifiability --study STUDY.yaml
"""

import json
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from worldmodel.cli_errors import one_way_out
from worldmodel.config import config_parser, config_to_yaml, load_config
from worldmodel.device import Device, find_device
from worldmodel.files import write_text
from worldmodel.mcl.config import MclConfig
from worldmodel.md_vae.grid import read_grids
from worldmodel.md_vae.model import VaeConfig
from worldmodel.md_vae.simulation import IdentifiabilityDataConfig
from worldmodel.md_vae.stacked import OptimizationConfig, SeedStack, split_seeds
from worldmodel.training.loop.checkpoints import Checkpoint, CheckpointStore


@dataclass(frozen=True)
class CellConfig:
    """One model on one data process, over many seeds."""

    name: str = "md_vae_concat"  # of the model, in tables
    data: IdentifiabilityDataConfig = field(default_factory=IdentifiabilityDataConfig)
    model: VaeConfig = field(default_factory=VaeConfig)
    mcl: MclConfig = field(default_factory=MclConfig)
    optimization: OptimizationConfig = field(default_factory=OptimizationConfig)
    first_seed: int = 0  # seeds first_seed, first_seed + 1, ...
    num_seeds: int = 30  # how many
    report_epochs: tuple[int, ...] = (50, 100, 150, 200)  # all seeds are scored after these and the last
    save_every: int = 10  # epochs between checkpoints
    num_threads: int = 2  # the seeds are split among this many threads
    device: Device = "auto"  # auto (a GPU if there is one), cpu, cuda or mps
    out: str = "outputs/identifiability/cell"  # folder of result and checkpoints

    @property
    def cell(self) -> str:
        """Name of the cell: data, then model."""
        return f"{self.data.mixing}_d{self.data.latent_dim}_u{self.data.num_conditions}_{self.name}"

    @property
    def num_parts(self) -> int:
        """Threads on a CPU; one with forward-mode derivatives, whose levels a process has only once."""
        uses_jvp = (self.optimization.mcl_weight and self.mcl.mode == "jvp") or (
            self.optimization.penalty == "jacobian_l1"
        )
        return 1 if uses_jvp else self.num_threads


def train_cell(config: CellConfig, *, quiet: bool = False) -> dict[str, Any]:
    """Train all seeds of a cell, or resume from its last checkpoint; writes result.json."""
    out = Path(config.out)
    identity = _identity(config)
    if (out / "result.json").exists():
        return _finished(out / "result.json", identity)
    store = CheckpointStore(out / "checkpoints", num_kept=1)
    store.prepare()
    write_text(out / "config.yaml", config_to_yaml(config))
    seeds = range(config.first_seed, config.first_seed + config.num_seeds)
    device = find_device(config.device)
    parts = split_seeds(seeds, config.num_parts if device.type == "cpu" else 1)
    torch.set_num_threads(1)  # one thread per part: parts share nothing and never wait for each other
    with ThreadPoolExecutor(len(parts)) as pool:
        settings = (config.data, config.model, config.mcl, config.optimization)
        stacks = list(pool.map(lambda part: SeedStack(*settings, part, device), parts))
        if config.optimization.mcl_weight:
            print(stacks[0].mcl_statement(), flush=True)
        progress = _restore(store, stacks, identity)
        last = config.optimization.epochs
        bar = tqdm(
            range(progress["epoch"] + 1, last + 1),
            config.cell,
            last,
            initial=progress["epoch"],
            disable=quiet,
        )
        for epoch in bar:
            start = time.process_time()
            losses = list(pool.map(lambda stack, epoch=epoch: stack.train_epoch(epoch), stacks))
            progress["cpu_seconds"] += time.process_time() - start
            progress["epoch"] = epoch
            progress["losses"].append({name: _mean(losses, name) for name in losses[0]})
            bar.set_postfix({name: f"{value:.3g}" for name, value in progress["losses"][-1].items()})
            if epoch in config.report_epochs or epoch == last:
                progress["scores"][str(epoch)] = _joined(list(pool.map(SeedStack.evaluate, stacks)))
            if epoch % config.save_every == 0 or epoch == last:
                _save(store, stacks, progress | {"identity": _plain(identity)})
    result = {"cell": config.cell, "seeds": list(seeds), "identity": _plain(identity)} | progress
    write_text(out / "result.json", json.dumps(rounded(result), indent=None) + "\n")
    return result


def _identity(config: CellConfig) -> dict[str, Any]:
    """All settings that change the numbers."""
    return asdict(config) | {"out": "", "num_threads": 0, "save_every": 0, "device": ""}


def _finished(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    _check_identity(str(path), result["identity"], identity)
    return result


def _restore(store: CheckpointStore, stacks: list[SeedStack], identity: dict[str, Any]) -> dict[str, Any]:
    checkpoint = store.last_good()
    if checkpoint is None:
        return {"epoch": 0, "cpu_seconds": 0.0, "losses": [], "scores": {}}
    _check_identity(str(checkpoint.path), checkpoint.state["identity"], identity)
    restore_stacks(checkpoint, stacks)
    return {name: checkpoint.state[name] for name in ("epoch", "cpu_seconds", "losses", "scores")}


def _check_identity(where: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    found, wanted = _counted(found), _counted(_plain(expected))
    if found != wanted:
        changed = sorted(key for key in wanted if found.get(key) != wanted[key])
        raise ValueError(
            f"{where} belongs to another config: {', '.join(changed)} changed; choose another out folder"
        )


def _counted(identity: dict[str, Any]) -> dict[str, Any]:
    """Settings with defaults for those newer than the cell; without a weight MCL's are left out."""
    defaults = _plain(_identity(CellConfig()))
    parts = {
        key: {**value, **identity.get(key, {})} for key, value in defaults.items() if isinstance(value, dict)
    }
    if not parts["optimization"]["mcl_weight"]:
        parts["mcl"] = {}
    return {**defaults, **identity, **parts}


def restore_stacks(checkpoint: Checkpoint, stacks: Sequence[SeedStack]) -> None:
    """Restore each stack of models from a checkpoint, even if it grouped the seeds differently."""
    weights, slots = checkpoint.tensors("weights"), checkpoint.tensors("optimizer")
    start = 0
    for stack in stacks:
        part = slice(start, start + len(stack.seeds))
        stack.restore(_cut(weights, part), _cut(slots, part))
        start = part.stop


def _save(store: CheckpointStore, stacks: list[SeedStack], progress: dict[str, Any]) -> None:
    parts = [stack.tensors() for stack in stacks]
    files = {kind: _stacked([part[kind] for part in parts]) for kind in parts[0]}
    store.save(progress["epoch"], files, progress)


def _stacked(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    # All tensors have the seeds first, except the step counts of the optimizer, which all seeds share.
    return {
        name: torch.cat([part[name] for part in parts]) if first.ndim else first
        for name, first in parts[0].items()
    }


def _cut(tensors: dict[str, Tensor], part: slice) -> dict[str, Tensor]:
    return {name: tensor[part].clone() if tensor.ndim else tensor.clone() for name, tensor in tensors.items()}


def _joined(scores: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    return {name: [value for part in scores for value in part[name]] for name in scores[0]}


def _mean(losses: list[dict[str, list[float]]], name: str) -> float:
    values = [value for part in losses for value in part[name]]
    return sum(values) / len(values)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def rounded(value: Any, digits: int = 6) -> Any:
    """Round all numbers in it to this many significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(entry, digits) for key, entry in value.items()}
    return [rounded(entry, digits) for entry in value] if isinstance(value, list) else value


def study_cells(study: Path, out: Path, overrides: Sequence[str] = ()) -> list[CellConfig]:
    """The configs of a study's cells, each with its own folder below `out`."""
    cells = []
    for request in read_grids(study):
        named = load_config(CellConfig, request.preset, request.overrides)
        settings = [*request.overrides, f"out={out / named.cell}", *overrides]
        cells.append(load_config(CellConfig, request.preset, settings))
    names = [cell.cell for cell in cells]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{study}: two cells are called {twice[0]}; give their grids a name")
    return cells


def run_study(study: Path, out: Path, overrides: Sequence[str], only: str = "*") -> None:
    """Train the cells whose names match `only`, in turn; finished ones are skipped.

    Processes of a launcher share them out: each takes every n-th.
    """
    cells = [cell for cell in study_cells(study, out, overrides) if fnmatch(cell.cell, only)]
    if not cells:
        raise ValueError(f"{study}: no cell is called {only}")
    rank, count = _place()
    cells, who = cells[rank::count], f"process {rank + 1}: " if count > 1 else ""
    start = time.perf_counter()
    for number, config in enumerate(cells, 1):
        left = (time.perf_counter() - start) / max(number - 1, 1) * (len(cells) - number + 1) / 60
        note = f", about {left:.0f} min left" if number > 1 else ""
        print(f"[{who}{number}/{len(cells)}] {config.cell}{note}", flush=True)
        result = train_cell(config)
        scores = result["scores"][max(result["scores"], key=int)]
        print(f"  median MCC {statistics.median(scores['mcc']):.3f}", flush=True)


def _place() -> tuple[int, int]:
    """Rank of this process among those of a launcher, and their number."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    parser = config_parser(CellConfig, __doc__)
    parser.add_argument("config", nargs="?", help="YAML of one cell")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--study", type=Path, help="YAML of many cells: worldmodel/md_vae/grid.py")
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/identifiability"), help="folder of the study's cells"
    )
    parser.add_argument("--only", default="*", help="cells of the study with such names, as '*_d5_*'")
    parser.add_argument("--show", action="store_true", help="print the resolved config and stop")
    arguments = parser.parse_intermixed_args(argv)
    positional = [entry for entry in (arguments.config, *arguments.overrides) if entry is not None]
    if arguments.study:
        run_study(arguments.study, arguments.out, positional, arguments.only)
        return 0
    is_file = bool(positional) and "=" not in positional[0]
    config = load_config(CellConfig, positional[0] if is_file else None, positional[is_file:])
    if arguments.show:
        print(config_to_yaml(config))
        return 0
    if _place()[0]:
        print("one cell is trained by one process; --study shares the cells of a study out", flush=True)
        return 0
    train_cell(config)
    return 0
