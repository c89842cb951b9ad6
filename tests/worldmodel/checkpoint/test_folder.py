import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file

from tests.support.tiny_wan import tiny_wan
from worldmodel.checkpoint.folder import LORA_FILE
from worldmodel.desk.small_net import SmallNetConfig
from worldmodel.mcl.config import ActionMclConfig
from worldmodel.models.actions.interface import ActionConfig
from worldmodel.models.actions.tokens import TokensConfig
from worldmodel.models.backbone import LoraConfig, build_wan
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import Actions

FRESH_PROCESS = """
import sys
from safetensors.torch import load_file, save_file
import torch
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.types import Actions
torch.set_num_threads(1)
folder, inputs, output = sys.argv[1:]
call = load_file(inputs)
video = RolloutPipeline(WorldModel.from_pretrained(folder)).rollout(
    call["frames"], Actions(call["actions"]), num_inference_steps=2,
    generator=torch.Generator().manual_seed(0))
save_file({"frames": video.frames}, output)
"""


@pytest.fixture
def trained(make_world_model, randomize):
    def make(**options):
        model = make_world_model(**options)
        for part in model.parts().values():
            randomize(part)
        for name, parameter in model.fdm.backbone.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
        return model

    return make


def roll(model, batch) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    call = {"num_inference_steps": 2, "generator": generator}
    return RolloutPipeline(model).rollout(batch.frames[:, :1], Actions(batch.robot_actions), **call).frames


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("regime", ["no_action", "acg", "lacg"])
def test_folder_gives_the_same_model_back(trained, batch, tmp_path, regime, rank):
    mcl = None if regime == "no_action" else ActionMclConfig()
    actions = ActionConfig(tokens=None if regime == "no_action" else TokensConfig())
    options = {"small": SmallNetConfig(), "actions": actions, "mcl": mcl}
    model = trained(regime=regime, lora=LoraConfig(rank=rank), **options)
    model.save_pretrained(tmp_path / "model")
    loaded = WorldModel.from_pretrained(tmp_path / "model")
    assert loaded.config == model.config
    assert loaded.contract == model.contract
    assert loaded.normalizer.to_dict() == model.normalizer.to_dict()
    expected, got = model.state_dict(), loaded.state_dict()
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert torch.equal(roll(loaded, batch), roll(model, batch))
    kinds = {path.suffix for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert kinds == {".md", ".yaml", ".json", ".safetensors"}


def test_fresh_process_gives_the_same_frames(trained, batch, tmp_path):
    torch.set_num_threads(1)
    model = trained(regime="lacg", lora=LoraConfig(rank=2))
    model.save_pretrained(tmp_path / "model")
    inputs = {"frames": batch.frames[:, :1].contiguous(), "actions": batch.robot_actions}
    save_file(inputs, tmp_path / "in.safetensors")
    arguments = [str(tmp_path / name) for name in ("model", "in.safetensors", "out.safetensors")]
    subprocess.run([sys.executable, "-c", FRESH_PROCESS, *arguments], check=True)
    # CPU kernels may choose another path for another memory alignment, which moves the last bit of a float.
    frames = load_file(tmp_path / "out.safetensors")["frames"]
    torch.testing.assert_close(frames, roll(model, batch), rtol=0, atol=2e-6)


def test_saved_transformer_is_a_plain_wan(trained, tmp_path):
    trained(regime="acg", lora=LoraConfig(rank=2)).save_pretrained(tmp_path / "model")
    loaded = WanTransformer3DModel.from_pretrained(tmp_path / "model" / "transformer")
    expected = build_wan(tiny_wan()).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())


def test_adapters_on_a_named_backbone_are_saved_without_it_and_with_the_action_weights(
    trained, batch, tmp_path
):
    build_wan(tiny_wan(seed=3)).save_pretrained(tmp_path / "base" / "transformer")
    model = trained(regime="acg", pretrained=str(tmp_path / "base"), lora=LoraConfig(rank=2))
    model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model" / "transformer").exists()
    saved = load_file(tmp_path / "model" / "interface.safetensors")
    assert torch.equal(saved["adaln.layers.4.weight"], model.interface.adaln.layers[4].weight)
    assert saved["adaln.layers.4.weight"].abs().max() > 0
    expected = roll(model, batch)
    with pytest.raises(ValueError, match=r"load from elsewhere \(pretrained=.*base\).*--allow-external"):
        WorldModel.from_pretrained(tmp_path / "model")
    allowed = WorldModel.from_pretrained(tmp_path / "model", allow_external=True)
    assert torch.equal(roll(allowed, batch), expected)
    (tmp_path / "base").rename(tmp_path / "moved")
    moved = WorldModel.from_pretrained(tmp_path / "model", pretrained=str(tmp_path / "moved"))
    assert torch.equal(roll(moved, batch), expected)


def test_merged_adapters_give_the_same_frames_and_a_full_folder(trained, batch, tmp_path):
    model = trained(regime="acg", lora=LoraConfig(rank=2))
    expected = roll(model, batch)
    model.merge_adapters()
    assert torch.allclose(roll(model, batch), expected, atol=1e-5)
    whole = trained(regime="acg")
    trains = {name: p.requires_grad for name, p in whole.named_parameters()}
    assert {name: p.requires_grad for name, p in model.named_parameters()} == trains
    model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model" / LORA_FILE).exists()
    loaded = WorldModel.from_pretrained(tmp_path / "model")
    assert torch.equal(roll(loaded, batch), roll(model, batch))
    with pytest.raises(ValueError, match="no adapters to merge"):
        loaded.merge_adapters()


