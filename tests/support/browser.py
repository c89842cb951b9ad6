"""A page in headless Chromium, which tells what its videos do; no conditions, no dependency."""

import json
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# Plays every video for some time of its own and posts what happened.
PROBE = """<script>
async function watch(video) {
  video.scrollIntoView();
  video.currentTime = 0;
  let failure = "";
  try { await video.play(); } catch (error) { failure = String(error); }
  const patience = performance.now() + 20000;
  while (!failure && video.currentTime < 0.1 && performance.now() < patience)
    await new Promise(done => setTimeout(done, 50));
  return {time: video.currentTime, ready: video.readyState, width: video.videoWidth,
          error: failure || (video.error ? video.error.message : "")};
}
addEventListener("load", async () => {
  const seen = [];
  for (const video of document.querySelectorAll("video")) seen.push(await watch(video));
  const broken = [...document.images].filter(image => !image.naturalWidth).length;
  const wide = document.documentElement.scrollWidth - innerWidth;
  await fetch("/seen", {method: "POST", body: JSON.stringify({videos: seen, broken, wide})});
});
</script>"""


def _with_probe(page: bytes) -> bytes:
    """The page with the probe, which its policy must let run; all else that it forbids stays forbidden."""
    allowed = b"default-src 'none'; script-src 'unsafe-inline'; connect-src 'self';"
    return page.replace(b"default-src 'none';", allowed) + PROBE.encode()


def open_page(chromium: str, page: Path, timeout_s: float = 90) -> dict[str, Any]:
    """{"videos": [{time, ready, width, error}], "broken": images, "wide": pixels beyond the window}."""
    seen: dict[str, Any] = {}
    arrived = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = _with_probe(page.read_bytes()) if self.path == "/" else b""
            self._answer(200 if body else 404, body)

        def do_POST(self) -> None:
            seen.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(200, b"")
            arrived.set()

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with _browser(chromium, f"http://127.0.0.1:{server.server_port}/") as process:
            if not arrived.wait(timeout_s):
                raise TimeoutError(f"{page} told nothing in {timeout_s} s; chromium: {process.poll()}")
    finally:
        server.shutdown()
    return seen


@contextmanager
def _browser(chromium: str, address: str):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--mute-audio", "--no-first-run"]
        size = "--window-size=1280,900"
        command = [chromium, *flags, size, f"--user-data-dir={profile}", address]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)
