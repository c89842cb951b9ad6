"""The `worldmodel` command: a table of sub-commands, each a module with `main(argv) -> exit code`."""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from worldmodel.cli_errors import one_way_out
from worldmodel.shipped import check_names


@dataclass(frozen=True)
class Command:
    """One sub-command."""

    name: str
    module: str  # has main(argv)
    group: str  # heading in the list of commands
    help: str  # one line
    example: str  # what follows `worldmodel NAME`
    names: tuple[str, ...] = ()  # kinds of its positional arguments: model, data or config


COMMANDS = (
    Command(
        "doctor",
        "worldmodel.cli.doctor",
        "Installation",
        "check this installation, and say what to do",
        "--output outputs",
    ),
    Command(
        "quickstart",
        "worldmodel.cli.quickstart",
        "Start",
        "from a folder of robot data to a report, in one command",
        "data/heron --minutes 10",
        ("data",),
    ),
    Command(
        "collect",
        "worldmodel.cli.collect",
        "Data",
        "simulate robot episodes on the embedded tabletop",
        "--task place_a2b_left --embodiment heron --episodes 20 --out data/heron",
    ),
    Command(
        "inspect",
        "worldmodel.cli.inspect",
        "Data",
        "print what is in a dataset, write a contact sheet and a video",
        "data/heron",
        ("data",),
    ),
    Command(
        "convert",
        "worldmodel.cli.convert",
        "Data",
        "write any dataset as LeRobot v3.0 or RoboTwin 2.0",
        "data/heron data/heron_lerobot --to lerobot",
        ("data",),
    ),
    Command(
        "encode-latents",
        "worldmodel.training.encode_latents",
        "Data",
        "fill the latent cache of a training config",
        "my.yaml --processes 8",
        ("config",),
    ),
    Command(
        "encode-prompt",
        "worldmodel.training.encode_prompt",
        "Data",
        "encode the empty prompt once, for training without the text encoder",
        "Wan-AI/Wan2.1-T2V-1.3B-Diffusers outputs/wan/empty_prompt.safetensors",
    ),
    Command(
        "presets",
        "worldmodel.cli.presets",
        "Training",
        "list the shipped configs, or print one",
        "debug/world_model > my.yaml",
    ),
    Command(
        "estimate",
        "worldmodel.cli.estimate",
        "Training",
        "memory and time of a training config, before anything is loaded",
        "wan/lora --gpus 4xH100",
        ("config",),
    ),
    Command(
        "train-autoencoder",
        "worldmodel.training.autoencoder",
        "Training",
        "train the small video autoencoder",
        "debug/autoencoder",
        ("config",),
    ),
    Command(
        "train",
        "worldmodel.training.world_model",
        "Training",
        "train or fine-tune a world model",
        "debug/world_model fit.steps=2 output=outputs/first",
        ("config",),
    ),
    Command(
        "train-concepts",
        "worldmodel.mddiff.training.concepts",
        "Training",
        "train EncDiff or MDDiff, one stage at a time",
        "disentanglement/debug/vqvae",
        ("config",),
    ),
    Command(
        "train-vae",
        "worldmodel.mddiff.training.vae_baseline",
        "Training",
        "train an image VAE: beta-VAE, FactorVAE, beta-TCVAE",
        "disentanglement/debug/beta_vae",
        ("config",),
    ),
    Command(
        "train-context",
        "worldmodel.context_module.training.train",
        "Training",
        "train an autoencoder whose concepts can be intervened on",
        "context/debug",
        ("config",),
    ),
    Command(
        "train-locator",
        "worldmodel.locator.train",
        "Training",
        "train the network that finds grippers and objects in frames",
        "data/heron output=outputs/locator fit.steps=500",
        ("data",),
    ),
    Command(
        "train-identifiability",
        "worldmodel.md_vae.train",
        "Training",
        "train MD-VAE and its baselines on simulated data, many seeds at once",
        "identifiability/ivae data.latent_dim=5 out=outputs/ivae",
        ("config",),
    ),
    Command(
        "import",
        "worldmodel.cli.import_model",
        "Training",
        "make a model folder out of a published robot world model",
        "open-world tennyyyin/open-world-ar-wm --file 2view --out outputs/open_world",
        ("", "data"),
    ),
    Command(
        "smoke-test",
        "worldmodel.training.smoke_test",
        "Training",
        "the whole way in small, on a CPU: every regime, MCL, full, LoRA",
        "--output outputs/debug --only acg",
    ),
    Command(
        "export",
        "worldmodel.training.export",
        "Training",
        "make a small folder to publish out of a finished run",
        "outputs/first exports/first",
        ("data",),
    ),
    Command(
        "rollout",
        "worldmodel.evaluation.rollouts.run",
        "Evaluation",
        "roll a world model out on held-out episodes and write a report",
        "desk data/heron output=outputs/report held_out.split=all",
        ("model", "data"),
    ),
    Command(
        "sensitivity",
        "worldmodel.evaluation.sensitivity.run",
        "Evaluation",
        "does the video do what the actions say?",
        "desk data/heron held_out.split=all output=outputs/sensitivity",
        ("model", "data"),
    ),
    Command(
        "score",
        "worldmodel.evaluation.score",
        "Evaluation",
        "score anybody's predicted videos against true ones",
        "outputs/submission/worldmodel_test outputs/submission/gt output=outputs/score",
        ("data", "data"),
    ),
    Command(
        "diagnose",
        "worldmodel.cli.diagnose",
        "Evaluation",
        "one page about a generator or a world model's action channel",
        "desk --dataset data/heron",
        ("model",),
    ),
    Command(
        "score-concepts",
        "worldmodel.mddiff.evaluation.scores",
        "Evaluation",
        "disentanglement scores of a concept model",
        "outputs/mddiff/model data.path=rooms out=scores.json",
        ("data",),
    ),
    Command(
        "compare-models",
        "worldmodel.evaluation.compare_models",
        "Evaluation",
        "truth and several models over time, with the path of the gripper, as one picture",
        "data/heron desk=worldmodel/weights/desk",
        ("data",),
    ),
    Command(
        "play",
        "worldmodel.cli.play",
        "Use",
        "take the controls, in a page of your browser",
        "desk",
        ("model",),
    ),
    Command(
        "submit",
        "worldmodel.evaluation.submit",
        "Use",
        "write generated videos in the layout of WorldArena or EWMBench",
        "desk data/heron output=outputs/submission held_out.split=all",
        ("model", "data"),
    ),
    Command(
        "serve",
        "worldmodel.cli.serve",
        "Use",
        "answer predictions and streaming sessions over HTTP",
        "desk --port 8100",
        ("model",),
    ),
)


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script.

    Exit codes are those of `worldmodel/cli_errors.py`: 0 done, 1 machine failure, 2 wrong input (one line on
    stderr), 130 interrupted, 141 output pipe closed, 143 stopped by a signal after saving.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from worldmodel import __version__

        print(f"worldmodel {__version__}")
        return 0
    name, *rest = arguments
    found = {command.name: command for command in COMMANDS}
    if name not in found:
        print(f"worldmodel: no command {name!r}; `worldmodel --help` lists them", file=sys.stderr)
        return 2
    return _run(found[name], rest)


def overview() -> str:
    """The list of all commands, by group."""
    lines = ["usage: worldmodel COMMAND ...", "", "Robotics world models: data, training, evaluation.", ""]
    for group in dict.fromkeys(command.group for command in COMMANDS):
        lines += [f"{group}:"]
        lines += [f"  {command.name:<22}{command.help}" for command in COMMANDS if command.group == group]
        lines += [""]
    return "\n".join([*lines, "`worldmodel COMMAND --help` explains a command and ends with an example."])


def _run(command: Command, rest: list[str]) -> int:
    prog = f"worldmodel {command.name}"
    is_help = bool({"-h", "--help"} & set(rest))
    before, sys.argv[0] = sys.argv[0], prog  # argparse and errors name the program after it
    try:
        return _checked(command, rest, () if is_help else command.names)
    finally:
        sys.argv[0] = before
        if is_help:
            print(f"\nexample:\n  {prog} {command.example}")


@one_way_out
def _checked(command: Command, rest: list[str], names: Sequence[str]) -> int:
    check_names(names, rest)
    # Read when torch is loaded: threads that wait by spinning take the core from what they wait for.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return int(importlib.import_module(command.module).main(rest) or 0)
