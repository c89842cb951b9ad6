"""The service under load from a second process: concurrent requests, memory, and a kill in the middle.

    python eval/bench/service.py [--model desk] [--requests 200] [--out FILE]

All requests start at the same time, each from its own thread. The service holds four at once and rejects the
others with 429; clients retry. Every response is compared with that of the same sample alone.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.cli_errors import one_way_out
from worldmodel.files import write_json
from worldmodel.serving.client import WorldModelClient


def start(model: str, port: int) -> subprocess.Popen[bytes]:
    code = "import sys; from worldmodel.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", model, "--port", str(port)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def memory_mb(process: subprocess.Popen[bytes]) -> float:
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def load(client: WorldModelClient, requests: int, url: str) -> dict[str, Any]:
    profile = client.capabilities()["profiles"][0]
    size, width = profile["image"]["height"], profile["action"]["dimension"]
    first = [np.random.default_rng(i).integers(0, 256, (1, size, size, 3), np.uint8) for i in range(8)]
    commands = np.zeros((4, width))
    expected = [client.predict(frames, commands, seed=i) for i, frames in enumerate(first)]
    right, failures = [], []

    def ask(number: int) -> None:
        own = WorldModelClient(url, patience_s=600)
        own._manifest = client.capabilities()
        try:
            made = own.predict(first[number % 8], commands, seed=number % 8)
            right.append(bool(np.array_equal(made, expected[number % 8])))
        except Exception as error:  # any failure counts
            failures.append(repr(error))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(requests)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "requests": requests,
        "answered": len(right),
        "right": sum(right),
        "lost": failures,
        "seconds": round(time.perf_counter() - began, 1),
    }


def kill_and_go_on(model: str, port: int, process: subprocess.Popen[bytes], url: str) -> dict[str, str]:
    client = WorldModelClient(url, patience_s=120)
    size = client.capabilities()["profiles"][0]["image"]["height"]
    width = client.capabilities()["profiles"][0]["action"]["dimension"]
    session = client.open(np.zeros((1, size, size, 3), np.uint8))
    session.step(np.zeros((4, width)))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    try:
        session.step(np.zeros((4, width)))
        heard = "nothing"
    except ConnectionError as error:
        heard = str(error)
    again = start(model, port)
    client.health()
    session.reopen()
    went_on = session.step(np.zeros((4, width))).shape[0]
    again.terminate()
    again.wait()
    return {"after the kill the client hears": heard, "frames after the restart": str(went_on)}


@one_way_out
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="desk")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = start(arguments.model, port)
    client = WorldModelClient(url, patience_s=300)
    client.health()
    figures: dict[str, Any] = {"memory MB": []}
    for round_number in range(3):
        figures[f"round {round_number}"] = load(client, arguments.requests, url)
        figures["memory MB"].append(round(memory_mb(process)))
    figures |= kill_and_go_on(arguments.model, port, process, url)
    print(json.dumps(figures, indent=2))
    if arguments.out:
        write_json(arguments.out, figures)


if __name__ == "__main__":
    main()
