"""SIGKILL at random moments of long commands: started again, they must end with what nobody disturbed.

PYTHONPATH=eval python -m tests.faults.kills NAME ... --kills 10 --seed 0 --out kills.jsonl

Commands run in forked processes, since libraries take seconds to import. A chain of one command is killed and
started again until it has been killed often enough, and then runs to its end. What it leaves is compared byte
for byte with an undisturbed run. Files that tell times are left out. No half-written file may be left either.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from robotwin_adapters.tabletop.collect import collect_all
from robotwin_adapters.tabletop.record import RecordingConfig
from tests.faults import studies
from tests.support.robotwin_sets import write_robotwin_set
from tests.support.tiny_wan import tiny_wan
from worldmodel.cli.convert import main as convert
from worldmodel.cli_errors import INTERRUPTED, STOPPED, exit_code
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import build_clip_dataset
from worldmodel.data.synthetic import synthetic_source
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.evaluation.rollouts.run import RolloutsConfig
from worldmodel.evaluation.rollouts.run import run as roll_out
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.shipped import PRESETS
from worldmodel.training.encode_latents import main as encode_latents
from worldmodel.training.world_model import main as train

PLACES = ("out", "model", "commit")  # of a run: no results
MODEL_FILES = ("interface.safetensors", "diffusion_pytorch_model.safetensors")
CONFIG = str(PRESETS / "debug/world_model.yaml")
SOURCE = synthetic_source(num_episodes=4, num_frames=14, size=(32, 32), embodiments=("a",), action_dim=6)


@dataclass(frozen=True)
class Command:
    """One long command."""

    run: Callable[[Path, Path], object]  # inputs, outputs; started again it goes on
    compared: tuple[str, ...] = (".safetensors", ".json", ".hdf5", ".parquet", ".mp4", ".yaml")


def prepare(inputs: Path) -> None:
    """What the commands need: an autoencoder, episodes and a small model."""
    torch.manual_seed(0)
    vae = CausalAutoencoder(height=32, width=32, hidden=16, num_blocks=1, scale_factor_spatial=8)
    vae.save_pretrained(inputs / "vae")
    write_robotwin_set(inputs / "episodes", joints=6, episodes=6, frames=8)
    studies.prepare_sets(inputs)
    clips = build_clip_dataset([SOURCE], config=ClipConfig(num_frames=9, height=32, width=32))
    config = WorldModelConfig(regime="acg", backbone=tiny_wan())
    contract = InputSpec(9, 32, 32, clips.index.config.fps or SOURCE[0].fps)
    WorldModel.build(config, contract, clips.normalizer, vae=vae).save_pretrained(inputs / "model")


def training(*overrides: str) -> Command:
    """The debug training with these settings, a checkpoint after every step."""

    def run(inputs: Path, out: Path) -> object:
        places = [f"output={out / 'run'}", f"data.latents={out / 'latents'}", f"model.vae={inputs / 'vae'}"]
        pace = ["fit.steps=5", "fit.checkpoint_every=1", "validation.num_clips=0", "fit.trackers=[]"]
        return train([CONFIG, *places, *pace, "first_batch=0", *overrides, "--resume"])

    return Command(run, (".safetensors",))


def collect(inputs: Path, out: Path) -> object:
    robot = RecordingConfig("babble", "finch", width=16, height=16)
    return collect_all(out / "set", [robot], episodes=3, seed=0, workers=1)


def to_lerobot(inputs: Path, out: Path) -> object:
    target = out / "lerobot"
    return 0 if target.exists() else convert([str(inputs / "episodes"), str(target), "--to", "lerobot"])


def encode(inputs: Path, out: Path) -> object:
    places = [f"data.latents={out / 'latents'}", f"model.vae={inputs / 'vae'}", "data.clip.step=1"]
    return encode_latents([CONFIG, *places, "data.synthetic_episodes=12"])


def rollouts(inputs: Path, out: Path) -> object:
    settings = RolloutsConfig(output=str(out / "report"), num_inference_steps=1, videos=1, controls=("zero",))
    return roll_out(
        str(inputs / "model"), SOURCE, replace(settings, held_out=replace(settings.held_out, split="all"))
    )


COMMANDS = {
    "train": training("model.regime=acg"),
    "train_lora": training("model.lora.rank=2"),
    "train_mcl": training("model.mcl.mode=finite_difference"),
    "collect": Command(collect, (".hdf5", ".json")),
    "convert": Command(to_lerobot, (".parquet", ".mp4", ".json", ".jsonl")),
    "encode_latents": Command(encode, (".safetensors",)),
    "rollouts": Command(rollouts, ("results.json",)),
    "table2": Command(studies.run_table2, (*MODEL_FILES, "results.json", "table2.json")),
    "disentanglement_study": Command(
        studies.run_disentanglement, ("model.safetensors", "_last.json", "_best.json", "cells.jsonl")
    ),
    "identifiability": Command(studies.run_identifiability, ("result.json", "cells.jsonl")),
}


def start(command: Command, inputs: Path, out: Path) -> int:
    """The id of a process that runs it; its output goes to a file beside."""
    process = os.fork()
    if process:
        return process
    run_here(lambda: command.run(inputs, out), out)
    return 0


def run_here(run: Callable[[], object], out: Path) -> None:
    """The whole life of a forked process."""
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job does not hear it
        log = os.open(out.with_suffix(".said"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        result = run()
        code = result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        code = exit_code(error) or 70
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def finish(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def results(out: Path, endings: tuple[str, ...]) -> dict[str, str]:
    """What was made, by name; latents of a cache and weights of a run alike."""
    return {
        str(path.relative_to(out)): hashlib.sha256(untimed(path)).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name.endswith(endings)
    }


def untimed(path: Path) -> bytes:
    """The content without what may differ between two good runs."""
    content = path.read_bytes()
    if path.suffix not in (".json", ".jsonl"):
        return content
    lines = content.splitlines() if path.suffix == ".jsonl" else [content]
    return "\n".join(json.dumps(_without_times(json.loads(line))) for line in lines).encode()


def _without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_times(entry) for key, entry in value.items() if not _is_time(key)}
    return [_without_times(entry) for entry in value] if isinstance(value, list) else value


def _is_time(key: str) -> bool:
    return key in PLACES or key.endswith(("_s", "seconds"))


def leftovers(out: Path) -> list[str]:
    return [str(path.relative_to(out)) for path in out.rglob("*") if "writing" in path.name]


def kill_chain(
    name: str, folder: Path, num_kills: int, seed: int, number: signal.Signals = signal.SIGKILL
) -> dict[str, object]:
    """Kill one command again and again; how often, and what differs in the end (nothing, one hopes)."""
    command, inputs = COMMANDS[name], folder / "inputs"
    reference, out = folder / f"{name}_whole", folder / f"{name}_killed"
    begun = time.monotonic()
    code = finish(start(command, inputs, reference))
    duration = time.monotonic() - begun
    assert code == 0, (folder / f"{name}_whole.said").read_text()[-2000:]
    generator, kills, starts = random.Random(seed), 0, 0
    while kills < num_kills and starts < 4 * num_kills:
        process = start(command, inputs, out)
        starts += 1
        time.sleep(generator.uniform(0.02, 1.0) * duration)
        with suppress(ProcessLookupError):
            os.kill(process, number)
        # Asked to end, a command may also do so with a code of its own.
        if finish(process) in (-number, INTERRUPTED, STOPPED):
            kills += 1
        else:  # it was done before it could be killed
            shutil.rmtree(out, ignore_errors=True)
    last = finish(start(command, inputs, out))
    expected, found = (results(place, command.compared) for place in (reference, out))
    differing = sorted(place for place in expected if expected[place] != found.get(place))
    return {
        "command": name,
        "signal": number.name,
        "kills": kills,
        "starts": starts + 1,
        "exit_code": last,
        "compared_files": len(expected),
        "differing": differing[:5],
        "leftovers": leftovers(out),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=[*COMMANDS, "all"])
    parser.add_argument("--kills", type=int, default=10, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signal", choices=("SIGKILL", "SIGTERM", "SIGINT"), default="SIGKILL")
    parser.add_argument("--out", type=Path, help="JSON lines to add the results to")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in list(COMMANDS) if "all" in arguments.names else arguments.names:
        with tempfile.TemporaryDirectory(prefix="kills_") as folder:
            preparing = os.fork()
            if not preparing:
                prepare(Path(folder) / "inputs")
                os._exit(0)
            assert finish(preparing) == 0
            number = signal.Signals[arguments.signal]
            result = kill_chain(name, Path(folder), arguments.kills, arguments.seed, number)
        print(json.dumps(result), flush=True)
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
