import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from worldmodel import files
from worldmodel.files import check_apart, replaced_folder, write_tensors


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "numbers.json"
    files.write_json(path, {"a": 1})
    assert path.read_text() == '{\n  "a": 1\n}\n'

    def fill_the_disk() -> None:
        with files.atomic_file(path) as temporary:
            temporary.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fill_the_disk()
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert [entry.name for entry in path.parent.iterdir()] == ["numbers.json"]


def test_a_new_folder_appears_when_complete_and_replaces_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def give_up() -> None:
        with files.new_folder(out) as building:
            (building / "half").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        give_up()
    assert not list(tmp_path.iterdir())
    with files.new_folder(out) as building:
        (building / "whole").touch()
        assert not out.exists()
    assert [entry.name for entry in out.iterdir()] == ["whole"]
    with pytest.raises(ValueError, match="out: exists already"), files.new_folder(out):
        pass


def test_a_replacement_that_was_cut_off_is_undone(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (tmp_path / ".model.replaced").mkdir()  # killed between the two renames
    (tmp_path / ".model.replaced" / "mark").touch()
    with pytest.raises(RuntimeError), files.replaced_folder(folder, "mark"):
        raise RuntimeError
    assert (folder / "mark").exists()
    (folder / "mark").rename(folder / "thesis.txt")
    with pytest.raises(ValueError, match="no mark"), files.replaced_folder(folder, "mark"):
        pass


def test_of_two_writers_of_a_new_folder_one_is_refused(tmp_path: Path) -> None:
    def write() -> None:
        with files.new_folder(tmp_path / "out") as building:
            (building / "ours").touch()
            (tmp_path / "out").mkdir()
            (tmp_path / "out/theirs").touch()

    with pytest.raises(ValueError, match=r"out: another process wrote it meanwhile; name a new folder"):
        write()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]


def test_two_writers_of_a_replaced_folder_do_not_mix(tmp_path: Path) -> None:
    """The other one is a process of its own that begins and ends while we write."""
    folder = tmp_path / "model"

    def write_theirs() -> None:
        with files.replaced_folder(folder, "mark") as new:
            (new / "mark").write_text("theirs")
            (new / "other").touch()

    with files.replaced_folder(folder, "mark") as new:
        (new / "mark").write_text("ours")
        other = multiprocessing.get_context("fork").Process(target=write_theirs)
        other.start()
        other.join()
        assert (folder / "mark").read_text() == "theirs"
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "mark"]
    assert (folder / "mark").read_text() == "ours"


def test_weights_that_may_not_be_read_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.safetensors"
    files.write_tensors(path, {"w": torch.ones(2)})
    path.chmod(0)
    if os.access(path, os.R_OK):  # as root, who may read everything
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match=r"weights\.safetensors: no right to read it"):
        files.read_into(torch.nn.Linear(1, 1), path)


def test_a_full_disk_is_an_os_error_and_damage_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    files.write_tensors(path, {"w": torch.arange(6.0).view(2, 3).T})
    assert torch.equal(files.read_tensors(path)["w"], torch.arange(6.0).view(2, 3).T)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match="safetensors is damaged"):
        files.read_tensors(path)
    with pytest.raises(ValueError, match="is missing"):
        files.read_tensors(tmp_path / "none")


def killed_while(action: str, folder: Path) -> None:
    """A process that starts to write in `folder` and dies without a word."""
    code = (
        "import os, signal; from pathlib import Path; from worldmodel import files\n"
        f"folder = Path({str(folder)!r})\n{action}"
    )
    subprocess.run([sys.executable, "-c", code], check=False)


