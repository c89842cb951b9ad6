"""Collect, train and roll out in a loop, in one process: memory, open and temporary files stay flat.

PYTHONPATH=eval python -m tests.faults.soak --minutes 120 --pause 20 --out soak.jsonl

One line a loop. A pause between loops leaves the machine to others. The first loops warm caches up, so growth
is judged from the fifth one on.
"""

import argparse
import contextlib
import gc
import io
import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import torch

from tests.faults.kills import COMMANDS, prepare

PARTS = ("collect", "encode_latents", "train", "rollouts", "convert")


def measure(started: float, number: int) -> dict[str, float]:
    """What the process holds now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "loop": number,
        "minutes": round((time.monotonic() - started) / 60, 2),
        "cpu_s": round(time.process_time(), 1),
        "rss_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
        "open_files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(multiprocessing.active_children()),
        "temporary": len(os.listdir(tempfile.gettempdir())),
    }


def soak(minutes: float, folder: Path, pause: float, out: Path | None) -> list[dict[str, float]]:
    """Measurements, one a loop, also added to a file as they come."""
    started, lines = time.monotonic(), []
    prepare(folder / "inputs")
    # Other programs use the machine's temporary folder: ours is our own.
    tempfile.tempdir = str(folder / "temporary")
    Path(tempfile.tempdir).mkdir()
    while time.monotonic() - started < 60 * minutes:
        for name in PARTS:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                COMMANDS[name].run(folder / "inputs", folder / "out")
            shutil.rmtree(folder / "out", ignore_errors=True)
        lines.append(measure(started, len(lines)))
        print(json.dumps(lines[-1]), flush=True)
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
        time.sleep(pause)
    return lines


def growth(lines: list[dict[str, float]]) -> dict[str, float]:
    """Between the fifth loop and the last, a loop."""
    first, last = lines[min(4, len(lines) - 1)], lines[-1]
    count = max(1.0, last["loop"] - first["loop"])
    return {key: (last[key] - first[key]) / count for key in ("rss_mb", "open_files", "threads", "temporary")}


def draw(lines: list[dict[str, float]], path: Path) -> None:
    """The curves: memory, open files and temporary files over minutes."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(10, 2.6), layout="constrained")
    for axis, key in zip(axes, ("rss_mb", "open_files", "temporary"), strict=True):
        axis.plot([line["minutes"] for line in lines], [line[key] for line in lines])
        axis.set(title=key.replace("_", " "), xlabel="minutes", ylim=(0, None))
        axis.set_ylim(0, 1.3 * max(1.0, *(line[key] for line in lines)))
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--pause", type=float, default=0, help="seconds between two loops")
    parser.add_argument("--out", type=Path, help="JSON lines to add the measurements to")
    parser.add_argument("--draw", type=Path, help="only draw the curves of --out to this picture")
    arguments = parser.parse_args()
    if arguments.draw:
        draw([json.loads(line) for line in arguments.out.read_text().splitlines()], arguments.draw)
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="soak_") as folder:
        lines = soak(arguments.minutes, Path(folder), arguments.pause, arguments.out)
        tempfile.tempdir = None
    print(json.dumps({"growth per loop": growth(lines)}))


if __name__ == "__main__":
    main()
