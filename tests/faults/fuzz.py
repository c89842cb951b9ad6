"""Thousands of broken inputs for every reader and every loader of model parts.

python -m tests.faults.fuzz NAME --count 10000 --first 0 --out counts.jsonl

Run again with the same --out it goes on after the inputs that are counted there, up to --count of them.

Each input is a good one with one to three places changed. A reader may refuse it with a ValueError that
names the file, or read it. Anything else (another exception, more than SECONDS, more than MEMORY) is a fault,
and is printed with its seed. `changed` counts inputs that were read with other numbers: formats without
checksums cannot tell.
"""

import argparse
import hashlib
import json
import multiprocessing
import resource
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.targets import TARGETS, Target

SECONDS, MEMORY = 10.0, 1 << 30  # of one input
CHUNK = 250  # inputs that one process reads before a fresh one takes over
ROUND = 1000  # inputs that are counted in one line
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1e300, -1e300, float("nan"), float("inf"), 0.5),
    *("", "x" * 5000, "../../etc/passwd", "/dev/zero", "${oc.env:HOME}", "\x1b[2J\n\0", "NaN"),
    *([], {}, [[]], [0] * 1000, {"a": {"b": {"c": 1}}}),
)


def mutate(content: bytes, suffix: str, generator: np.random.Generator) -> bytes:
    """The content with one to three places changed; JSON mostly by its structure."""
    for _ in range(int(generator.integers(1, 4))):
        if suffix in (".json", ".jsonl") and generator.random() < 0.7:
            content = _mutate_json(content, generator)
        else:
            content = _mutate_bytes(content, generator)
    return content


def _mutate_json(content: bytes, generator: np.random.Generator) -> bytes:
    try:
        value = json.loads(content.splitlines()[0] if content.count(b"\n{") else content)
    except (ValueError, IndexError):
        return _mutate_bytes(content, generator)
    places = list(_places(value))
    if not places:
        return json.dumps(_hostile(generator)).encode()
    holder, key = places[generator.integers(len(places))]
    if generator.random() < 0.25 and isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = _hostile(generator)
    return json.dumps(value).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, entry in list(entries):
        yield value, key
        yield from _places(entry)


def _hostile(generator: np.random.Generator) -> Any:
    return HOSTILE[generator.integers(len(HOSTILE))]