def test_what_a_killed_process_left_is_removed_at_the_next_write(tmp_path: Path) -> None:
    killed_while(
        "with files.new_folder(folder / 'set') as new:\n"
        "    (new / 'half').touch()\n"
        "    with files.atomic_file(folder / 'a.json') as part:\n"
        "        part.touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n",
        tmp_path,
    )
    assert len(list(tmp_path.glob(".*.writing"))) == 2
    foreign = tmp_path / ".b.json.00000000.1.writing"  # of another machine that shares the folder
    alive = tmp_path / f".c.json.{files._MACHINE}.{os.getppid()}.writing"
    mine = tmp_path / ".notes.writing"
    for path in (foreign, alive, mine):
        path.touch()
    files.write_json(tmp_path / "new.json", {})
    assert {path.name for path in tmp_path.iterdir()} == {foreign.name, alive.name, mine.name, "new.json"}


def test_a_number_that_another_process_bears_by_now_keeps_no_leftover(tmp_path: Path) -> None:
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)  # it is over, and its number still taken
    begun = Path(f"/proc/{ended}/stat").read_text().rpartition(")")[2].split()[19]
    living = os.getppid()
    numbers = {"reused": f"{living}-7", "ended": f"{ended}-{begun}"}
    numbers["alive"] = f"{living}-{files._begun(living)}"
    for name, number in numbers.items():
        (tmp_path / f".{name}.{files._MACHINE}.{number}.writing").touch()
    files.write_json(tmp_path / "new.json", {})
    os.waitpid(ended, 0)
    assert {path.name.split(".")[1] for path in tmp_path.iterdir() if "writing" in path.name} == {"alive"}
    with files.atomic_file(tmp_path / "other.json") as temporary:
        assert temporary.name.endswith(f".{os.getpid()}-{files._begun(os.getpid())}.writing")


def exit_code_of(action: Callable[[], object]) -> int:
    """Of a forked process: 0 done, 3 refused with a ValueError."""
    process = os.fork()
    if not process:
        try:
            action()
        except ValueError:
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_one_process_at_a_time_writes_to_a_locked_folder(tmp_path: Path) -> None:
    first, second = files.lock_folder(tmp_path), files.lock_folder(tmp_path)
    assert first is second  # asked again, the same process has it already
    assert exit_code_of(lambda: files.lock_folder(tmp_path, wait_s=0.3)) == 3
    del first
    assert exit_code_of(lambda: files.lock_folder(tmp_path, wait_s=0.3)) == 3  # nor did that child open it
    assert list(tmp_path.iterdir()) == []
    del second
    assert exit_code_of(lambda: files.lock_folder(tmp_path, wait_s=0.3)) == 0
    with pytest.raises(OSError, match="No such file"):
        files.lock_folder(tmp_path / "none")


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    process = os.fork()
    if not process:
        held = files.lock_folder(tmp_path)
        (tmp_path / "held").touch()
        time.sleep(0.5)
        os._exit(int(held is None))
    while not (tmp_path / "held").exists():
        time.sleep(0.02)
    assert files.lock_folder(tmp_path, wait_s=60) is not None
    assert os.waitpid(process, 0)[1] == 0


def test_a_link_to_nothing_is_in_the_way_of_a_new_folder(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "none")
    with pytest.raises(ValueError, match="exists already"), files.new_folder(tmp_path / "out"):
        raise AssertionError("the work must not begin")


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2)})
        with replaced_folder(tmp_path / "model", "contract.json") as new:
            (new / "part").mkdir()
            save_file({"a": torch.ones(2)}, new / "part/b.safetensors")
    finally:
        os.umask(before)
    for path in (tmp_path / "a.safetensors", tmp_path / "model/part/b.safetensors"):
        assert path.stat().st_mode & 0o777 == 0o644


def test_an_output_lies_apart_from_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "set/data").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "set")
    for place in ("set", "set/data/new", "link/new", "set/../set/data"):
        with pytest.raises(ValueError, match=r"lies in .*set, which is read; name another place"):
            check_apart(tmp_path / place, tmp_path / "set")
    check_apart(tmp_path / "settings", tmp_path / "set", "")
    check_apart(tmp_path, tmp_path / "set")
