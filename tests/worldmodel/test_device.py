import argparse
import contextlib
import io
from typing import get_args

import pytest
import torch
from torch import nn

from worldmodel.cli import COMMANDS, main
from worldmodel.config import add_device
from worldmodel.device import Device, find_device, find_precision, in_float32, inference

# Every command that runs a network; `doctor`, `estimate` and those that read or write files run none.
NETWORKS = (
    *("quickstart", "encode-latents", "train", "train-locator", "train-autoencoder", "train-context"),
    *("train-concepts", "train-vae", "train-identifiability", "rollout", "sensitivity", "score", "submit"),
    *("compare-models", "score-concepts", "diagnose", "serve", "play"),
)


def machine(monkeypatch: pytest.MonkeyPatch, *, gpus: int = 0, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_auto_takes_the_best_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert find_device("auto") == torch.device("cpu")
    machine(monkeypatch, mps=True)
    assert find_device("auto") == torch.device("mps")
    machine(monkeypatch, gpus=2, mps=True)
    assert find_device("auto") == torch.device("cuda", 0)
    assert find_device("cpu") == torch.device("cpu")
    assert find_device(torch.device("meta")) == torch.device("meta")


def test_every_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, gpus=2)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert find_device("cuda") == torch.device("cuda", 1)


def test_what_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    for name in ("cuda", "mps"):
        with pytest.raises(ValueError, match=rf"device={name}, .* finds none: set device=cpu"):
            find_device(name)
    with pytest.raises(ValueError, match="device is auto, cpu, cuda or mps, got 'gpu'"):
        find_device("gpu")


def test_half_precision_is_for_cuda_unless_it_is_set() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [find_precision("auto", device) for device in (cpu, cuda)] == ["no", "bf16"]
    assert [find_precision("no", cuda), find_precision("bf16", cpu)] == ["no", "bf16"]
    layer = nn.Linear(2, 2).train()
    for precision, dtype in (("auto", torch.float32), ("bf16", torch.bfloat16)):
        with inference(layer, cpu, precision):
            assert layer(torch.ones(1, 2)).dtype == dtype
            assert not layer.training
        assert layer.training


def test_what_finds_places_leaves_autocast() -> None:
    class Places(nn.Linear):
        @in_float32
        def forward(self, x: torch.Tensor, *, shift: float = 0.0) -> torch.Tensor:
            return super().forward(x) + shift

    layer, x = Places(64, 64), torch.rand(2, 64)
    plain = layer(x, shift=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x, shift=1.0), plain)
        assert layer(x.bfloat16()).dtype == torch.float32
    assert layer.to("meta")(x.to("meta")).device.type == "meta"


def test_the_flag_has_the_names_of_the_setting() -> None:
    parser = argparse.ArgumentParser()
    add_device(parser)
    (action,) = (action for action in parser._actions if action.dest == "device")
    assert tuple(action.choices or ()) == get_args(Device)
    assert action.default == "auto"


def test_the_list_of_commands_with_networks_is_known() -> None:
    assert set(NETWORKS) <= {command.name for command in COMMANDS}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_command_with_a_network_names_the_device(name: str) -> None:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([name, "--help"])
    assert "device" in text.getvalue()
