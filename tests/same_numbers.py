"""Bit-exact record of what this tree computes, for changes that must not change a number.

python tests/same_numbers.py before.json            record, about five minutes on one core
python tests/same_numbers.py before.json --check    compare this tree with a record of the same machine

Recorded: losses and weights of every smoke test and of pose-map steps with and without MCL; frames of the
shipped model (steps, a fork, 19 actions); rollouts of tiny models of every kind; debug runs of the concept
models, of the context module and of the identifiability simulation.
"""

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from worldmodel import RolloutPipeline, WorldModel  # noqa: E402
from worldmodel.data.clips import ClipConfig  # noqa: E402
from worldmodel.data.dataset import build_clip_dataset  # noqa: E402
from worldmodel.data.synthetic import synthetic_source  # noqa: E402
from worldmodel.desk.autoencoder import CausalAutoencoder  # noqa: E402
from worldmodel.models.backbone import WanConfig  # noqa: E402
from worldmodel.models.config import InputSpec, WorldModelConfig  # noqa: E402
from worldmodel.models.idm import IdmConfig  # noqa: E402

TINY = WanConfig(num_layers=2, num_heads=2, head_dim=24, ffn_dim=96, text_dim=32, freq_dim=32)
SIZE, NUM_FRAMES, FPS = 32, 13, 50 / 3
MCL = ["model.mcl.mode=first_order", "model.mcl.critic=trained", "model.mcl.latent=noisy"]
SCRIPTS = {
    "smoke-test": "smoke_test.py" if (ROOT / "training/smoke_test.py").exists() else "debug_journey.py",
    "train": "train_world_model.py",
    "train-concepts": "train_concepts.py",
    "train-vae": "train_vae_baseline.py",
    "train-context": "train_context.py",
    "train-identifiability": "train_identifiability.py",
}
POSES = ["model.actions.pose_maps={}", "data.action_space=pose_commands"]


