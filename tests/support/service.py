"""The service in a thread of the test, on a free port."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI


@contextmanager
def running(app: FastAPI, ws_max_size: int = 32 << 20) -> Iterator[str]:
    """The base address of the running app."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="error", ws="websockets-sansio", ws_max_size=ws_max_size
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < until, "the service did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