def _mutate_bytes(content: bytes, generator: np.random.Generator) -> bytes:
    changed, size = bytearray(content), len(content)
    way = int(generator.integers(7)) if size else 6
    at = int(generator.integers(size)) if size else 0
    # Headers decide what is done with the rest: half of the changes go there.
    at = at % 256 if generator.random() < 0.5 else at
    if way == 0:
        changed[at] ^= 1 << int(generator.integers(8))
    elif way == 1:
        changed[at : at + 8] = generator.bytes(len(changed[at : at + 8]))
    elif way == 2:
        changed[at : at + 4] = (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff")[generator.integers(3)]
    elif way == 3:
        del changed[at:]
    elif way == 4:
        del changed[at : at + int(generator.integers(1, 64))]
    elif way == 5:
        changed[at:at] = changed[at : at + 64]
    else:
        changed[at:at] = json.dumps(_hostile(generator)).encode()[:64]
    return bytes(changed)


def _read_chunk(target: Target, root: Path, seeds: range, answers: Connection) -> None:
    """In a process of its own: break one file, read, put it back, and say how it went."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and target.breaks(path))
    truth = target.read(root)
    before = _peak()
    for seed in seeds:
        answers.send(("start", seed))
        generator = np.random.default_rng(seed)
        path = files[generator.integers(len(files))]
        whole = path.read_bytes()
        path.write_bytes(mutate(whole, path.suffix, generator))
        try:
            outcome = ("same" if target.read(root) == truth else "changed"), path.name
        except ValueError as error:
            outcome = ("refused" if root.name in str(error) else "unnamed"), f"{path.name}: {error}"[:300]
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome = "crashed", f"{path.name}: {type(error).__name__}: {error} at {where}"[:400]
        path.write_bytes(whole)
        if _peak() - before > MEMORY:
            outcome, before = ("memory", f"{path.name}: {(_peak() - before) / 1e9:.1f} GB"), _peak()
        answers.send(("done", *outcome))
    answers.send(("end",))


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def fuzz(name: str, first: int, count: int, seconds: float = float("inf")) -> tuple[Counter[str], list[str]]:
    """Outcomes of inputs `first` .. `first + count`, as many as time allows; faults with their seeds."""
    target, counts, faults = TARGETS[name], Counter[str](), []
    started, seed = time.monotonic(), first
    with tempfile.TemporaryDirectory(prefix=f"fuzz_{name}_") as folder:
        root = Path(folder) / f"set_{name}"
        target.make(root)
        while seed < first + count and time.monotonic() - started < seconds:
            stop = min(seed + CHUNK, first + count)
            seed = _run_chunk(target, root, range(seed, stop), counts, faults)
    return counts, faults


def _run_chunk(target: Target, root: Path, seeds: range, counts: Counter[str], faults: list[str]) -> int:
    """The first seed that is still to do: after the chunk, or after one that ended its process."""
    content = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_read_chunk, args=(target, root, seeds, theirs), daemon=True
    )
    process.start()
    theirs.close()
    seed, outcome = seeds.start, ("crashed", "died before the first input")
    try:
        while True:
            # Loaded machines stand still for a while: what counts as a hang is the time of the process.
            if not _wait(ours, process.pid or 0):
                outcome = ("hung", f"more than {SECONDS} s")
                break
            kind, *rest = ours.recv()
            if kind == "end":
                process.join()
                return seeds.stop
            if kind == "start":
                seed, outcome = rest[0], ("crashed", "the process died")
                continue
            _count(seed, (rest[0], rest[1]), counts, faults)
            outcome = ("crashed", "died between inputs")
    except EOFError:
        pass
    process.kill()
    process.join()
    _count(seed, outcome, counts, faults)
    for path, data in content.items():
        path.write_bytes(data)
    return seed + 1


def _wait(answers: Connection, process: int) -> bool:
    """Whether an answer came before the process used up its time, or ten minutes went by."""
    begun, used = time.monotonic(), _cpu_seconds(process)
    while time.monotonic() - begun < 60 * SECONDS:
        if answers.poll(0.5):
            return True
        if _cpu_seconds(process) - used > SECONDS:
            return False
        if time.monotonic() - begun > 3 * SECONDS and _cpu_seconds(process) == used and _sleeps(process):
            return False  # waits for something that does not come
    return False


def _cpu_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100


def _sleeps(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"
    except OSError:
        return True


def _count(seed: int, outcome: tuple[str, str], counts: Counter[str], faults: list[str]) -> None:
    counts[outcome[0]] += 1
    if outcome[0] in ("crashed", "hung", "memory", "unnamed"):
        faults.append(f"seed {seed}: {outcome[0]}: {outcome[1]}")


def digest(*values: Any) -> str:
    """Of arrays and plain values."""
    found = hashlib.sha256()
    for value in values:
        found.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return found.hexdigest()


def _fuzz_until(name: str, arguments: argparse.Namespace) -> None:
    """Rounds of one reader until `--count` inputs of it are counted."""
    first, stop = _counted(name, arguments), arguments.first + arguments.count
    started = time.monotonic()
    while first < stop and (left := arguments.seconds - time.monotonic() + started) > 0:
        counts, faults = fuzz(name, first, min(ROUND, stop - first), left)
        line = {"reader": name, "first": first, "inputs": sum(counts.values()), **counts}
        print(json.dumps(line), *faults[:20], sep="\n", flush=True)
        first += sum(counts.values())
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(json.dumps({**line, "faults": faults[:50]}) + "\n")


def _counted(name: str, arguments: argparse.Namespace) -> int:
    """The first input that no line of the reader in `--out` counts."""
    if not arguments.out or not arguments.out.exists():
        return int(arguments.first)
    lines = map(json.loads, arguments.out.read_text().splitlines())
    ends = [line["first"] + line["inputs"] for line in lines if line["reader"] == name]
    return int(max([arguments.first, *ends]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=[*TARGETS, "all"])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each reader")
    parser.add_argument("--out", type=Path, help="JSON lines to add the counts to")
    arguments = parser.parse_args()
    names = list(TARGETS) if "all" in arguments.names else arguments.names
    for name in names:
        _fuzz_until(name, arguments)


if __name__ == "__main__":
    main()
