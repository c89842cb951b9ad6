from pathlib import Path

import pytest

from worldmodel.checkpoint.folder import locate
from worldmodel.hub import find_part
from worldmodel.shipped import PRESETS, WEIGHTS, find_config, find_weights, preset_names


def test_presets_are_found_by_name_and_files_come_first(tmp_path: Path, monkeypatch) -> None:
    assert "debug/world_model" in preset_names()
    for name in ("debug/world_model", "debug/world_model.yaml", "configs/debug/world_model.yaml"):
        monkeypatch.chdir(tmp_path)
        assert find_config(name) == PRESETS / "debug/world_model.yaml"
    (tmp_path / "mine.yaml").touch()
    assert find_config(str(tmp_path / "mine.yaml")) == tmp_path / "mine.yaml"
    for wrong in ("debug/world_modl", "../debug/world_model", "nothing"):
        with pytest.raises(ValueError, match="no preset of this name"):
            find_config(wrong)


def test_shipped_weights_have_names_and_folders_come_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("desk") == find_weights("worldmodel/weights/desk") == WEIGHTS / "desk"
    (tmp_path / "desk").mkdir()
    assert find_weights("desk") == Path("desk")
    assert find_weights("../weights/locator") == Path("../weights/locator")


def test_a_shipped_part_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (find_part("worldmodel/weights/desk/vae", "vae") / "config.json").is_file()
    assert (find_part("worldmodel/weights/desk", "transformer") / "config.json").is_file()
