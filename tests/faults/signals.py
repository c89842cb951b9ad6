"""Stop signals in the middle of long commands: they save, say how to go on, and end as documented.

PYTHONPATH=eval python -m tests.faults.signals --out signals.jsonl

Three signals, sent to the process, to its group or to its launcher, with 0, 1 and 8 loading processes. Each
of the 27 cases draws a command. It is stopped, given again, and must end with what nobody disturbed: byte for
byte, and without a process left.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from tests.faults import kills
from tests.worldmodel.quickstart.test_run import write_moving_boxes
from worldmodel.cli_errors import STOPPED, one_way_out
from worldmodel.quickstart import run as quickstart
from worldmodel.shipped import PRESETS
from worldmodel.signals import STOP_SIGNALS, end_on_signals
from worldmodel.training.autoencoder import main as train_autoencoder
from worldmodel.training.encode_latents import main as encode_latents
from worldmodel.training.world_model import main as train

ROOT = Path(__file__).parents[2]
TARGETS, WORKERS = ("process", "group", "launcher"), (0, 1, 8)
MARK = "WORLDMODEL_SIGNAL_TEST"  # in the environment of every process of a case
STEPS, EPISODES = 60, 40
SOURCES = {"train": "train", "autoencoder": "train-autoencoder"}


def train_arguments(inputs: Path, out: Path, workers: int) -> list[str]:
    pace = [f"fit.steps={STEPS}", "fit.checkpoint_every=1000", "fit.micro_batch=2", "validation.num_clips=0"]
    places = [f"output={out / 'run'}", f"data.latents={out / 'latents'}", f"model.vae={inputs / 'vae'}"]
    more = ["fit.trackers=[]", "first_batch=0", f"fit.num_workers={workers}", "--resume"]
    return [kills.CONFIG, *places, *pace, *more]


def autoencoder_arguments(inputs: Path, out: Path, workers: int) -> list[str]:
    pace = [f"fit.steps={STEPS}", "fit.checkpoint_every=1000", "fit.log_every=1", "fit.global_batch=4"]
    more = ["fit.micro_batch=2", "fit.trackers=[]", f"fit.num_workers={workers}", f"output={out / 'run'}"]
    return [str(PRESETS / "debug/autoencoder.yaml"), *pace, *more, "--resume"]


def run_train(inputs: Path, out: Path, workers: int) -> object:
    return train(train_arguments(inputs, out, workers))


def run_autoencoder(inputs: Path, out: Path, workers: int) -> object:
    return train_autoencoder(autoencoder_arguments(inputs, out, workers))


def run_encode(inputs: Path, out: Path, workers: int) -> object:
    places = [f"data.latents={out / 'latents'}", f"model.vae={inputs / 'vae'}", "data.clip.step=1"]
    processes = ["--processes", str(max(1, workers))]
    return encode_latents([kills.CONFIG, *places, f"data.synthetic_episodes={EPISODES}", *processes])


def run_rollout(inputs: Path, out: Path, workers: int) -> object:
    with end_on_signals("as the command itself says"):
        return kills.rollouts(inputs, out)


def run_quickstart(inputs: Path, out: Path, workers: int) -> object:
    extra = (
        f"fit.num_workers={workers}",
        "fit.global_batch=2",
        "fit.micro_batch=2",
        "data.clip.num_frames=5",
    )
    asked = quickstart.Quickstart(str(inputs / "boxes"), out / "q", 1e-4, "desk/own_robot", extra=extra[:3])
    return 0 if quickstart.run(asked) else 1


def lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


@dataclass(frozen=True)
class Command:
    """One long command."""

    run: Callable[[Path, Path, int], object]
    is_under_way: Callable[[Path], bool]  # somewhere in its middle
    compared: tuple[str, ...] = (".safetensors",)


COMMANDS = {
    "train": Command(run_train, lambda out: lines(out / "run/log.jsonl") >= 3),
    "autoencoder": Command(run_autoencoder, lambda out: lines(out / "run/log.jsonl") >= 3),
    "encode": Command(run_encode, lambda out: len(list(out.rglob("*.safetensors"))) >= 3),
    "rollout": Command(run_rollout, lambda out: lines(out / "report/clips.jsonl") >= 2, ("results.json",)),
    "quickstart": Command(
        run_quickstart,
        lambda out: lines(out / "q/run/log.jsonl") >= 2,
        (*kills.MODEL_FILES, "results.json"),  # a run that was stopped keeps other checkpoints
    ),
}
LAUNCHED = ("launch1", "launch2")  # accelerate launch with one process, and with two


@dataclass(frozen=True)
class Case:
    number: signal.Signals
    target: str
    workers: int
    command: str
    launcher: str  # alone, or of LAUNCHED


def cases(seed: int) -> Iterator[Case]:
    """All 27, each with a command and a launcher that the target allows."""
    generator = random.Random(seed)
    alone = itertools.cycle(generator.sample(list(COMMANDS), len(COMMANDS)))
    for number, target, workers in itertools.product(STOP_SIGNALS, TARGETS, WORKERS):
        launcher = generator.choice(LAUNCHED if target == "launcher" else ("alone", "alone", *LAUNCHED))
        name = next(alone) if launcher == "alone" else generator.choice(list(SOURCES))
        yield Case(number, target, workers, name, launcher)


def start(case: Case, inputs: Path, out: Path) -> int:
    """The id of the process that the user would see."""
    os.environ[MARK] = str(out)
    if case.launcher == "alone":
        process = os.fork()
        if not process:
            os.setsid()
            sys.modules["__main__"] = ModuleType("__main__")  # loading processes would import this file
            command = COMMANDS[case.command]
            guarded = one_way_out(lambda: command.run(inputs, out, case.workers))  # type: ignore[arg-type, return-value]
            kills.run_here(lambda: guarded(), out)
        return process
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--mixed_precision", "no"]
    command += ["--num_machines", "1", "--dynamo_backend", "no", "--main_process_port", str(port)]
    command += ["--num_processes", "1", "--cpu"] if case.launcher == "launch1" else []
    command += ["--num_processes", "2", "--multi_gpu"] if case.launcher == "launch2" else []
    arguments = {"train": train_arguments, "autoencoder": autoencoder_arguments}[case.command]
    command += ["-m", "worldmodel", SOURCES[case.command], *arguments(inputs, out, case.workers)]
    with out.with_suffix(".said").open("a") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, cwd=ROOT, start_new_session=True).pid


def processes_of(out: Path) -> list[int]:
    """All that is left of a case, wherever it is in the tree."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{MARK}={out}\0".encode() in (folder / "environ").read_bytes():
                is_zombie = ") Z " in (folder / "stat").read_text()
                found += [] if is_zombie or int(folder.name) == os.getpid() else [int(folder.name)]
        except OSError:
            continue
    return found


