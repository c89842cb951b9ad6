"""Takes a model with `odd_rows` and `start_state` from training to the service; run by test_odd_rows.py.

python odd_journey.py FOLDER, with the library that has the path on the import path.
"""

import sys
from pathlib import Path
from typing import Any

from jaxtyping import install_import_hook

CHECKED = [f"worldmodel.{part}" for part in ("data", "models", "objectives", "pipelines", "types")]
with install_import_hook(CHECKED, "beartype.beartype"):
    import numpy as np
    import pytest
    import torch
    from safetensors.torch import load_file
    from worldmodel.models.actions.odd_rows import SEEN, OddRowsConfig

    from tests.support.service import running
    from worldmodel.cli import main
    from worldmodel.data.synthetic import synthetic_source
    from worldmodel.environments import WorldModelEnv
    from worldmodel.evaluation.held_out import HeldOutConfig, held_out_clips
    from worldmodel.evaluation.predictors import ModelPredictor, predict_each
    from worldmodel.models.model import WorldModel
    from worldmodel.pipelines.rollout import RolloutPipeline
    from worldmodel.serving.app import create_app
    from worldmodel.serving.client import WorldModelClient
    from worldmodel.serving.pictures import encode_picture
    from worldmodel.serving.run import serve_model
    from worldmodel.types import EpisodeSource, to_uint8

SETTINGS = ["model.causal=true", "model.actions.odd_rows={}", "model.actions.start_state={size: 20}"]
SETTINGS += ["model.mcl.mode=finite_difference", "model.mcl.share=0.5", "fit.gradient_checkpointing=true"]
AT = 4  # the recorded frame that live rollouts start from
SEED = 3


def train(folder: Path) -> Path:
    """With latents from the cache, interrupted and resumed; all rows keep the types that were declared."""
    assert main(["train-autoencoder", "debug/autoencoder", f"output={folder / 'autoencoder'}"]) == 0
    config = ["debug/world_model", f"model.vae={folder / 'autoencoder/vae'}", f"output={folder / 'run'}"]
    config += [f"data.latents={folder / 'latents'}", *SETTINGS]
    assert main(["encode-latents", *config]) == 0
    for options in (["fit.steps=2"], ["fit.steps=4", "--resume"]):
        assert main(["train", *config, *options]) == 0
    declared = {name: row.dtype for name, row in OddRowsConfig().row_shapes.items()}
    shards = [load_file(path) for path in (folder / "latents").rglob("*.safetensors")]
    stored = [{name: shard[f"extras.{name}"].dtype for name in declared} for shard in shards]
    assert stored == [declared] * 4
    assert SEEN
    assert all({name: part.dtype for name, part in rows.items()} == declared for rows in SEEN)
    return folder / "run/model"


def with_strong_paths(saved: Path, folder: Path) -> WorldModel:
    """The trained model, saved again with weights that make its paths seen in every picture."""
    model = WorldModel.from_pretrained(saved)
    torch.manual_seed(0)
    for name in ("odd_rows", "start_state"):
        for parameter in model.interface[name].parameters():
            torch.nn.init.normal_(parameter.data, std=0.5)
    model.save_pretrained(folder)
    return WorldModel.from_pretrained(folder).eval()


def in_evaluation(model: WorldModel, source: EpisodeSource) -> np.ndarray:
    clips = held_out_clips(source, model.contract, model.normalizer, HeldOutConfig(split="all"))
    clips.places = [(clips.places[0][0], AT)]
    predictor, clip = ModelPredictor(model), clips[0]
    commands = {"commands": predictor.commands(clip)}
    made = predict_each(predictor, clip, commands, num_given=1, seed=SEED, max_batch=1)["commands"]
    return pictures(made[1:])


def pictures(frames: torch.Tensor) -> np.ndarray:
    return to_uint8(frames).permute(0, 2, 3, 1).numpy()


def check(model: WorldModel, folder: Path, source: EpisodeSource) -> None:
    """Evaluation, rollout, session, fork, environment and service show the same frames."""
    episode = source[0]
    actions, count = episode.robot_actions[AT:], model.contract.num_frames - 1
    first = episode.frames["head"].read([AT])
    given, rows = torch.from_numpy(first).permute(0, 3, 1, 2)[None], actions[None, :count]
    known: dict[str, Any] = {"start_action": episode.robot_actions[None, AT - 2 : AT]}
    known["start_state"] = episode.robot_states[None, AT]
    options: dict[str, Any] = {"embodiment": episode.embodiment}
    pipeline = RolloutPipeline(model)

    def seeded() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(SEED)]

    video = pipeline(given, rows, generator=seeded(), **known, **options).frames[0, 1:]
    session = pipeline.open(given, generator=seeded(), **known, **options)
    steps = torch.cat([session.step(rows[:, :4]), session.fork().step(rows[:, 4:])], 1)
    assert torch.equal(steps[0], video)
    for name, other in known.items():  # each matters
        changed = pipeline(given, rows, generator=seeded(), **{**known, name: other + 0.3}, **options).frames
        assert (changed[0, 1:] - video).abs().amax((1, 2, 3)).gt(1 / 255).any(), name
    close(in_evaluation(model, source), pictures(video))

    env = WorldModelEnv(model, embodiment=episode.embodiment, action_block=count)
    env.reset(seed=SEED, options={"episode": episode, "frame": AT})
    inside = env.step(rows[0].astype(np.float32))[4]["frames"]
    # An environment knows one command before its start.
    known["start_action"] = episode.robot_actions[None, AT - 1 : AT]
    close(inside, pictures(pipeline(given, rows, generator=seeded(), **known, **options).frames[0, 1:]))

    state = episode.robot_states[AT].tolist()
    context = {"frames": [encode_picture(first[0])], "actions": [], "states": [state]}
    sample = {"sample_id": "0", "seed": SEED, "context": context, "actions": rows[0].tolist()}
    with running(create_app(serve_model(str(folder)))) as address:
        client = WorldModelClient(address, profile_id=f"worldmodel-{episode.embodiment}")
        served = client.predict_samples([sample])[0]
        context["states"] = [[0.0] * 21]
        with pytest.raises(ValueError, match="context: robot0: a state has 21 numbers, expected at most 20"):
            client.predict_samples([sample])
    del known["start_action"]  # it has no field in the interface
    close(served, pictures(pipeline(given, rows, generator=seeded(), **known, **options).frames[0, 1:]))


def close(made: np.ndarray, expected: np.ndarray) -> None:
    assert made.shape == expected.shape
    assert np.abs(made.astype(int) - expected).max() <= 1


if __name__ == "__main__":
    root = Path(sys.argv[1])
    source = synthetic_source(4, size=(32, 32), embodiments=("robot0", "robot1"))
    check(with_strong_paths(train(root), root / "strong"), root / "strong", source)
    print("untouched")
