import json

import pytest

from worldmodel.evaluation.record_lines import RecordLines

SETTINGS = {"seed": 0, "controls": ("zero", "null")}


def test_a_second_run_finds_what_the_first_did(tmp_path):
    path = tmp_path / "deep" / "clips.jsonl"
    RecordLines(path, SETTINGS).add("a", {"x": 1})
    again = RecordLines(path, SETTINGS)
    assert "a" in again
    assert "b" not in again
    again.add("b", {"x": 2})
    assert RecordLines(path, SETTINGS).records == {"a": {"x": 1}, "b": {"x": 2}}


def test_a_line_cut_by_a_kill_is_done_again_and_nothing_else_is_lost(tmp_path):
    path = tmp_path / "clips.jsonl"
    lines = RecordLines(path, SETTINGS)
    lines.add("a", {"x": 1})
    whole = path.read_bytes()
    lines.add("b", {"x": 2})
    full = path.read_bytes()
    for end in range(len(whole), len(full)):
        path.write_bytes(full[:end])
        assert set(RecordLines(path, SETTINGS).records) == {"a"}
        assert path.read_bytes() == whole
    path.write_bytes(b'{"settings')
    assert RecordLines(path, SETTINGS).records == {}


def test_results_of_other_settings_are_not_mixed_in(tmp_path):
    path = tmp_path / "clips.jsonl"
    RecordLines(path, SETTINGS)
    with pytest.raises(ValueError, match=r"clips.jsonl belongs to another run: seed was 0, now 1"):
        RecordLines(path, {**SETTINGS, "seed": 1})


def test_damage_is_named(tmp_path):
    path = tmp_path / "clips.jsonl"
    RecordLines(path, SETTINGS)
    with path.open("a") as file:
        file.write("garbage\n")
    with pytest.raises(ValueError, match="line 2: not JSON"):
        RecordLines(path, SETTINGS)


def test_no_number_that_json_does_not_know(tmp_path):
    lines = RecordLines(tmp_path / "clips.jsonl", SETTINGS)
    with pytest.raises(ValueError, match="not JSON compliant"):
        lines.add("a", {"x": float("nan")})
    assert len((tmp_path / "clips.jsonl").read_text().splitlines()) == 1
    assert json.loads((tmp_path / "clips.jsonl").read_text())["settings"]["controls"] == ["zero", "null"]