def digest(*tensors: Tensor) -> str:
    """Of values and shapes."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def call(name: str, *arguments: str) -> None:
    """Run a sub-command on one thread; where there is no `python -m worldmodel` yet, its script."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    script = ROOT / "training" / SCRIPTS.get(name, "")
    start = [str(script)] if script.is_file() else ["-m", "worldmodel", name]
    command = [sys.executable, *start, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def run_record(folder: Path) -> dict[str, object]:
    """Losses of a run and the sum of everything it saved."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    files = sorted((folder / "model").rglob("*.safetensors"))
    # Neither names nor files count: moving a tensor changes no number.
    tensors = [digest(tensor) for file in files for tensor in load_file(file).values()]
    return {"losses": losses, "weights": hashlib.sha256("".join(sorted(tensors)).encode()).hexdigest()[:16]}


def smoke_tests(scratch: Path) -> Iterator[tuple[str, object]]:
    call("smoke-test", "--output", str(scratch / "smoke"))
    for log in sorted((scratch / "smoke").glob("*/log.jsonl")):
        yield f"smoke/{log.parent.name}", run_record(log.parent)
    data = [
        f"data.paths=[{scratch / 'smoke/episodes'}]",
        "data.synthetic_episodes=0",
        "data.splits.val_uids=[babble/finch/data/episode1]",
        f"data.latents={scratch / 'smoke/latents'}",
        f"model.vae={scratch / 'smoke/autoencoder/vae'}",
    ]
    for name, extra in (("poses", []), ("poses+mcl", MCL)):
        folder = scratch / name
        config = str(ROOT / "configs/debug/world_model.yaml")
        call("train", config, *data, *POSES, *extra, f"output={folder}", "fit.steps=2")
        yield f"train/{name}", run_record(folder)


def research_runs(scratch: Path) -> Iterator[tuple[str, object]]:
    configs = ROOT / "configs"
    vq = scratch / "vqvae"
    stages = {"vqvae": "", "mddiff": str(vq / "model"), "mcl": str(scratch / "mddiff/model")}
    for name, start in stages.items():
        config = str(configs / f"disentanglement/debug/{name}.yaml")
        call(
            "train-concepts",
            config,
            f"output={scratch / name}",
            *([f"start_from={start}"] if start else []),
        )
        yield f"mddiff/{name}", run_record(scratch / name)
    for name in ("beta_vae", "beta_tcvae", "factor_vae"):
        config = str(configs / f"disentanglement/debug/{name}.yaml")
        call("train-vae", config, f"output={scratch / name}")
        yield f"mddiff/{name}", run_record(scratch / name)
    call("train-context", str(configs / "context/debug.yaml"), f"output={scratch / 'context'}")
    yield "context_module", run_record(scratch / "context")
    small = ["data.num_samples=2000", "data.latent_dim=3", "data.num_conditions=4", "num_seeds=2"]
    small += ["optimization.epochs=3", "report_epochs=[3]", "num_threads=1"]
    for name, extra in (("concat", []), ("ivae", []), ("concat+mcl", ["optimization.mcl_weight=0.1"])):
        config = str(configs / f"identifiability/{name.removesuffix('+mcl')}.yaml")
        mcl = [f"mcl.mode={'exact'}", "mcl.critic=trained", *extra] if extra else []
        call("train-identifiability", config, *small, *mcl, f"out={scratch / name}")
        result = json.loads((scratch / name / "result.json").read_text())
        timeless = {key: value for key, value in result.items() if "second" not in key and key != "config"}
        text = json.dumps(timeless, sort_keys=True).replace(str(scratch), "")
        yield f"md_vae/{name}", hashlib.sha256(text.encode()).hexdigest()[:16]


def shipped_frames() -> Iterator[tuple[str, object]]:
    """Steps, a fork and 19 actions of the shipped model under commands that move."""
    pipeline = RolloutPipeline(WorldModel.from_pretrained("desk"))
    generator = torch.Generator().manual_seed(3)
    first = torch.rand(2, 1, 3, 64, 64, generator=generator)
    poses = 0.1 * torch.randn(2, 20, 16, generator=generator).cumsum(1)
    for steps in (1, 3):
        session = pipeline.open(
            first,
            embodiment="heron",
            num_inference_steps=steps,
            generator=torch.Generator().manual_seed(5),
        )
        shown = [session.step(poses[:, 4 * i : 4 * i + 4]) for i in range(3)]
        fork = session.fork(2)
        shown += [fork.step(poses[:, 12:16].repeat_interleave(2, 0)), session.step(poses[:, 16:20])]
        yield f"desk/session_{steps}", digest(*shown)
        result = pipeline(
            first,
            poses[:, :19],
            embodiment="heron",
            num_inference_steps=steps,
            generator=torch.Generator().manual_seed(6),
        )
        yield f"desk/rollout_{steps}", digest(result.frames)


def tiny_rollouts() -> Iterator[tuple[str, object]]:
    source = synthetic_source(
        num_episodes=6, num_frames=26, size=(SIZE, SIZE), embodiments=("a", "b"), action_dim=6, fps=FPS
    )
    clips = build_clip_dataset([source], config=ClipConfig(num_frames=NUM_FRAMES, height=SIZE, width=SIZE))
    frames = torch.stack([clips[i].frames for i in range(2)])
    idm = IdmConfig(
        image_height=SIZE,
        image_width=SIZE,
        patch_size=16,
        encoder_width=48,
        encoder_layers=1,
        encoder_heads=2,
        hidden=32,
    )
    for regime, history, causal in itertools.product(("acg", "lacg", "no_action"), (1, 2), (False, True)):
        config = WorldModelConfig(regime=regime, history=history, causal=causal, backbone=TINY, idm=idm)
        torch.manual_seed(0)
        vae = CausalAutoencoder(height=SIZE, width=SIZE, hidden=16, num_blocks=1)
        pixels = (frames.float() / 127.5 - 1).transpose(1, 2)
        vae.initialize_from(pixels)
        vae.set_latent_statistics(pixels)
        contract = InputSpec(NUM_FRAMES, SIZE, SIZE, FPS, camera="head", latent_scale=4)
        model = WorldModel.build(config, contract, clips.normalizer, vae=vae).eval()
        random = torch.Generator().manual_seed(7)
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=random)
        given, actions = frames[:, : 4 * history - 3], torch.randn(2, 21, 6, generator=random)
        kind = {
            "acg": {"robot_actions": actions, "embodiment": ["a", "b"]},
            "lacg": {"latent_actions": torch.randn(2, 21, model.config.latent_action_dim, generator=random)},
            "no_action": {"num_frames": 22},
        }[regime]
        result = RolloutPipeline(model)(
            given,
            **kind,
            num_inference_steps=2,
            generator=torch.Generator().manual_seed(8),
        )
        yield f"tiny/{regime}_history{history}_{'causal' if causal else 'whole'}", digest(result.frames)


def record() -> dict[str, object]:
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        parts = (shipped_frames(), tiny_rollouts(), smoke_tests(scratch), research_runs(scratch))
        for key, value in itertools.chain(*parts):
            found[key] = value
            print(key, value, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    found = record()
    if not arguments.check:
        arguments.file.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    before = json.loads(arguments.file.read_text())
    other = [key for key in sorted(before | found) if before.get(key) != found.get(key)]
    print(f"{len(before) - len(other)} of {len(before)} agree bit for bit")
    for key in other:
        print(f"{key}\n  before {before.get(key)}\n  now    {found.get(key)}")
    return int(bool(other))


if __name__ == "__main__":
    sys.exit(main())
