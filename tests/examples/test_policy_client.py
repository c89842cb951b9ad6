import threading
from collections.abc import Iterator

import numpy as np
import pytest
from websockets.sync.server import ServerConnection, serve

from examples.policy_client import RemotePolicy, pack, unpack


@pytest.fixture
def url() -> Iterator[str]:
    """A server as openpi's: metadata first, then an answer to every observation."""

    def talk(socket: ServerConnection) -> None:
        assert socket.request is not None
        key = socket.request.headers.get("Authorization", "")
        socket.send(pack({"name": "test", "key": key}))
        for message in socket:
            seen = unpack(message)
            if "fail" in seen:
                socket.send("Traceback ...\nValueError: no such key")
                return  # hangs up
            socket.send(pack({"actions": np.arange(40.0).reshape(10, 4) + seen["offset"]}))

    with serve(talk, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()


def test_actions_come_in_blocks_and_one_by_one(url: str) -> None:
    policy = RemotePolicy(url, rename=lambda seen: {"offset": seen["state"]}, api_key="secret")
    assert policy.metadata == {"name": "test", "key": "Api-Key secret"}
    observation = {"state": np.full(4, 100.0, np.float32), "image": np.zeros((2, 2, 3), np.uint8)}
    np.testing.assert_array_equal(policy.predict_action_chunk(observation)[:, 0], [100, 104, 108, 112])
    singles = [policy.select_action(observation)[0] for _ in range(5)]
    assert singles == [100, 104, 108, 112, 100]
    policy.reset()
    assert policy.select_action(observation)[0] == 100
    policy.close()


def test_a_failing_policy_and_a_missing_server_say_so(url: str) -> None:
    policy = RemotePolicy(url, rename=lambda _: {"fail": 1})
    for _ in range(2):  # the server hangs up, the next call connects anew
        with pytest.raises(ValueError, match="no such key"):
            policy.predict_action_chunk({})
    with pytest.raises(ConnectionError, match="no policy server"):
        RemotePolicy("ws://127.0.0.1:9", timeout_s=2)


def test_arrays_survive_and_objects_do_not() -> None:
    for array in (np.arange(6, dtype=np.uint8).reshape(2, 3), np.float32(2.5) * np.ones(3, np.float32)):
        back = unpack(pack({"x": array}))["x"]
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)
    number = unpack(pack({"x": np.float32(1.5)}))["x"]
    assert (number, number.dtype) == (1.5, np.float32)
    with pytest.raises(TypeError):
        pack({"x": np.array([object()])})
    with pytest.raises(ValueError, match="numbers"):
        unpack(pack({"x": {b"__ndarray__": True, b"data": b"", b"dtype": "|O", b"shape": [0]}}))
