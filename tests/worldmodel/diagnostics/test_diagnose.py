from pathlib import Path

import pytest
import torch

from worldmodel.cli import main
from worldmodel.data.dataset import ClipDataset, collate_clips
from worldmodel.diagnostics.diagnose import diagnose_generator, diagnose_world_model, load_generator
from worldmodel.diagnostics.world_model_channel import world_model_channel

FILE = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 10))

def double(z):
    return torch.cat([z, z**2], dim=1)

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "generators.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("name", ["build", "double"])
def test_a_generator_in_a_file_gets_its_page(file: Path, name: str, capsys: pytest.CaptureFixture) -> None:
    page = file.with_name("page.md")
    command = ["diagnose", f"{file}:{name}", "--blocks", "2", "1", "--points", "4", "--out", str(page)]
    assert main(command) == 0
    text = page.read_text()
    assert "3 latent coordinates in 2 blocks" in text
    holds = "| Type D: shared outputs | 0 |" in text
    assert holds == (name == "double")
    assert f"wrote {page}" in capsys.readouterr().out


def test_bad_names_end_with_one_line(file: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["diagnose", f"{file}:missing", "--blocks", "1", "--out", str(file.with_suffix(".md"))]) == 2
    assert "has no 'missing'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="expected a callable"):
        load_generator(f"{file}:number")
    with pytest.raises(ValueError, match="cannot import"):
        load_generator("no.such.module:thing")
    with pytest.raises(ValueError, match="block sizes are positive"):
        diagnose_generator(f"{file}:double", file.with_suffix(".md"), block_sizes=[])


def test_a_world_model_answers_to_its_actions(make_world_model, randomise, clips: ClipDataset) -> None:
    model = make_world_model().eval()
    randomise(model.interface)
    batch = collate_clips([clips[i] for i in range(2)])
    assert batch.frames is not None
    generate = world_model_channel(model, batch.frames[:, :1], num_inference_steps=2)
    noise = torch.randn(2, model.contract.latent_channels, *model.contract.latent_grid)
    with torch.no_grad():
        first = generate(noise, batch.robot_actions)
        second = generate(noise, -batch.robot_actions)
    assert first.shape == (2, 12, 3, 32, 32)
    assert (first - second).abs().max() > 0
    with pytest.raises(ValueError, match="training mode"):
        world_model_channel(model.train(), batch.frames[:, :1])


def test_the_page_of_a_world_model_needs_names_of_arms(
    make_world_model, clips: ClipDataset, tmp_path: Path
) -> None:
    batch = collate_clips([clips[0]])
    with pytest.raises(ValueError, match="begin with left and right"):
        diagnose_world_model(make_world_model(), batch, tmp_path / "page.md")
