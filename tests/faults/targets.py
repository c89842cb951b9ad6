"""What is fuzzed: small good inputs of every format, and how each is read to the last number."""

import json
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import torch

from robotwin_adapters.annotations import read_annotation
from robotwin_adapters.mapping import DataMapping
from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.robotwin.plain_pickle import load_plain_pickle
from robotwin_adapters.storage import errors_name
from tests.support import array_sets
from tests.support.tiny_contexts import tiny_context_model
from tests.support.tiny_mddiff import tiny_mddiff
from tests.support.tiny_wan import tiny_wan
from tests.support.video_sets import write_video_set
from worldmodel.checkpoint.folder import read_description
from worldmodel.config import load_config
from worldmodel.context_module.models.context_model import ContextModel
from worldmodel.data.clips import ClipConfig
from worldmodel.data.dataset import build_clip_dataset
from worldmodel.data.synthetic import synthetic_source
from worldmodel.desk.autoencoder import CausalAutoencoder
from worldmodel.evaluation.jsonl_store import RecordLines, read_records
from worldmodel.locator.model import Locator, LocatorConfig
from worldmodel.mddiff.models.image_vae import ImageVae, ImageVaeConfig
from worldmodel.mddiff.models.mddiff import MDDiff
from worldmodel.models.backbone import LoraConfig, build_wan, load_wan, read_prompt
from worldmodel.models.config import InputSpec, WorldModelConfig
from worldmodel.models.idm import read_encoder_config
from worldmodel.models.model import WorldModel
from worldmodel.models.vae import load_vae
from worldmodel.shipped import WEIGHTS
from worldmodel.training.loop.checkpoints import CheckpointStore

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


def make_world_model(root: Path, rank: int = 0) -> None:
    torch.manual_seed(0)
    config = WorldModelConfig(regime="acg", backbone=tiny_wan(), lora=LoraConfig(rank=rank))
    source = synthetic_source(num_episodes=1, num_frames=9, size=(16, 16), embodiments=("a",), action_dim=2)
    clips = build_clip_dataset([source], config=ClipConfig(num_frames=9, height=16, width=16))
    vae = CausalAutoencoder(height=16, width=16, hidden=8, num_blocks=1, scale_factor_spatial=8)
    contract = InputSpec(9, 16, 16, source[0].fps)
    WorldModel.build(config, contract, clips.normalizer, vae=vae).save_pretrained(root)


def make_annotations(root: Path) -> None:
    root.mkdir()
    table = np.arange(12.0).reshape(4, 3)
    np.save(root / "a.npy", table)
    np.savez_compressed(root / "b.npz", pose=table, grip=table[:, 0])
    (root / "c.csv").write_text("time,pose.x\n" + "".join(f"{row[0]},{row[1]}\n" for row in table))
    rows = ({"time": row[0], "pose": {"x": row[1], "y": [row[2]]}} for row in table)
    (root / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "e.json").write_text(json.dumps({"pose": table.tolist(), "text": "put it left"}))


def read_annotations(root: Path) -> list[str]:
    return [
        repr(
            {key: v.tolist() if isinstance(v, np.ndarray) else v for key, v in read_annotation(path).items()}
        )
        for path in sorted(root.iterdir())
    ]


def make_pickle(root: Path) -> None:
    root.mkdir()
    value = {
        "joint_action": {"left_arm": np.arange(6.0), "left_gripper": 0.5},
        "rgb": np.zeros((2, 2, 3), np.uint8),
    }
    value |= {
        "text": "put it left",
        "nested": ({"a": [1, 2.5, None, True]}, b"bytes"),
        "scalar": np.float32(3),
    }
    for protocol in (2, 4, 5):
        (root / f"{protocol}.pkl").write_bytes(pickle.dumps(value, protocol=protocol))


def read_pickles(root: Path) -> list[str]:
    found = []
    for path in sorted(root.iterdir()):
        with errors_name(str(path)):
            found.append(repr(load_plain_pickle(path.read_bytes())))
    return found


def make_records(root: Path) -> None:
    lines = RecordLines(root / "clips.jsonl", {"model": "a", "seed": 0})
    for number in range(3):
        lines.add(f"clip{number}", {"psnr": {"true": [20.5, 21.0]}, "uid": "a/0"})


def make_checkpoint(root: Path) -> None:
    store = CheckpointStore(root, num_kept=2)
    store.prepare()
    for step in (1, 2):
        store.save(step, {"weights": {"a": torch.arange(6.0) + step}}, {"seed": 0, "data": "x"})


def read_checkpoint(root: Path) -> Any:
    """The newest good one: what is damaged is passed over."""
    found = CheckpointStore(root, num_kept=2).last_good()
    if found is None:
        raise ValueError(f"{root}: no checkpoint is whole")
    return found.path.name, found.tensors("weights")["a"].tolist()


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
    "aloha_jpeg": Target(lambda root: array_sets.write_aloha(root, 1, frames=4, compress=True), read_numbers),
    "libero": Target(lambda root: array_sets.write_libero(root / "demo.hdf5", frames=4), read_numbers),
    "isaac": Target(lambda root: array_sets.write_isaac(root / "demo.hdf5", frames=4), read_numbers),
    "agibot": Target(lambda root: array_sets.write_agibot(root, 1, frames=5), read_numbers),
    "zarr_packed": Target(
        lambda root: array_sets.write_zarr(root / "replay.zarr", (5, 4), numcodecs.Blosc()), read_numbers
    ),
    "annotations": Target(make_annotations, read_annotations),
    "pickles": Target(make_pickle, read_pickles),
    "records": Target(make_records, lambda root: repr(read_records(root / "clips.jsonl"))),
    "checkpoint": Target(make_checkpoint, read_checkpoint),
    "world_model": Target(make_world_model, lambda root: weights(WorldModel.from_pretrained(root))),
    "world_model_lora": Target(
        lambda root: make_world_model(root, rank=2),
        lambda root: weights(WorldModel.from_pretrained(root)),
    ),
    "mddiff": Target(
        lambda root: tiny_mddiff().save_pretrained(root), lambda root: weights(MDDiff.from_pretrained(root))
    ),
    "image_vae": Target(
        lambda root: ImageVae(ImageVaeConfig(image_size=16, num_codes=3, hidden=8)).save_pretrained(root),
        lambda root: weights(ImageVae.from_pretrained(root)),
    ),
    "context_model": Target(
        lambda root: tiny_context_model().save_pretrained(root),
        lambda root: weights(ContextModel.from_pretrained(root)),
    ),
    "model_description": Target(make_description, lambda root: repr(read_description(root).contract)),
    "backbone": Target(make_backbone, lambda root: weights(load_wan(str(root)))),
    "autoencoder": Target(make_autoencoder, lambda root: weights(load_vae(str(root)))),
    "locator": Target(make_locator, lambda root: weights(Locator.from_pretrained(root))),
    "prompt": Target(make_prompt, read_prompt_bytes),
    "image_encoder": Target(
        make_encoder, lambda root: repr(read_encoder_config(root / "image_encoder.json").to_dict())
    ),
}
