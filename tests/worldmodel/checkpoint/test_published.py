"""Published world models: known answers of their own code, and a made-up file of each kind."""

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.published_sets import tiny_contract, tiny_state, write_source, write_vae
from worldmodel.checkpoint.published import KINDS, import_model
from worldmodel.data.normalize import ActionNormalizer
from worldmodel.diffusion.euler import euler_sample
from worldmodel.models.actions.camera_motion import CameraMotionConfig
from worldmodel.models.actions.published.bwm import BwmActions
from worldmodel.models.actions.published.first_action import frame_rows
from worldmodel.models.attention_mask import AttentionView
from worldmodel.models.backbone import LoraConfig
from worldmodel.models.model import WorldModel
from worldmodel.objectives.training_step import world_model_step
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import Actions, ClipBatch

VECTORS = Path(__file__).parents[3] / "../shared/data/published"
needs_vectors = pytest.mark.skipif(not VECTORS.is_dir(), reason="no shared vectors here")
TOLERANCE = 1e-5  # of the largest value
Known = dict[str, Tensor]


@pytest.fixture(scope="module")
def autoencoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {kind: write_vae(tmp_path_factory.mktemp("vae"), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def vectors(autoencoders, tmp_path_factory) -> Callable[[str], tuple[WorldModel, Known]]:
    """A model imported from the published layout, and what their own code made of its inputs."""

    def read(name: str) -> tuple[WorldModel, Known]:
        kind = "bwm" if name == "bwm" else "open-world"
        folder = tmp_path_factory.mktemp(name)
        source = write_source(folder / "source", kind, load_file(VECTORS / name / "state.safetensors"))
        import_model(
            kind, str(source), folder / "model", contract=tiny_contract(kind), vae=autoencoders[kind]
        )
        known = load_file(VECTORS / name / "io.safetensors")
        # Latents with frames before channels, as some of them are stored.
        moved = {key: x.transpose(1, 2) for key, x in known.items() if kind != "bwm" and x.ndim == 5}
        return WorldModel.from_pretrained(folder / "model"), known | moved

    return read


def largest_error(got: Tensor, expected: Tensor) -> float:
    """Relative to the largest value."""
    assert got.shape == expected.shape
    return float((got - expected).abs().max() / expected.abs().max())


def by_frame(rows: Tensor) -> Actions:
    """One row per frame as our actions: row 0 is the action before the first."""
    return Actions(rows[:, 1:], extras={"previous_action": rows[:, :-1]})


@needs_vectors
@torch.no_grad()
def test_bwm_gives_the_answers_of_its_own_code(vectors) -> None:
    model, known = vectors("bwm")
    text, latents = model.text_context(), known["in.latents"]
    embedding = model.embed(*given(by_frame(known["in.action"])))
    unmoved = model.embed(*given(by_frame(0 * known["in.action"][:1])))
    first = model.embed(*given(by_frame(known["in.action"][:1])))
    errors = {
        "tokens": largest_error(embedding.context, known["mid.action_tokens"]),
        "modulation": largest_error(embedding.frames, known["mid.action_modulation"]),
    }
    for name, count, some, told in (
        ("velocity.history1", 1, latents, embedding),
        ("velocity.history3", 3, latents, embedding),
        ("velocity.history1.zero_action", 1, latents[:1], unmoved),
    ):
        sigma = (known["in.timestep"] / 1000).expand(len(some), 5).clone()
        sigma[:, :count] = 0
        errors[name] = largest_error(model.fdm(some, sigma, told, text).velocity, known[f"out.{name}"])
    for name in ("sample.h1", "sample.h3", "sample.h3_noise4"):
        history = known[f"{name}.history"]
        sigmas = model.sigmas(len(known[f"{name}.sigmas"]))
        assert torch.allclose(sigmas[:-1], known[f"{name}.sigmas"], atol=1e-6)
        noise = known["sample.noise_seed5"][:, :, history.shape[2] :]
        future = euler_sample(lambda x, s: model.fdm(x, s, first, text).velocity, history, noise, sigmas)
        errors[name] = largest_error(torch.cat([history, future], 2), known[f"{name}.latents"])
    print({name: f"{error:.1e}" for name, error in errors.items()})
    assert torch.allclose(model.sigmas(50)[:-1], known["schedule.sigmas50"], atol=1e-6)
    assert max(errors.values()) < TOLERANCE, errors


def given(actions: Actions) -> tuple[Tensor | None, dict[str, Tensor]]:
    return actions.robot, actions.extras


@needs_vectors
@pytest.mark.parametrize("mode", ["adaln", "aligned"])
@torch.no_grad()
def test_open_world_gives_the_answers_of_its_own_code(vectors, monkeypatch, mode: str) -> None:
    model, known = vectors(f"openworld_{mode}")
    text, latents, rows = model.text_context(), known["in.latents"], known["in.action"]
    # A latent frame takes one of its four rows: give it that one in all of them.
    actions = by_frame(torch.cat([rows[:, :1], rows[:, 1:].repeat_interleave(4, 1)], 1))
    embedding = model.embed(*given(actions))
    nothing = model.embed(*given(actions), missing=torch.ones(2, 5, dtype=torch.bool))
    sigma = known["in.timestep_per_frame"] / 1000
    frames = torch.arange(5)
    behind = frames[:, None] - frames
    views = {
        "causal": None,
        "causal_window2": AttentionView(((behind >= 0) & (behind < 2))[None], frames[None]),
        "bidirectional": AttentionView(torch.ones(1, 5, 5, dtype=torch.bool), frames[None]),
    }
    path = model.interface["open_world"]
    condition = path.condition(torch.cat([rows[:, :1], actions.robot], 1))
    errors = {"condition": largest_error(condition, known["mid.condition"])}
    for name, view in views.items():
        velocity = model.fdm(latents, sigma, embedding, text, view=view).velocity
        errors[f"velocity.{name}"] = largest_error(velocity, known[f"out.velocity.{name}"])
    velocity = model.fdm(latents, sigma, nothing, text).velocity
    errors["velocity.zero_condition"] = largest_error(velocity, known["out.velocity.causal.zero_condition"])
    errors["rollout"] = largest_error(streamed(model, known, actions, monkeypatch), known["rollout.frames"])
    print({name: f"{error:.1e}" for name, error in errors.items()})
    assert max(errors.values()) < TOLERANCE, errors


def streamed(model: WorldModel, known: Known, actions: Actions, monkeypatch) -> Tensor:
    """Latents 2 to 4 of a rollout with a key-value cache that starts from the first two, with known noise."""
    objective = replace(model.config.objective, shift=5.0)  # their rollout was made with few, shifted steps
    model.config = replace(model.config, history=2, objective=objective)
    assert torch.allclose(model.sigmas(4)[:-1], known["rollout.sigmas"], atol=1e-6)
    noise: Iterator[Tensor] = iter(known["rollout.noise"].transpose(2, 3))
    made: list[Tensor] = []
    monkeypatch.setattr(WorldModel, "encode", lambda *_: known["in.latents"][:, :, :2])
    monkeypatch.setattr(torch, "randn", lambda *_, **__: next(noise))
    hook = model.vae.post_quant_conv.register_forward_pre_hook(lambda _, inputs: made.append(inputs[0]))
    frames = torch.zeros(2, 5, 3, model.contract.height, model.contract.width)
    RolloutPipeline(model).rollout(frames, actions, num_inference_steps=4)
    hook.remove()
    monkeypatch.undo()
    mean, std = (torch.tensor(model.vae.config[f"latents_{x}"]).view(-1, 1, 1, 1) for x in ("mean", "std"))
    return ((torch.cat(made, 2) - mean) / std)[:, :, 2:]


@pytest.fixture(scope="module")
def imported(autoencoders, tmp_path_factory) -> Callable[[str], Path]:
    """The folder of an imported made-up model."""
    done: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in done:
            folder = tmp_path_factory.mktemp(kind)
            source = write_source(folder / "published", kind, tiny_state(kind))
            contract = tiny_contract(kind)
            import_model(kind, str(source), folder / "model", contract=contract, vae=autoencoders[kind])
            done[kind] = folder / "model"
        return done[kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_model_holds_the_published_weights_and_says_where_they_are_from(imported, kind) -> None:
    model = WorldModel.from_pretrained(imported(kind))
    published, own = tiny_state(kind), model.state_dict()
    pairs = {
        "bwm": {
            "blocks.1.cross_attn.o.bias": "fdm.backbone.blocks.1.attn2.to_out.0.bias",
            "blocks.0.norm3.weight": "fdm.backbone.blocks.0.norm2.weight",
            "blocks.0.modulation": "fdm.backbone.blocks.0.scale_shift_table",
            "head.modulation": "fdm.backbone.scale_shift_table",
            "head.head.weight": "fdm.backbone.proj_out.weight",
            "pipe.action_encoder.action_mlp2.2.weight": "interface.bwm.modulation.2.weight",
        },
        "open-world": {
            "backbone.transformer.blocks.1.attn1.to_q.weight": "fdm.backbone.blocks.1.attn1.to_q.weight",
            "backbone.transformer.proj_out.bias": "fdm.backbone.proj_out.bias",
            "conditioner.encoder.action_encode.4.weight": "interface.open_world.encode.4.weight",
            "conditioner.proj.bias": "interface.open_world.project.bias",
        },
    }
    assert all(torch.equal(published[name], own[ours]) for name, ours in pairs[kind].items())
    card = (imported(kind) / "README.md").read_text()
    assert "license: apache-2.0" in card
    assert "published, " in card  # the name of the folder it came from
    assert KINDS[kind].names == model.normalizer.names_of(KINDS[kind].embodiment)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_first_frame_has_an_action(imported, kind) -> None:
    model = WorldModel.from_pretrained(imported(kind))
    torch.manual_seed(0)
    rows = torch.rand(1, 17, len(KINDS[kind].names)) * 2 - 1
    before = model.embed(*given(by_frame(rows)))
    changed = rows.clone()
    changed[0, 0] += 0.5
    after = model.embed(*given(by_frame(changed)))
    per_frame = (
        (after.frames - before.frames) if kind == "bwm" else (after.context - before.context).flatten(2)
    )
    assert (per_frame.abs().amax((0, 2)) > 0).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("num_given", "block", "windows"),
    [
        # Its own code: the first frame nine times, then the first frame and the last eight.
        (1, 8, ([0] * 9, [0, *range(1, 9)], [0, *range(9, 17)])),
        (1, 4, ([0] * 9, [0] * 5 + [1, 2, 3, 4], [0, *range(1, 9)], [0, *range(5, 13)])),
        (13, 8, ([0, *range(5, 13)], [0, *range(13, 21)])),
    ],
)
@torch.no_grad()
def test_the_history_of_bwm_is_the_first_frame_and_the_latest(
    imported, monkeypatch, num_given: int, block: int, windows: tuple[list[int], ...]
) -> None:
    model = WorldModel.from_pretrained(imported("bwm"))
    torch.manual_seed(0)
    count = 1 + num_given + block * len(windows)
    rows, frames = torch.rand(1, count, 14) * 2 - 1, torch.rand(1, num_given, 3, 64, 96)
    shown: list[Tensor] = []
    told: list[Tensor] = []
    encode, embed = WorldModel.encode, BwmActions.forward

    def seen(path: BwmActions, actions: Tensor, extras: dict[str, Tensor], missing: Tensor):
        told.append(frame_rows(actions, extras))
        assert not missing.any()
        return embed(path, actions, extras, missing)

    monkeypatch.setattr(WorldModel, "encode", lambda model, x: shown.append(x) or encode(model, x))
    monkeypatch.setattr(BwmActions, "forward", seen)
    known = by_frame(rows)
    pipeline = RolloutPipeline(model)
    session = pipeline._begin(frames, known[: num_given - 1], 1, torch.Generator().manual_seed(0), ())
    made = [frames]
    for start in range(num_given - 1, num_given - 1 + block * len(windows), block):
        made.append(session.advance(known[start : start + block], block))
    video = torch.cat(made, 1)
    assert len(shown) == len(windows)
    for number, window in enumerate(windows):
        assert torch.equal(shown[number], video[:, window]), window
        ahead = range(num_given + number * block, num_given + (number + 1) * block)
        assert torch.equal(told[number][:, : 9 + block], rows[:, [*window, *ahead]]), window


def test_bwm_can_be_made_to_keep_the_latest_frames_alone(imported) -> None:
    model = WorldModel.from_pretrained(imported("bwm"))
    assert model.config.num_given == 1
    latest = replace(model.config.actions, bwm=replace(model.config.actions.bwm, keep_first=False))
    assert replace(model.config, actions=latest).num_given == 9
    drawn = replace(model.config.actions, camera_motion=CameraMotionConfig())
    for refused in ({"history": 1}, {"causal": True}, {"actions": drawn}):
        with pytest.raises(ValueError, match="keep_first needs whole clips, a history of 2 latent frames"):
            replace(model.config, **refused)


def fixed_batch(model: WorldModel, kind: str) -> ClipBatch:
    torch.manual_seed(1)
    actions = by_frame(torch.rand(2, 17, len(KINDS[kind].names)) * 2 - 1)
    return ClipBatch(
        robot_actions=actions.robot,
        action_mask=torch.ones(2, len(KINDS[kind].names), dtype=torch.bool),
        embodiment=torch.zeros(2, dtype=torch.long),
        sources=("a", "b"),
        latents=torch.randn(2, model.contract.latent_channels, *model.contract.latent_grid),
        extras=actions.extras,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_steps_of_lora_lower_the_loss_by_a_fifth(imported, kind) -> None:
    torch.manual_seed(0)
    model = WorldModel.from_pretrained(imported(kind), lora=LoraConfig(rank=16, alpha=32)).train()
    batch = fixed_batch(model, kind)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(21):
        loss = world_model_step(model, batch, torch.Generator().manual_seed(0)).total
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in trained), "distributed training would wait"
        optimizer.step()
        losses.append(loss.item())
    print(kind, losses[0], losses[-1])
    assert losses[20] < 0.8 * losses[0]


@pytest.mark.parametrize("kind", KINDS)
def test_full_training_reaches_every_weight_that_it_trains(imported, kind) -> None:
    model = WorldModel.from_pretrained(imported(kind)).train()
    world_model_step(model, fixed_batch(model, kind), torch.Generator().manual_seed(0)).total.backward()
    trained = {name: x.grad for name, x in model.named_parameters() if x.requires_grad}
    assert [name for name, gradient in trained.items() if gradient is None] == []
    assert any(name.startswith("interface.") for name in trained)
    is_asked = "fdm.backbone.blocks.0.attn2.to_q.weight" in trained
    assert is_asked == (kind == "bwm")  # every query gets the same from a single token


def test_what_is_not_a_published_model_is_refused_by_name(autoencoders, tmp_path: Path) -> None:
    def attempt(kind: str, source: Path) -> None:
        import_model(
            kind, str(source), tmp_path / "out", contract=tiny_contract(kind), vae=autoencoders[kind]
        )

    source = write_source(tmp_path / "bwm", "bwm", tiny_state("bwm"))
    file = source / "step-12000.safetensors"
    whole, state = file.read_bytes(), tiny_state("bwm")
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"step-12000.safetensors is damaged"):
        attempt("bwm", source)
    for name, change, words in (
        ("blocks.1.ffn.0.weight", None, r"blocks.1.ffn.net.0.proj.weight is missing"),
        ("blocks.1.ffn.0.weight", torch.zeros(3, 3), r"blocks.1.ffn.net.0.proj.weight is .* expected"),
        ("blocks.0.extra", torch.zeros(1), r"blocks.0.extra is not expected"),
        ("patch_embedding.weight", None, "is not a published bwm model: patch_embedding.weight is missing"),
        ("head.head.bias", torch.full((192,), torch.nan), "head.head.bias holds NaN"),
    ):
        changed = {key: x for key, x in state.items() if key != name or change is not None}
        save_file({**changed, **({name: change} if change is not None else {})}, file)
        with pytest.raises(ValueError, match=rf"step-12000.safetensors.*{words}"):
            attempt("bwm", source)
    file.write_bytes(whole)
    (source / "stat.json").write_text(json.dumps({"state_pose": {"p01": [0.0] * 7, "p99": [1.0] * 7}}))
    with pytest.raises(ValueError, match=r"stat.json: expected p01 and p99 of 14 numbers"):
        attempt("bwm", source)
    (source / "stat.json").unlink()
    with pytest.raises(ValueError, match=r"quantiles of the actions, found 0; --stats names it"):
        attempt("bwm", source)
    with pytest.raises(ValueError, match=r"expected one file \*.pt, found none"):
        attempt("open-world", source)
    assert not (tmp_path / "out").exists()


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_a_pickle_is_read_by_weights_only(autoencoders, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = write_source(tmp_path / "open", "open-world", tiny_state("open-world"))
    file = source / "wm_student_2view.pt"

    def attempt() -> None:
        contract = tiny_contract("open-world")
        import_model(
            "open-world", str(source), tmp_path / "out", contract=contract, vae=autoencoders["open-world"]
        )

    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"wm_student_2view.pt is damaged"):
        attempt()
    file.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=r"wm_student_2view.pt is damaged, or holds more than tensors"):
        attempt()
    torch.save({"a": Bomb()}, file)
    with pytest.raises(ValueError, match=r"wm_student_2view.pt is damaged, or holds more than tensors"):
        attempt()
    assert not (tmp_path / "exploded").exists()
    state = tiny_state("open-world")
    state["backbone.transformer.patch_embedding.weight"] = torch.zeros(48, 25, 1, 2, 2)
    torch.save(state, file)
    with pytest.raises(ValueError, match=r"25 input channels for 16 channels of latents: it takes drawings"):
        attempt()


def test_rows_of_actions_are_scaled_as_actions_are(imported) -> None:
    normalizer: ActionNormalizer = WorldModel.from_pretrained(imported("open-world")).normalizer
    raw = torch.randn(5, 7)
    expected = normalizer.normalize(raw.numpy(), "franka")
    assert torch.allclose(normalizer.normalize_tensor(raw, "franka"), expected, atol=1e-6)
