"""Drives the page for a while in a headless browser and measures what a visitor would experience.

    python docs/play/measure_page.py [--model desk] [--seconds 60] [--seed 0] [--out FILE]

The server is a separate process. Keys of both arms are held at random. Reported are the frame rate and the
delay that the page itself shows, the memory growth of the server and of the page, and how far the grippers
have drifted from the simulator's.
"""

import argparse
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from eval.bench.drive import HOLD, errors_at_marks, random_keys
from tests.support.chromium import chromium
from worldmodel.files import write_json

# The page's keys by hand and axis: right, up, height, opening; each for -1 and 1.
KEYS = [["ad", "sw", "qe", "fr"], ["jl", "ki", "uo", "hy"]]
SAMPLES = 12  # number of measurements of rates and memory
WATCH = """
window.log = [];
const was = read;
read = header => {
  was(header);
  const {gap, error, distrust, frames} = header.reading || {};
  if (header.type === "frames" && gap) log.push({gap, error, distrust, frames, delay: play.delays.at(-1)});
};"""


def hold(browser: Any, rng: np.random.Generator, sides: int) -> None:
    """Release all keys and hold others."""
    from selenium.webdriver import ActionChains

    chosen = [
        keys[axis][int(value > 0)]
        for keys in KEYS[:sides]
        for axis, value in enumerate(random_keys(rng))
        if value
    ]
    actions = ActionChains(browser, duration=0)
    for key in "".join("".join(keys) for keys in KEYS):
        actions.key_up(key)
    for key in chosen:
        actions.key_down(key)
    actions.perform()


def look(browser: Any, server: int) -> dict[str, Any]:
    """What the page shows now, and the memory of server and page (MB)."""
    status = Path(f"/proc/{server}/status").read_text()
    browser.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    heap = next(entry["value"] for entry in metrics if entry["name"] == "JSHeapUsedSize")
    shown = browser.execute_script("return ['fps', 'delay'].map(id => $(id).textContent)")
    return {
        "s": round(browser.execute_script("return play.made / play.info.fps"), 1),
        "frames per second": float(shown[0]),
        "delay ms": int(shown[1].split()[0]),
        "server MB": round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1),
        "page MB": round(heap / 1e6, 2),
    }


def drive(browser: Any, server: int, seed: int, seconds: float) -> dict[str, Any]:
    """One drive from a new scene."""
    rng = np.random.default_rng(seed)
    browser.execute_cdp_cmd("Performance.enable", {})
    browser.execute_script("play.touched = true; play.follow = false;" + WATCH + f"reset({seed});")
    block_s = 4 / browser.execute_script("return play.info.fps")
    sides, first = (
        browser.execute_script(f"return {what}") for what in ("play.info.sides.length", "play.made")
    )
    blocks, looks = round(seconds / block_s) + 2, []  # the first block may be missing in the log
    for block in range(blocks):
        if block % HOLD == 0:
            hold(browser, rng, sides)
        if block % max(1, blocks // SAMPLES) == 0 or block == blocks - 1:
            looks.append(look(browser, server))
        while browser.execute_script("return play.made") < first + 4 * (block + 1):
            time.sleep(0.03)
    log = browser.execute_script("return log")
    delays = [entry["delay"] for entry in log]
    return {
        "looks": looks,
        "blocks": len(log),
        "delay ms: median, 95 %": np.round(np.quantile(delays, [0.5, 0.95]), 1).tolist(),
        **errors_at_marks([log], block_s),
    }


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="desk")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = "import sys; from worldmodel.cli.play import main; main(sys.argv[1:])"
    given = [arguments.model, "--port", str(port), "--no-browser"]
    server = subprocess.Popen([sys.executable, "-c", start, *given], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()  # the address: the model is loaded
        with chromium() as browser:
            time.sleep(2.0)
            browser.get(f"http://127.0.0.1:{port}/")
            while not browser.execute_script("return window.play && play.made > 8"):
                time.sleep(0.1)
            figures = drive(browser, server.pid, arguments.seed, arguments.seconds)
    finally:
        server.terminate()
        server.wait(20)
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    if arguments.out:
        write_json(arguments.out, figures)


if __name__ == "__main__":
    main()
