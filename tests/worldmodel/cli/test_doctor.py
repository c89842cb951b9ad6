"""`worldmodel doctor` on a healthy installation and on broken ones: each fault is named, with a remedy."""

import errno
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from worldmodel import files
from worldmodel.cli import installation
from worldmodel.cli.doctor import main
from worldmodel.cli.installation import Finding, check_installation
from worldmodel.shipped import WEIGHTS

Usage = namedtuple("Usage", "total used free")


def states(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.state for finding in findings}


def broken(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings if finding.state == "broken"}


@pytest.fixture
def doctor(tmp_path: Path) -> Callable[[], dict[str, Finding]]:
    return lambda: broken(check_installation(tmp_path / "outputs"))


def test_a_healthy_installation(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["--output", str(tmp_path / "outputs"), "--model", "desk"]) == 0
    said = capsys.readouterr().out
    assert "everything that is needed works" in said
    assert "weights desk" in said
    assert "nothing from elsewhere" in said
    assert not (tmp_path / "outputs").exists()  # looking leaves nothing behind


def test_a_package_of_a_wrong_version_and_one_that_is_missing(monkeypatch, doctor) -> None:
    versions = {"torch": "1.13.1", "einops": None}

    def version(name: str) -> str:
        if name in versions and versions[name] is None:
            raise installation.metadata.PackageNotFoundError(name)
        return versions.get(name) or real(name)

    real = installation.metadata.version
    monkeypatch.setattr(installation.metadata, "version", version)
    found = doctor()
    assert found.keys() == {"torch", "einops"}
    assert "version 1.13.1, expected <2.14,>=2.10" in found["torch"].line()
    assert 'pip install "einops>=0.8"' in found["einops"].line()


def test_a_library_that_cannot_be_loaded(monkeypatch, doctor) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    found = doctor()
    assert "h5py" in found
    assert "Needed for RoboTwin files: install h5py again" in found["h5py"].line()


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path: Path, capsys) -> None:
    def read_only(path: Path, text: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(files, "write_text", read_only)
    assert main(["--output", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "Read-only file system. Name a folder that you may write to" in said
    assert "checks failed" in said


def test_a_disk_and_a_memory_that_are_full(monkeypatch, doctor) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 10**6))
    monkeypatch.setattr(installation, "available_memory", lambda: 1e8)
    found = doctor()
    assert found.keys() == {"memory", "output", "scratch"}
    assert "Free some space" in found["output"].line()


def test_shipped_weights_that_are_cut_off(monkeypatch, tmp_path: Path, doctor) -> None:
    shutil.copytree(WEIGHTS, tmp_path / "weights")
    path = tmp_path / "weights/desk/small.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    (tmp_path / "weights/locator/locator.safetensors").unlink()
    monkeypatch.setattr(installation, "WEIGHTS", tmp_path / "weights")
    found = doctor()
    assert found.keys() == {"weights desk", "weights locator"}
    assert "small.safetensors is damaged" in found["weights desk"].found


def test_an_encoder_that_is_missing_does_not_hide_the_rest(monkeypatch, tmp_path: Path) -> None:
    from worldmodel.data import video

    def no_encoder(*_: object) -> int:
        raise RuntimeError("Unknown encoder 'libx264'")

    monkeypatch.setattr(video, "write_video", no_encoder)
    found = check_installation(tmp_path / "outputs")
    assert "libx264" in broken(found)["video"].found
    assert states(found)["presets"] == "ok"


def test_a_driver_that_torch_cannot_use(monkeypatch, tmp_path: Path) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n")
    monkeypatch.setattr(installation, "DRIVER", driver)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (found,) = installation.check_device()
    assert "driver 535.183.01, torch " in found.line()
    assert "CUDA 13 needs driver 580" in found.line()


def test_a_transformers_that_loses_the_embeddings_of_the_text_encoder(monkeypatch) -> None:
    from transformers import UMT5EncoderModel

    (found,) = installation.check_text_encoder()
    assert found.state == "ok", found.line()
    load = UMT5EncoderModel.from_pretrained

    def forgets(folder: str) -> UMT5EncoderModel:
        model = load(folder)
        model.encoder.embed_tokens.weight = type(model.shared.weight)(model.shared.weight * 0)
        return model

    monkeypatch.setattr(UMT5EncoderModel, "from_pretrained", forgets)
    (found,) = installation.check_text_encoder()
    assert found.state == "broken"
    assert "wrong embeddings" in found.line()


def test_a_disk_too_small_for_the_large_model_is_named(monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 20 * 10**9))
    (found,) = installation.check_hub_cache()
    assert "20.0 GB free. Wan 1.3B takes 30 GB here" in found.line()
