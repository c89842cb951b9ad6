"""The page's server beside the page: messages that no page sends, and other hosts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from worldmodel.serving.play.app import PlayServer, create_play_app

ODD = [
    "[1]",
    "5",
    "null",
    "{}",
    "[" * 60_000,
    '{"type": "load", "episode": 1e999, "frame": 0}',
    '{"type": "reset", "seed": 1e999}',
    '{"type": "step", "hands": 5}',
    '{"type": "step", "hands": [[1]]}',
    '{"type": "step", "sliders": {"1e": 1}}',
    '{"type": "step", "hold": 7}',
    f'{{"type": "reset", "seed": {"9" * 5000}}}',
]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TestClient:
    monkeypatch.setattr(PlayServer, "describe", lambda *_: {})
    game: Any = SimpleNamespace(reset=lambda _: None, load=lambda *_: None, back=lambda: None, measure=dict)
    game.spec, game.size = SimpleNamespace(embodiment="heron"), (64, 64)
    server = PlayServer(lambda: game, "desk", tmp_path)
    return TestClient(create_play_app(server), base_url="http://127.0.0.1:8200")


def test_odd_messages_leave_the_game_open(client: TestClient) -> None:
    with client.websocket_connect("ws://127.0.0.1:8200/play") as page:
        page.receive_bytes()
        for text in ODD:
            page.send_text(text)
            assert b'"type": "error"' in page.receive_bytes(), text
        page.send_bytes(b"\x00")
        assert b'"type": "error"' in page.receive_bytes()
        page.send_text('{"type": "reset", "seed": 1}')
        assert b'"type": "scene"' in page.receive_bytes()


@pytest.mark.parametrize("address", ["/", "/page.js", "/saved/drive-1.mp4"])
def test_other_hosts_get_nothing(client: TestClient, address: str) -> None:
    assert client.get(address, headers={"Host": "elsewhere.example"}).status_code == 400
    assert client.get(address).status_code != 400
