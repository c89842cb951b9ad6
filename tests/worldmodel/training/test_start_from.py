"""`start_from`: every setting of `model` is honored or refused by name; adapters on a trained model."""

import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.debug_run import CONFIG, losses
from worldmodel.checkpoint.folder import LORA_FILE, read_description
from worldmodel.config import load_config
from worldmodel.data.synthetic import synthetic_source
from worldmodel.models.config import WorldModelConfig
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.training.datasets import open_index
from worldmodel.training.start_from import CHANGEABLE, FIXED
from worldmodel.training.world_model import TrainConfig, build_model, load_train_config, main, train

TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"
QUICK = ["validation.num_clips=0", "fit.checkpoint_every=100"]
Start = Callable[..., Path]


@pytest.fixture(scope="module")
def start(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Saves a model of given settings, its adapters and zero-initialized parts at work; gives its folder."""

    def save(*settings: str) -> Path:
        config = load_train_config(CONFIG, [*overrides, *settings])
        model = build_model(config, open_index(config.data))
        generator = torch.Generator().manual_seed(5)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
        folder = tmp_path_factory.mktemp("start") / "model"
        model.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="module")
def whole(start: Start) -> Path:
    return start("model.small.scene=false", "model.history=2")


@pytest.fixture(scope="module")
def adapted(start: Start) -> Path:
    return start("model.lora.rank=2", "model.lora.alpha=4")


def continued(folder: Path, overrides: list[str], *settings: str) -> WorldModel:
    config = load_train_config(CONFIG, [*overrides, f"start_from={folder}", *settings])
    return build_model(config, open_index(config.data))


def roll(model: WorldModel) -> torch.Tensor:
    episode = synthetic_source(1, 9, (32, 32), embodiments=("robot0",))[0]
    frames = torch.from_numpy(episode.frames["head"].read(range(5))).permute(0, 3, 1, 2)
    rollout = RolloutPipeline(model)(
        frames[None],
        episode.robot_actions[None],
        embodiment="robot0",
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(0),
    )
    return rollout.frames


def test_every_setting_is_either_changeable_or_has_a_reason_why_not() -> None:
    settings = {name.partition(".")[0] for name in FIXED}
    assert set(CHANGEABLE) | settings == set(WorldModelConfig.__dataclass_fields__)


def test_what_is_left_out_is_as_in_the_model_that_is_started_from(
    whole: Path, overrides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*overrides, f"start_from={whole}", "model.objective.beta=0.5"]
    config = load_train_config(CONFIG, words)
    saved = read_description(whole).config
    assert (config.model.history, config.model.prediction) == (2, "clean")
    assert config.model.objective.beta == 0.5
    assert config.model.objective.shift == saved.objective.shift
    assert continued(whole, overrides, "model.objective.beta=0.5").config == config.model
    assert main([CONFIG, *words, "--show"]) == 0
    assert "  history: 2\n" in capsys.readouterr().out


REFUSED = {
    "regime=lacg": "acg",
    "pretrained=elsewhere": "''",
    "backbone.num_layers=3": "2",
    "backbone.seed=7": "0",
    "vae=outputs/no/such/vae": r".*/vae",
    "prompt=prompt.safetensors": "''",
    "small.prediction=velocity": "clean",
    "actions.adaln.hidden=64": "32",
    "latent_action_dim=8": "4",
    "small.scene=true": "False",
    "idm.hidden=8": "16",
    "seed=3": "0",
}


@pytest.mark.parametrize("override", REFUSED)
def test_a_setting_that_cannot_change_is_refused_with_both_values_and_a_way_out(
    override: str, whole: Path, overrides: list[str]
) -> None:
    name, _, asked = override.partition("=")
    asked = re.escape({"true": "True"}.get(asked, asked))
    old = REFUSED[override]
    message = rf"start_from=.*/model has model\.{name}={old}, the config asks for model\.{name}={asked}: .*"
    with pytest.raises(ValueError, match=message + rf"\. Leave model\.{name} out, or set it to {old}"):
        continued(whole, overrides, f"model.{override}")


def test_a_refused_setting_ends_the_command_with_one_line(
    whole: Path, overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*overrides, f"start_from={whole}", "model.actions.adaln.hidden=64", f"output={tmp_path / 'run'}"]
    assert main([CONFIG, *words]) == 2
    error = capsys.readouterr().err
    assert f"model.pretrained={whole} instead of start_from" in error
    assert "Traceback" not in error


def test_a_trained_refiner_keeps_its_width(start: Start, overrides: list[str]) -> None:
    folder = start("model.small.refiner_width=8")
    for width in (0, 16):
        with pytest.raises(ValueError, match=f"has model.small.refiner_width=8, .*={width}: its refiner"):
            continued(folder, overrides, f"model.small.refiner_width={width}")


@pytest.mark.parametrize(
    "override",
    [
        "causal=true",
        "dtype=bfloat16",
        "history=1",
        "objective.idm_weight=0",
        "mcl.mode=finite_difference",
        "small.refiner_width=8",
    ],
)
def test_a_setting_that_can_change_is_honored_and_saved(
    override: str, whole: Path, overrides: list[str], tmp_path: Path
) -> None:
    asked = load_train_config(CONFIG, [*overrides, f"start_from={whole}", f"model.{override}"]).model
    assert asked != read_description(whole).config
    model = continued(whole, overrides, f"model.{override}")
    model.save_pretrained(tmp_path / "model")
    loaded = WorldModel.from_pretrained(tmp_path / "model")
    assert loaded.config == model.config == asked
    assert loaded.fdm.causal == model.fdm.causal == asked.causal
    stored = {p.dtype for name, p in loaded.fdm.backbone.named_parameters() if "ffn" in name}
    assert stored == {torch.bfloat16 if "bfloat16" in override else torch.float32}
    assert (loaded.idm is None) == ("idm_weight" in override)
    assert ("mcl" in loaded.parts()) == ("mcl" in override)
    assert (loaded.small.refiner is not None) == ("refiner" in override)


def test_a_picture_head_is_added_to_a_trained_model(
    whole: Path, overrides: list[str], tmp_path: Path
) -> None:
    learns = ("model.trained=head", "model.objective.pixel_weight=1")
    model = continued(whole, overrides, "model.head={}", *learns)
    model.freeze_untrained()
    assert {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad} == {"head"}
    model.save_pretrained(tmp_path / "model")
    assert "head" in WorldModel.from_pretrained(tmp_path / "model").parts()
    assert continued(tmp_path / "model", overrides).config.head == model.config.head
    words = [
        *overrides,
        f"start_from={tmp_path}/model",
        "model.trained=all",
        "model.objective.pixel_weight=0",
    ]
    config = load_train_config(CONFIG, [*words, "model.trained=all"])
    alone = build_model(config, open_index(config.data))
    learned = {name.split(".")[0] for name, p in alone.named_parameters() if p.requires_grad}
    assert "fdm" in learned
    assert "head" not in learned, "the base is trained under a head that stays"
    with pytest.raises(ValueError, match="a new picture head needs pictures"):
        continued(whole, overrides, "model.head={}")
    with pytest.raises(ValueError, match="a new picture head needs pictures"):
        load_train_config(CONFIG, [*overrides, "model.head={}"])
    with pytest.raises(
        ValueError, match=r"has model\.head\.width=40, .*=8: its picture head is trained already"
    ):
        continued(tmp_path / "model", overrides, "model.head.width=8")


def test_the_same_autoencoder_may_lie_elsewhere(whole: Path, overrides: list[str], tmp_path: Path) -> None:
    shutil.copytree(whole / "vae", tmp_path / "copy")
    assert continued(whole, overrides, f"model.vae={tmp_path / 'copy'}").vae is not None
    weights = tmp_path / "copy/diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(ValueError, match="knows the latents of its own autoencoder only"):
        continued(whole, overrides, f"model.vae={tmp_path / 'copy'}")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("aspect=crop", "expected aspect stretch, got crop: set data.clip.aspect=stretch"),
        ("merge=sum", "expected merge last, got sum: set data.clip.merge=last"),
        ("num_frames=13", "expected num_frames 9, got 13: set data.clip.num_frames=9"),
    ],
)
def test_clips_that_are_cut_another_way_are_refused(
    override: str, message: str, whole: Path, overrides: list[str]
) -> None:
    with pytest.raises(ValueError, match=f"does not fit data.clip: {message}"):
        continued(whole, overrides, f"data.clip.{override}")


def base_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / TRANSFORMER)


def test_adapters_train_on_a_trained_model_resume_export_load_and_merge(
    whole: Path, overrides: list[str], tmp_path: Path
) -> None:
    words = [*overrides, *QUICK, f"start_from={whole}", "model.lora.rank=4"]

    def run(folder: str, steps: int, resume: bool = False) -> Path:
        config = load_train_config(CONFIG, [*words, f"output={tmp_path / folder}", f"fit.steps={steps}"])
        assert train(config, resume)
        return tmp_path / folder / "model"

    run("resumed", 2)
    resumed, straight = run("resumed", 4, resume=True), run("straight", 4)
    assert losses(tmp_path / "resumed") == losses(tmp_path / "straight")
    for name in (TRANSFORMER, LORA_FILE, "interface.safetensors", "idm.safetensors"):
        assert (resumed / name).read_bytes() == (straight / name).read_bytes(), name
    before, after = base_of(whole), base_of(resumed)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    adapters = load_file(resumed / LORA_FILE)
    assert any(value.abs().max() > 0 for name, value in adapters.items() if "lora_B" in name)
    for part in ("interface", "idm"):
        old, new = (load_file(folder / f"{part}.safetensors") for folder in (whole, resumed))
        assert not all(torch.equal(new[name], value) for name, value in old.items())

    shutil.move(whole, tmp_path / "moved")  # the export stands on its own
    model = WorldModel.from_pretrained(resumed)
    shutil.move(tmp_path / "moved", whole)
    expected = roll(model)
    assert not torch.allclose(expected, roll(WorldModel.from_pretrained(whole)), atol=1e-3)
    model.merge_adapters()
    torch.testing.assert_close(roll(model), expected, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path / "merged")
    assert torch.equal(roll(WorldModel.from_pretrained(tmp_path / "merged")), roll(model))


def test_new_adapters_change_nothing_and_only_the_backbone_is_frozen(
    whole: Path, overrides: list[str]
) -> None:
    model = continued(whole, overrides, "model.lora.rank=4")
    assert torch.equal(roll(model), roll(WorldModel.from_pretrained(whole)))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    always = {name for name, p in WorldModel.from_pretrained(whole).named_parameters() if not p.requires_grad}
    assert all(name.startswith("fdm.backbone.") for name in frozen - always)
    assert {name for name in trained if name.startswith("fdm.backbone.")} == {
        name for name in trained if ".lora_" in name
    }
    assert {name.partition(".")[0] for name in trained} == {"fdm", "interface", "idm"}


def test_adapters_are_continued_with_another_dropout_and_no_other_seed(
    adapted: Path, overrides: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = continued(adapted, overrides, "model.lora.dropout=0.5")
    assert "the rank 2 adapters of" in caplog.text
    assert "are trained further" in caplog.text
    assert torch.equal(roll(model), roll(WorldModel.from_pretrained(adapted)))
    assert model.config.lora.dropout == 0.5
    assert any(isinstance(m, torch.nn.Dropout) and m.p == 0.5 for m in model.fdm.modules())
    with pytest.raises(ValueError, match=r"model\.lora\.seed=9: its adapters are trained already"):
        continued(adapted, overrides, "model.lora.seed=9")


@pytest.mark.parametrize("rank", [0, 3])
def test_adapters_of_another_rank_are_merged_first(
    rank: int, adapted: Path, overrides: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = continued(adapted, overrides, f"model.lora.rank={rank}")
    assert "are merged into its backbone" in caplog.text
    assert ("new rank 3 adapters are trained" in caplog.text) == (rank == 3)
    before = roll(WorldModel.from_pretrained(adapted))
    torch.testing.assert_close(roll(model), before, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(roll(WorldModel.from_pretrained(tmp_path / "model")), roll(model))
    changed = [
        name
        for name, value in base_of(tmp_path / "model").items()
        if not torch.equal(value, base_of(adapted)[name])
    ]
    assert changed  # the adapters went into the base
    parameters = model.fdm.backbone.named_parameters()
    base = [p for name, p in parameters if "ffn.net.2" in name and "lora" not in name]
    assert [p.requires_grad for p in base] == [rank == 0] * 4


def test_a_fine_tuned_published_backbone_keeps_its_own_weights_under_adapters(
    start: Start, overrides: list[str], tmp_path: Path
) -> None:
    """Full training on a named backbone, then adapters: the base is the trained one, not the named one."""
    published = start("model.seed=4")
    folder = start(f"model.pretrained={published}")
    model = continued(folder, overrides, "model.lora.rank=2")
    assert model.config.pretrained == str(published)
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(roll(WorldModel.from_pretrained(tmp_path / "model")), roll(model))
    kept, base = base_of(folder), base_of(tmp_path / "model")
    assert all(torch.equal(base[name], value) for name, value in kept.items())
    assert not torch.equal(base["proj_out.weight"], base_of(published)["proj_out.weight"])


def test_a_new_model_on_the_backbone_of_an_adapted_one_has_the_adapters_in_it(
    adapted: Path, overrides: list[str]
) -> None:
    config = load_config(TrainConfig, CONFIG, [*overrides, f"model.pretrained={adapted}"])
    new = build_model(config, open_index(config.data))
    merged = WorldModel.from_pretrained(adapted)
    merged.merge_adapters()
    weights = new.fdm.backbone.state_dict()
    assert all(torch.equal(weights[name], v) for name, v in merged.fdm.backbone.state_dict().items())
    name = "blocks.0.ffn.net.2.weight"
    assert not torch.allclose(weights[name], base_of(adapted)[name])


def test_a_backbone_can_stay_as_it_is_while_the_rest_trains(whole: Path, overrides: list[str]) -> None:
    model = continued(whole, overrides, "model.trained=interface", "model.mcl.mode=first_order")
    assert not any(p.requires_grad for p in model.fdm.backbone.parameters())
    assert all(p.requires_grad for p in model.interface.parameters())
    assert any(p.requires_grad for p in model.mcl.parameters())


def test_one_robot_switches_its_classifier_off_and_says_so(
    start: Start, overrides: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = start("model.regime=lacg")
    assert WorldModel.from_pretrained(folder).embodiment_classifier is not None
    both = continued(folder, overrides, "model.regime=lacg")
    assert both.embodiment_classifier is not None
    assert "adversarial_weight is taken as 0" not in caplog.text
    one = continued(folder, overrides, "model.regime=lacg", "data.synthetic_embodiments=1")
    assert one.embodiment_classifier is None
    assert "adversarial_weight is taken as 0; add the source robots" in caplog.text
    one.save_pretrained(tmp_path / "model")
    assert WorldModel.from_pretrained(tmp_path / "model").embodiment_classifier is None
