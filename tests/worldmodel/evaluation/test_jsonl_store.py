import json
import multiprocessing

import pytest

from worldmodel.evaluation.jsonl_store import RecordLines, read_records

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


def test_a_second_record_of_a_key_takes_the_place_of_the_first(tmp_path):
    path = tmp_path / "cells.jsonl"
    lines = RecordLines(path, SETTINGS)
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        lines.add(key, {"x": value})
    assert read_records(path) == {"a": {"x": 3}, "b": {"x": 2}} == RecordLines(path, SETTINGS).records
    assert len(path.read_text().splitlines()) == 3


def test_results_are_read_while_a_line_is_written(tmp_path):
    path = tmp_path / "cells.jsonl"
    RecordLines(path, SETTINGS).add("a", {"x": 1})
    with path.open("a") as file:
        file.write('{"key": "b", "rec')
    assert read_records(path) == {"a": {"x": 1}}
    with pytest.raises(ValueError, match="no results at "):
        read_records(tmp_path / "other.jsonl")


def add_many(path, name):
    lines = RecordLines(path, {})
    for number in range(40):
        lines.add(f"{name}{number}", {"x": [number] * 5000})


def test_processes_add_to_one_file_without_mixing_their_lines(tmp_path):
    path = tmp_path / "cells.jsonl"
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=add_many, args=(path, name)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = read_records(path)
    assert len(found) == 120
    assert all(record["x"] == [int(key[1:])] * 5000 for key, record in found.items())


def test_items_that_others_added_survive_a_second_record_of_a_key(tmp_path):
    path = tmp_path / "cells.jsonl"
    ours, theirs = RecordLines(path, SETTINGS), RecordLines(path, SETTINGS)
    ours.add("a", {"x": 1})
    theirs.add("b", {"x": 2})
    ours.add("a", {"x": 3})
    theirs.add("c", {"x": 4})
    assert read_records(path) == {"a": {"x": 3}, "b": {"x": 2}, "c": {"x": 4}}


@pytest.mark.parametrize(
    "line", ['{"key": "a"}', '{"record": {}}', '{"key": 1, "record": {}}', "[]", "[" * 9999]
)
def test_lines_that_are_no_items_are_refused_by_number(tmp_path, line):
    path = tmp_path / "cells.jsonl"
    RecordLines(path, SETTINGS).add("a", {"x": 1})
    with path.open("a") as file:
        file.write(line + "\n")
    for read in (read_records, lambda path: RecordLines(path, SETTINGS)):
        with pytest.raises(ValueError, match=r"cells\.jsonl, line 3: "):
            read(path)
