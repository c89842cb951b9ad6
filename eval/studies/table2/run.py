"""Table 2: the whole protocol in one command that may be interrupted and restarted:

python eval/study.py table2 CONFIG.yaml [key=value ...] [--dry-run]         --help lists the keys

Pretrains one model per regime on the source robots (or uses given ones; not with start=backbone), fine-tunes
every row and seed on the small data of the target robot, rolls all of them out on held-out episodes of its
task and of a task that it was never trained on with this robot, and writes OUTPUT/table2.{json,md,html,png}
after every evaluation. Finished cells are skipped; a failed one names its log and the others continue. Exit
code 0 all done, 1 some failed, 2 wrong config or data, 143 stopped by a signal.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from robotwin_adapters.open_dataset import open_dataset
from studies.cells import Cell, check_files, check_settings, work_through
from studies.child_process import interrupt_on_signals
from studies.command_line import study_parser
from studies.table2.cells import TASKS, Table2Config, plan
from studies.table2.page import write_table
from studies.table2.results import collect, paired_spread, smallest_difference
from worldmodel.cli_errors import STOPPED, one_way_out
from worldmodel.config import load_config
from worldmodel.data.index import check_episode
from worldmodel.data.splits import SplitConfig, split_of
from worldmodel.estimate.cost import GIB, check_memory, estimate, parse_gpus
from worldmodel.estimate.run_shape import run_shape
from worldmodel.evaluation.rollouts.run import RolloutsConfig
from worldmodel.training.datasets import DataConfig
from worldmodel.training.world_model import TrainConfig
from worldmodel.types import Episode

ACTION_DIM = 16  # for the estimates: two arms of seven joints and their grippers; it hardly matters


def check_data(config: Table2Config, cells: Sequence[Cell]) -> list[str]:
    """A description of each dataset; data that do not fit the protocol are refused."""
    tuned = next(cell for cell in cells if cell.name.startswith("trained/"))
    training = load_config(TrainConfig, tuned.arguments[0], tuned.arguments[1:])
    data, is_validated = training.data, not training.is_validated
    roles = {"source": config.source if config.start == "source" else (), "target": config.target}
    roles |= {"target_test": (config.target_test,), "transfer_test": (config.transfer_test,)}
    lines: list[str] = []
    counts: dict[str, int] = {}
    robots: dict[str, set[str]] = {role: set() for role in roles}
    tasks: dict[str, set[str]] = {role: set() for role in roles}
    for role, path in ((role, path) for role, paths in roles.items() for path in paths):
        found = _episodes(path, data)
        seen, done = {one.embodiment for one in found}, {one.task for one in found}
        robots[role] |= seen
        tasks[role] |= done
        lines.append(f"{role:<14} {path}: {len(found)} episodes, {_listed(seen)}, {_listed(done)}")
        counts[role] = _count_rolled_out(config, role, found, data.splits)
        if role == "target":
            is_validated |= any(split_of(one.uid, data.splits) == "val" for one in found)
    _check_protocol(robots, tasks)
    if not is_validated:
        raise ValueError(f"no episode of target falls in the validation split of {data.splits}")
    if config.target_test in config.target:
        _check_division(config, data.splits)
    return [*lines, *_notes(config, robots, tasks), *_power(config, counts)]


def _count_rolled_out(
    config: Table2Config, role: str, episodes: Sequence[Episode], splits: SplitConfig
) -> int:
    """Episodes of a dataset that the rollouts of its role evaluate."""
    more = config.transfer_settings if role == "transfer_test" else ()
    held_out = load_config(RolloutsConfig, None, (*config.rollout_settings, *more)).held_out
    if held_out.split == "all":
        count = len(episodes)
    else:
        count = sum(split_of(one.uid, held_out.splits or splits) == held_out.split for one in episodes)
    return min(count, held_out.episodes) if held_out.episodes else count


def _notes(
    config: Table2Config, robots: Mapping[str, set[str]], tasks: Mapping[str, set[str]]
) -> Iterator[str]:
    """What the data make of the protocol."""
    if seen := tasks["source"] & tasks["transfer_test"] - {""}:
        yield f"note           source shows {_listed(seen)}: transfer is to this robot, not to a new task"
    if "lacg" in config.regimes and len(robots["target"]) == 1:
        after = "fine-tuning" if config.start == "source" else "any training"
        yield (
            f"note           target is one robot, {_listed(robots['target'])}: the embodiment classifier of "
            f"lacg learns nothing in {after}; datasets of other robots in target would change that"
        )


def _power(config: Table2Config, counts: Mapping[str, int]) -> Iterator[str]:
    """The smallest difference in PSNR that each pair of rows can show."""
    for name in config.rows:
        other = name.removesuffix("_mcl") if name.endswith("_mcl") else "no_action"
        if name == other or other not in config.rows:
            continue
        for task in TASKS:
            count = counts[f"{task}_test"]
            spread = config.spread or paired_spread(config, task, name, other)
            found = smallest_difference(spread, count)
            text = "unknown: set spread" if math.isnan(found) else f"{found:.2f} dB (spread {spread:.2f} dB)"
            yield f"power          {task}, {name} against {other}, {count} episodes: {text}"


def _episodes(path: str, data: DataConfig) -> list[Episode]:
    """The readable episodes; all are opened, as training will, but none decoded."""
    camera = data.clip.camera if isinstance(data.clip.camera, str) else None
    source = open_dataset(
        path,
        camera=camera,
        mapping=data.mapping or None,
        action_space=data.action_space,
        verify=False,
    )
    found: list[Episode] = []
    for number in range(len(source)):
        try:
            episode = source[number]
            check_episode(episode, data.clip)
        except (ValueError, OSError) as error:
            # If not even the first one can be read, the choice of camera or actions is wrong.
            if data.on_bad == "stop" or not found:
                raise ValueError(str(error)) from error
            continue
        found.append(episode)
    return found


def _check_protocol(robots: Mapping[str, set[str]], tasks: Mapping[str, set[str]]) -> None:
    for role in ("target_test", "transfer_test"):
        if not robots[role] <= robots["target"]:
            raise ValueError(
                f"{role} shows {_listed(robots[role])}, but target trains {_listed(robots['target'])}"
            )
    if known := robots["source"] & robots["target"]:
        raise ValueError(f"source shows {_listed(known)}, the robot of target: nothing new to learn")
    if trained := (tasks["transfer_test"] & tasks["target"]) - {""}:
        raise ValueError(f"transfer_test shows {_listed(trained)}, which target trains: no transfer")


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _check_division(config: Table2Config, splits: SplitConfig) -> None:
    """Refuse a dataset that is both trained and evaluated on with different splits."""
    held_out = load_config(RolloutsConfig, None, config.rollout_settings).held_out
    if held_out.split != "test" or (held_out.splits or splits) != splits:
        raise ValueError(
            f"{config.target_test} is trained on with {splits}: evaluate held_out.split=test with the same "
            f"held_out.splits, got {held_out.split} with {held_out.splits}"
        )


def check_memory_of(
    settings: Sequence[tuple[Cell, TrainConfig | RolloutsConfig]], gpus: str, num_seeds: int = 1
) -> Iterator[str]:
    """Memory and time of each training, one line each, and their sum; one that does not fit is refused."""
    num_gpus, device = parse_gpus(gpus)
    hours = 0.0
    for cell, config in settings:
        if not isinstance(config, TrainConfig):
            continue
        # Fine-tuning costs as much as training the same model from scratch.
        shape = run_shape(replace(config, start_from=""), num_gpus, device, ACTION_DIM)
        found = estimate(shape, num_gpus, device, with_other=False)
        try:
            check_memory(found, device)
        except ValueError as error:
            raise ValueError(f"{cell.name}: {error}") from error
        needed = found.total_bytes / GIB + device.reserve
        times = num_seeds if cell.name.startswith("trained/") else 1
        hours += times * found.total_hours
        yield (
            f"memory         {cell.name}: {needed:.1f} of {device.memory:g} GiB, "
            f"{found.step_seconds[1]:.2f} s a step on {gpus}, {times} x {found.total_hours:.1f} h"
        )
    gpu_hours = hours * num_gpus
    yield f"cost           all trainings: {hours:.1f} h, {gpu_hours:.0f} GPU hours; rollouts not counted"


def show_plan(cells: Sequence[Cell]) -> None:
    """Print the commands that would run."""
    for cell in cells:
        command = shlex.join([*cell.launch, "-m", "worldmodel", cell.command, *cell.arguments])
        print(f"done   {cell.name}" if cell.is_done else f"to do  {cell.name}\n       {command}")


def run(config: Table2Config, cells: Sequence[Cell]) -> int:
    """Run all cells; the table is rewritten after every evaluation."""
    output = Path(config.output)
    code = work_through(cells, output / "logs", lambda: write_table(collect(config), output))
    print(f"table: {output / 'table2.html'}" if (output / "table2.html").exists() else "no table yet")
    return code


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = study_parser(Table2Config, __doc__)
    parser.add_argument("--dry-run", action="store_true", help="check config and data, list the cells, stop")
    arguments = parser.parse_intermixed_args(argv)
    try:
        config = load_config(Table2Config, arguments.config, arguments.overrides)
        cells = plan(config)
        settings = check_settings(cells)
        check_files(settings)
        print("\n".join(check_data(config, cells)), flush=True)
        if config.gpus:
            for line in check_memory_of(settings, config.gpus, len(config.seeds)):
                print(line, flush=True)
        if arguments.dry_run:
            show_plan(cells)
            return 0
        interrupt_on_signals()
        return run(config, cells)
    except KeyboardInterrupt:
        return STOPPED
