"""What is fuzzed: small good inputs of every format, and how each is read to the last number."""

import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch

from robotwin_adapters.mapping import DataMapping
from robotwin_adapters.open_dataset import open_dataset
from tests.support import array_sets
from tests.support.video_sets import write_video_set
from worldmodel.config import load_config
from worldmodel.evaluation.locator.model import Locator, LocatorConfig
from worldmodel.models.world_model.autoencoder import CausalAutoencoder
from worldmodel.models.world_model.folder import read_description
from worldmodel.models.world_model.idm import read_encoder_config
from worldmodel.models.world_model.wan import build_wan, load_vae, load_wan, read_prompt, tiny_wan
from worldmodel.shipped import WEIGHTS

torch.set_num_threads(1)  # readers run in forked processes, which have no threads of their parent
TESTS = Path(__file__).parents[1]
DATA = TESTS / "robotwin_adapters/data"


@dataclass(frozen=True)
class Target:
    """One reader."""

    make: Callable[[Path], Any]  # writes a good input to a folder that does not exist yet
    read: Callable[[Path], Any]  # to something that compares equal when all numbers do
    breaks: Callable[[Path], bool] = lambda path: True  # which files are changed


def robotwin_files() -> Any:
    """RoboTwin files as others write them, of the tests of that reader."""
    spec = spec_from_file_location("robotwin_files", TESTS / "robotwin_adapters/conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["robotwin_files"] = module
    spec.loader.exec_module(module)
    return module


def read_numbers(root: Path, mapping: Path | None = None) -> list[tuple[Any, ...]]:
    """Everything but pixels of every episode; the first and last frame of each camera are decoded."""
    source = open_dataset(root, mapping=mapping)
    found = []
    for index in range(len(source)):
        episode = source[index]
        for reader in episode.frames.values():
            reader.read([0, len(reader) - 1])
        actions = (episode.robot_actions.shape, episode.robot_actions.tobytes())
        found.append((episode.uid, *actions, float(episode.fps), tuple(episode.frames)))
    return found


def copied(source: Path) -> Callable[[Path], Any]:
    return partial(shutil.copytree, source)


def make_legacy(root: Path) -> None:
    robotwin_files().write_legacy(root / "data/episode0.hdf5", count=4)


def make_zip(root: Path) -> None:
    make_legacy(root.with_name("unpacked"))
    root.mkdir()
    with zipfile.ZipFile(root / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(root.with_name("unpacked") / "data/episode0.hdf5", "data/episode0.hdf5")


def make_xpolicylab(root: Path) -> None:
    robotwin_files().write_xpolicylab(root / "data/episode0.hdf5", count=5)


def make_pickles(root: Path) -> None:
    robotwin_files().write_v1(root / "episode0", count=3)


def make_videos(root: Path) -> None:
    mapping = write_video_set(root, episodes=1, cameras=("side",), frames=6)
    mapping.rename(root / "dataset.yaml")


def make_mapping(root: Path) -> None:
    root.mkdir()
    text = "fps: 10.0\naction_names: [a, b]\nembodiment: arm\nvideo: 'films/{id}/{camera}.mp4'\n"
    (root / "dataset.yaml").write_text(text)


def make_backbone(root: Path) -> None:
    build_wan(tiny_wan()).save_pretrained(root / "transformer")


def make_autoencoder(root: Path) -> None:
    torch.manual_seed(0)
    CausalAutoencoder(height=16, width=16, hidden=8, num_blocks=1).save_pretrained(root / "vae")


def make_description(root: Path) -> None:
    root.mkdir()
    for name in ("contract.json", "config.yaml"):
        shutil.copy(WEIGHTS / "desk" / name, root / name)


def make_locator(root: Path) -> None:
    torch.manual_seed(0)
    Locator(LocatorConfig(channels=8)).save_pretrained(root, {})


def make_prompt(root: Path) -> None:
    from safetensors.torch import save_file

    root.mkdir()
    save_file({"text": torch.arange(24.0).view(1, 3, 8)}, root / "prompt.safetensors")


def make_encoder(root: Path) -> None:
    from transformers import Dinov2Config

    root.mkdir()
    Dinov2Config(hidden_size=24, num_hidden_layers=1).to_json_file(root / "image_encoder.json")


def weights(module: torch.nn.Module) -> list[tuple[str, bytes]]:
    return [(name, tensor.numpy().tobytes()) for name, tensor in module.state_dict().items()]


def read_prompt_bytes(root: Path) -> bytes:
    return read_prompt(root / "prompt.safetensors").numpy().tobytes()


TARGETS = {
    "robotwin_hdf5": Target(make_legacy, read_numbers),
    "robotwin_zip": Target(make_zip, read_numbers),
    "robotwin_xpolicylab": Target(make_xpolicylab, read_numbers),
    "robotwin_pickles": Target(make_pickles, read_numbers),
    "lerobot_v21": Target(copied(DATA / "lerobot_v21"), read_numbers),
    "lerobot_v30": Target(copied(DATA / "lerobot_v30"), read_numbers),
    "video_folder": Target(make_videos, read_numbers),
    "mapping": Target(make_mapping, lambda root: repr(load_config(DataMapping, str(root / "dataset.yaml")))),
    "aloha": Target(lambda root: array_sets.write_aloha(root, 1, frames=4), read_numbers),
    "robomimic": Target(
        lambda root: array_sets.write_robomimic(root / "demo.hdf5", 1, frames=4), read_numbers
    ),
    "rlds": Target(lambda root: array_sets.write_rlds(root, 1, frames=4), read_numbers),
    "zarr": Target(lambda root: array_sets.write_zarr(root / "replay.zarr", (5, 4)), read_numbers),
    "npz": Target(lambda root: array_sets.write_npz(root, 1, frames=4), read_numbers),
    "model_description": Target(make_description, lambda root: repr(read_description(root).contract)),
    "backbone": Target(make_backbone, lambda root: weights(load_wan(str(root)))),
    "autoencoder": Target(make_autoencoder, lambda root: weights(load_vae(str(root)))),
    "locator": Target(make_locator, lambda root: weights(Locator.from_pretrained(root))),
    "prompt": Target(make_prompt, read_prompt_bytes),
    "image_encoder": Target(
        make_encoder, lambda root: repr(read_encoder_config(root / "image_encoder.json").to_dict())
    ),
}
