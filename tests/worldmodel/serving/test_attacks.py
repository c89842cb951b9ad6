"""Clients that cost the service more than themselves: large nonsense, half requests, deaf sessions."""

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI

from tests.support.service import running
from tests.worldmodel.serving.test_service import post, request, sample
from worldmodel.environments.spaces import WorldSpec
from worldmodel.serving import connections
from worldmodel.serving.app import create_app
from worldmodel.serving.client import WorldModelClient
from worldmodel.serving.config import ServeConfig
from worldmodel.serving.run import serve_model

MOST = ServeConfig().max_request_bytes - 1024
HEAD = f'{{"api_version":"1.0","request_id":"{uuid.uuid4()}","model_version":"x","profile_id":"y","samples":'
HANDSHAKE = (
    b"GET /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
FEW = 16_000  # lists or names that pass the first look
BODIES = {
    "bad numbers": HEAD + '[{"actions":[[' + '"x",' * (MOST // 4 - 100) + "1]]}]}",
    "bad rows": HEAD + '[{"actions":[' + '["x"],' * FEW + "[1]]}]}",
    "samples": HEAD + "[" + "{}," * 260_000 + "{}]}",
    "names": "{" + ",".join(f'"{number}":[]' for number in range(FEW)) + "}",
    "depth": HEAD + "[" * (MOST - 200),
    "digits": HEAD + "1" * (MOST - 200) + "}",
    "escapes": '{"request_id":"' + r"\n" * (MOST // 2) + '"}',
}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return create_app(serve_model("desk"))


@contextlib.contextmanager
def measured() -> Iterator[list[float]]:
    """Afterwards: CPU seconds of this process, and MB that were taken at most."""
    status = Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest size so far
    sizes = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+)", status.read_text()))
    began, found = time.process_time(), [0.0, 0.0]
    yield found
    peak = int(re.findall(r"VmHWM:\s+(\d+)", status.read_text())[0])
    found[:] = time.process_time() - began, (peak - int(sizes["VmRSS"])) / 1000


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory as Linux counts it")
def test_what_will_be_refused_is_refused_cheaply(app: FastAPI) -> None:
    with running(app) as address:
        for name, text in BODIES.items():
            body = text.encode()
            with measured() as cost:
                status, answer = post(address, body)
            assert status == 400, name
            assert answer["error"]["code"] == "INVALID_ARGUMENT", name
            # CPU time of both sides: .4 s at most; before, 9 s and 2.7 GB for a tenth of the body.
            assert cost[0] < 1, (name, cost)
            assert cost[1] < 200, (name, cost)


def test_bodies_that_arrive_slowly_share_a_bound(app: FastAPI) -> None:
    limit = 1 << 20
    app = create_app(
        app.state.service.predictor.served, ServeConfig(max_request_bytes=limit, max_concurrency=2)
    )
    with running(app) as address, contextlib.ExitStack() as open_sockets:
        for _ in range(10):
            client = open_sockets.enter_context(_connected(address))
            client.sendall(_head(limit) + b"x" * (limit - 10))
        until = time.monotonic() + 10
        while app.state.service.held < limit and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)
        assert app.state.service.held <= 2 * limit
        status, answer = post(address, b"x" * 1000)
        assert (status, answer["error"]["code"]) == (429, "OVERLOADED")
    assert app.state.service.held == 0


@pytest.mark.parametrize("part", [b"GET /v1/health HTTP/1.1\r\nHost: 127", None], ids=["head", "body"])
def test_half_requests_give_way_to_whole_ones(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, part: bytes | None
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    with running(app) as address, contextlib.ExitStack() as open_sockets:
        clients = [open_sockets.enter_context(_connected(address)) for _ in range(60)]
        for client in clients:
            with contextlib.suppress(ConnectionError):  # others have taken its place
                client.sendall(part or _head(1000) + b"{")
        with urllib.request.urlopen(f"{address}/v1/health", timeout=1) as answer:
            assert json.load(answer)["status"] == "ready"
        gone = [client for client in clients if _is_closed(client)]
        assert len(gone) >= 40


def test_a_session_that_never_reads_frees_its_slot(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.3)
    desk = app.state.service.desk
    nonsense = json.dumps({"type": "\U0001f600" * 380}).encode()
    frame = b"\x81\xfe" + struct.pack(">H", len(nonsense)) + bytes(4) + nonsense  # masked by zeros
    with running(app) as address, socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = address.removeprefix("http://").split(":")
        raw.connect((host, int(port)))
        raw.settimeout(10)
        raw.sendall(HANDSHAKE)
        assert raw.recv(12) == b"HTTP/1.1 101"
        with contextlib.suppress(ConnectionError):  # the connection is cut
            for _ in range(20_000):
                raw.sendall(frame)
        until = time.monotonic() + 10
        while desk.num_open and time.monotonic() < until:
            time.sleep(0.05)
        assert desk.num_open == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("actions", [[1e308] * 16]), ("camera", "zero"), ("camera", "far")],
)
def test_impossible_numbers_are_refused(app: FastAPI, field: str, value: Any) -> None:
    served = app.state.service.predictor.served
    one = sample(WorldSpec.of(served.model.contract, served.model.normalizer), num_actions=1)
    if field == "actions":
        one["actions"] = value
    else:
        matrix = np.zeros((3, 4)) if value == "zero" else np.full((3, 4), 1e300)
        one["context"]["camera"] = {"intrinsics": matrix[:, :3].tolist(), "extrinsics": matrix.tolist()}
    with running(app) as address:
        status, answer = post(address, request(WorldModelClient(address), [one]))
    assert (status, answer["error"]["retryable"]) == (400, False)
    assert field in answer["error"]["message"]


@pytest.mark.slow
def test_health_answers_beside_1100_half_requests() -> None:
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)); "
    code += "from worldmodel.cli import main; sys.exit(main(['serve', 'desk', '--port', '0']))"
    attack = "import socket, sys, time\nopen_sockets = []\n"
    attack += "for _ in range(int(sys.argv[2])):\n"
    attack += "    one = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    attack += "    one.sendall(b'GET /v1/health HTTP/1.1\\r\\nHost: 127')\n    open_sockets.append(one)\n"
    attack += "print('open', flush=True)\ntime.sleep(60)"
    with contextlib.ExitStack() as programs:
        served = programs.enter_context(_program("-c", code))
        address = re.findall(r"http://[\d.:]+", served.stdout.readline())[0]
        port = address.rsplit(":", 1)[1]
        for _ in range(2):  # a process has 1,024 open files itself
            attacker = programs.enter_context(_program("-c", attack, port, "550"))
            assert attacker.stdout.readline() == "open\n"
        for _ in range(5):
            with urllib.request.urlopen(f"{address}/v1/health", timeout=1) as answer:
                assert json.load(answer)["status"] == "ready"


@contextlib.contextmanager
def _program(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    program = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield program
    finally:
        os.kill(program.pid, signal.SIGKILL)
        program.wait()


def _connected(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def _head(length: int) -> bytes:
    lines = ["POST /v1/predict HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


def _is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