def test_damaged_or_foreign_folders_are_refused_by_name(trained, tmp_path):
    with pytest.raises(ValueError, match="no world model folder at"):
        WorldModel.from_pretrained(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"expected a contract.json in it"):
        WorldModel.from_pretrained(tmp_path)
    folder = tmp_path / "model"
    trained(regime="acg").save_pretrained(folder)
    interface, contract = folder / "interface.safetensors", folder / "contract.json"
    whole, values = interface.read_bytes(), json.loads(contract.read_text())

    def refused(message: str) -> None:
        with pytest.raises(ValueError, match=message):
            WorldModel.from_pretrained(folder)

    interface.write_bytes(whole[: len(whole) // 2])
    refused("interface.safetensors is damaged")
    interface.unlink()
    refused("interface.safetensors is missing")
    tensors = {"null": torch.zeros(48)}
    save_file(tensors, interface)
    refused("interface.safetensors does not fit its config")
    interface.write_bytes(whole)
    contract.write_text(json.dumps({**values, "format": 99}))
    refused("contract.json: expected format 2, got 99")
    contract.write_text(json.dumps({**values, "format": 1}))
    refused(r"contract.json: format 1 was written by worldmodel 0.1 .* alone: install worldmodel==0\.1\.0")
    contract.write_text(json.dumps(values))
    config = folder / "config.yaml"
    settings = config.read_text()
    config.write_text(settings + "prediction: velocity\nscene: false\n")  # as development versions had it
    refused(r"config.yaml: .*prediction.*; if an unreleased version between 0\.1\.0 and 0\.2\.0 saved this")
    config.write_text(settings)
    contract.write_text(json.dumps({**values, "frames": {**values["frames"], "merge": "mean"}}))
    refused("contract.json: frames: merge is 'mean', expected auto or last or sum")
    contract.write_text("{")
    refused("contract.json: not JSON")
    contract.write_text(json.dumps({**values, "frames": {**values["frames"], "width": 64}}))
    refused("expected frames of 32x64 pixels, got 32x32")


def test_a_folder_from_before_aspect_and_merge_were_recorded_has_their_defaults(trained, tmp_path):
    trained(regime="acg").save_pretrained(tmp_path / "model")
    path = tmp_path / "model/contract.json"
    values = json.loads(path.read_text())
    assert (values["frames"].pop("aspect"), values["frames"].pop("merge")) == ("stretch", "last")
    path.write_text(json.dumps(values))
    contract = WorldModel.from_pretrained(tmp_path / "model").contract
    assert (contract.aspect, contract.merge) == ("stretch", "last")


def test_weights_of_another_action_width_are_refused(trained, tmp_path):
    folder = tmp_path / "model"
    trained(regime="acg").save_pretrained(folder)
    contract = json.loads((folder / "contract.json").read_text())
    contract["actions"]["width"] = 8
    (folder / "contract.json").write_text(json.dumps(contract))
    with pytest.raises(
        ValueError, match=r"adaln.layers.0.weight has shape \(256, 24\), expected \(256, 32\)"
    ):
        WorldModel.from_pretrained(folder)


def test_saving_replaces_as_a_whole_or_not_at_all(trained, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    model = trained(regime="acg")
    model.save_pretrained(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    (folder / "old_part.safetensors").write_bytes(b"")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("worldmodel.checkpoint.save_load.write_tensors", fail)
        with pytest.raises(OSError, match="disk full"):
            model.save_pretrained(folder)
    assert (folder / "old_part.safetensors").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
    model.save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="it is not overwritten"):
        model.save_pretrained(tmp_path / "mine")


def test_a_hub_id_is_downloaded_and_loads_like_a_folder(trained, batch, tmp_path, monkeypatch):
    model = trained(regime="acg")
    model.save_pretrained(tmp_path / "snapshot")
    asked = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append(name)
        assert not {"*.bin", "*.py", "*"} & set(allow_patterns)
        return str(tmp_path / "snapshot")

    monkeypatch.setattr("worldmodel.checkpoint.folder.snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    loaded = WorldModel.from_pretrained("owner/name")
    assert asked == ["owner/name"]
    assert loaded.normalizer.to_dict() == model.normalizer.to_dict()
    assert torch.equal(roll(loaded, batch), roll(model, batch))
    for path in ("name", "./owner/name", "owner/name/model", str(tmp_path / "nowhere")):
        with pytest.raises(ValueError, match="no world model folder at"):
            WorldModel.from_pretrained(path)
    (tmp_path / "snapshot/contract.json").unlink()
    with pytest.raises(ValueError, match=r"snapshot is not a world model folder: expected a contract\.json"):
        WorldModel.from_pretrained("owner/name")
    assert asked == ["owner/name"] * 2


def test_card_says_what_the_model_takes(trained, tmp_path):
    trained(regime="acg", mcl=ActionMclConfig(mode="detached")).save_pretrained(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    for fact in (
        "library_name: worldmodel",
        "32 x 32 pixels, 16.6667 per second, camera head",
        "joint0, joint1",
    ):
        assert fact in card
    assert "infonce, detached" in card


def test_push_uploads_the_folder(trained, monkeypatch):
    calls = []

    class RecordingApi:
        def create_repo(self, repo_id: str, **options: object) -> None:
            calls.append(("create", repo_id, options))

        def upload_folder(self, repo_id: str, folder_path: Path) -> None:
            calls.append(("upload", repo_id, sorted(path.name for path in folder_path.iterdir())))

    monkeypatch.setattr("worldmodel.checkpoint.save_load.HfApi", RecordingApi)
    trained(regime="no_action").push_to_hub("someone/model", private=True)
    assert calls[0] == ("create", "someone/model", {"private": True, "exist_ok": True})
    assert calls[1][:2] == ("upload", "someone/model")
    assert {"README.md", "config.yaml", "contract.json", "transformer", "vae"} <= set(calls[1][2])
