"""Make a small folder to publish from a finished run:

worldmodel export RUN TARGET [--model best] [--config CONFIG.yaml] [--rename OLD=NEW ...]

RUN is the output folder of `worldmodel train`. TARGET gets its world model with weights in half precision
(converted to single when loaded), the config of the run, and the training history in README.md and
curves.png: this run and those that it started from. Absolute paths of this machine are removed.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from worldmodel.checkpoint.folder import CONFIG_FILE, CONTRACT_FILE, read_description
from worldmodel.checkpoint.model_card import model_card
from worldmodel.cli_errors import one_way_out
from worldmodel.config import save_config
from worldmodel.files import check_apart, replaced_folder, write_json, write_tensors
from worldmodel.training.run_history import draw_stages, read_stages, training_section, with_texts


def ship(
    run: Path,
    target: Path,
    name: str = "model",
    *,
    config: str | None = None,
    renamed: Mapping[str, str] | None = None,
) -> int:
    """Write the folder; returns its size in bytes.

    Args:
        run: output folder of a finished training.
        target: folder to write; an existing world model there is replaced.
        name: which model of the run, `model` (last step) or `best`.
        config: YAML that every stage was started with, for their commands in the README.
        renamed: folder names in absolute paths, and their public replacements.
    """
    source = run / name
    for needed in (source / CONTRACT_FILE, run / "config.yaml", run / "log.jsonl"):
        if not needed.is_file():
            raise ValueError(f"{run} is not a finished run: {needed} is missing")
    check_apart(target, source)
    published = published_paths(run, renamed or {})
    stages = read_stages(run, published)
    known = with_texts(read_description(source), published)
    with replaced_folder(target, CONTRACT_FILE) as new:
        shutil.copytree(source, new, dirs_exist_ok=True)
        for path in new.rglob("*.safetensors"):
            tensors = {key: _half(value) for key, value in load_file(path).items()}
            write_tensors(path, tensors)
        for path in new.rglob("*.json"):
            values = with_texts(json.loads(path.read_text()), published)
            write_json(path, values)
        save_config(known.config, new / CONFIG_FILE)
        save_config(stages[-1].config, new / "training.yaml")
        card = model_card(known.config, known.contract, known.normalizer)
        (new / "README.md").write_text(f"{card}\n{training_section(stages, config)}")
        draw_stages(stages, new / "curves.png")
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def _half(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


def published_paths(run: Path, renamed: Mapping[str, str]) -> Callable[[str], str]:
    """A function that makes absolute paths in a text public; other texts stay unchanged.

    Paths next to the run are shown below outputs/, any other path by its last name.
    """
    home = run.resolve().parent

    def published(text: str) -> str:
        path = Path(text)
        if not path.is_absolute():
            return text
        is_beside = path.is_relative_to(home) and path != home
        parts = ("outputs", home.name, *path.relative_to(home).parts) if is_beside else (path.name,)
        return "/".join(renamed.get(part, part) for part in parts)

    return published


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 2 for a folder that is not a finished run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("target", type=Path, metavar="TARGET")
    parser.add_argument("--model", default="model", help="model (last step, default) or best")
    parser.add_argument(
        "--config", help="YAML the stages were started with: adds their commands to the README"
    )
    parser.add_argument(
        "--rename", nargs="*", default=[], metavar="OLD=NEW", help="folders that go by another name in public"
    )
    arguments = parser.parse_args(argv)
    if wrong := [word for word in arguments.rename if word.count("=") != 1]:
        raise ValueError(f"--rename takes OLD=NEW, got {wrong[0]!r}")
    renamed = dict(word.split("=") for word in arguments.rename)
    size = ship(arguments.run, arguments.target, arguments.model, config=arguments.config, renamed=renamed)
    print(f"{arguments.target}: {size / 1e6:.1f} MB")
    return 0
