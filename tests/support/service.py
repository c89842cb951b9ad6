"""The service in a thread of the test, on a free port."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from worldmodel.serving.config import ServeConfig
from worldmodel.serving.run import server_config


@contextmanager
def running(app: FastAPI, ws_max_size: int = 16 << 20) -> Iterator[str]:
    """The base address of the running app."""
    server = uvicorn.Server(server_config(app, ServeConfig(port=0, max_request_bytes=ws_max_size)))
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