def children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def send(case: Case, process: int) -> None:
    own = process if case.launcher == "alone" else min(children(process))  # the first rank
    if case.target == "group":
        os.killpg(os.getpgid(own), case.number)
    else:
        os.kill(process if case.target == "launcher" else own, case.number)


def wait(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def check(case: Case, inputs: Path, out: Path, reference: Path) -> dict[str, object]:
    """Stop one command and give it again: what came of it."""
    command, said = COMMANDS[case.command], out.with_suffix(".said")
    process = start(case, inputs, out)
    assert wait(lambda: command.is_under_way(out), 900), said.read_text()[-3000:]
    send(case, process)
    begun = time.monotonic()
    code = kills.finish(process)
    is_over = wait(lambda: not processes_of(out), 300)
    seconds, text = time.monotonic() - begun, said.read_text()
    stopped = [line for line in text.splitlines() if "stopped by" in line and "goes on" in line]
    traces = text.count("Traceback") if case.launcher == "alone" else 0  # launchers print their own
    again = kills.finish(start(case, inputs, out))
    wait(lambda: not processes_of(out), 60)
    expected, found = (kills.results(place, command.compared) for place in (reference, out))
    return {
        "signal": case.number.name,
        "target": case.target,
        "workers": case.workers,
        "command": case.command,
        "launcher": case.launcher,
        "exit_code": code,
        "is_code_ours": case.launcher == "alone" or f"{STOPPED}" in text,
        "seconds": round(seconds, 1),
        "said": stopped[-1] if stopped else "",
        "tracebacks": traces,
        "left": not is_over,
        "again": again,
        "compared_files": len(expected),
        "differing": sorted(name for name in expected if expected[name] != found.get(name))[:5],
    }


def is_good(result: dict[str, object]) -> bool:
    is_ended = result["exit_code"] == STOPPED if result["launcher"] == "alone" else not result["left"]
    is_same = result["again"] == 0 and not result["differing"] and result["compared_files"] != 0
    return bool(is_ended and is_same and result["said"] and not result["tracebacks"] and not result["left"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--only", nargs="*", type=int, help="numbers of cases, counted from 0 (default: all)")
    parser.add_argument("--folder", type=Path, help="keeps inputs and undisturbed runs for the next call")
    parser.add_argument("--out", type=Path, help="JSON lines to add the results to")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # launchers of a background job hear it too
    with tempfile.TemporaryDirectory(prefix="signals_") as place:
        folder = arguments.folder or Path(place)
        if not (folder / "inputs/boxes").exists():
            preparing = os.fork()
            if not preparing:
                kills.prepare(folder / "inputs")
                write_moving_boxes(folder / "inputs/boxes")
                os._exit(0)
            assert kills.finish(preparing) == 0
        for position, case in enumerate(cases(arguments.seed)):
            if arguments.only and position not in arguments.only:
                continue
            twice = case.launcher == "launch2"
            reference = folder / f"{case.command}_{'two' if twice else 'one'}"
            if not reference.exists():
                whole = Case(case.number, "process", 0, case.command, "launch2" if twice else "alone")
                assert kills.finish(start(whole, folder / "inputs", reference)) == 0, reference.with_suffix(
                    ".said"
                ).read_text()[-3000:]
            out = folder / f"case{position}"
            result = check(case, folder / "inputs", out, reference)
            result = {"case": position, "is_good": is_good(result), **result}
            shutil.rmtree(out)
            if not result["is_good"]:
                sys.stderr.write(out.with_suffix(".said").read_text()[-4000:])
            print(json.dumps(result), flush=True)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
