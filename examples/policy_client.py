"""A policy that runs elsewhere: openpi's protocol, msgpack over a websocket.

The server sends its metadata when a client connects. Then every message is an observation, and every answer
holds `actions` [n, a]. Arrays travel as maps with the keys __ndarray__, data, dtype and shape, single numbers
of numpy as maps with __npgeneric__, data and dtype. A text instead of bytes is an error of the policy.
"""

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
from jaxtyping import Float
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

MAX_MESSAGE = 64 << 20  # bytes


def pack(message: dict[str, Any]) -> bytes:
    """A message with arrays as bytes."""
    return msgpack.packb(message, default=_pack_array)


def unpack(data: bytes) -> Any:
    """What `pack` packed; arrays of plain numbers only."""
    return msgpack.unpackb(data, object_hook=_unpack_array)


class RemotePolicy:
    """The policy behind a server, with the three methods that every policy has here.

    Examples:
        >>> from examples.policy_client import RemotePolicy
        >>> policy = RemotePolicy("ws://127.0.0.1:8000")  # doctest: +SKIP
        >>> run_policy(WorldModelEnv(), policy)  # doctest: +SKIP
    """

    def __init__(
        self,
        url: str,
        *,
        block: int = 4,
        rename: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        api_key: str = "",
        timeout_s: float = 60,
    ) -> None:
        """Connect and read the server's metadata.

        Args:
            url: such as ws://127.0.0.1:8000.
            block: actions to take of every answer before the policy is asked again.
            rename: from our observation to the keys that the policy was trained with.
            api_key: sent to the server in openpi's way, `Authorization: Api-Key KEY`; empty: none.
            timeout_s: seconds to wait for an answer.
        """
        self.url, self.block, self.rename, self.timeout_s = url, block, rename, timeout_s
        self._headers = {"Authorization": f"Api-Key {api_key}"} if api_key else None
        self._socket: ClientConnection | None = None
        self._queue: list[np.ndarray] = []
        self.metadata: dict[str, Any] = {}
        self._connect()

    def reset(self) -> None:
        """Forget the actions that were left over."""
        self._queue = []

    def infer(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The server's whole answer."""
        if self._socket is None:
            self._connect()
        assert self._socket is not None
        try:
            self._socket.send(pack(self.rename(observation)))
            answer = self._socket.recv(timeout=self.timeout_s)
        except (ConnectionClosed, OSError, TimeoutError) as error:
            self._socket = None
            raise ConnectionError(
                f"{self.url}: the policy server went away; the next call connects anew"
            ) from error
        if isinstance(answer, str):  # openpi sends its traceback as text and hangs up
            self.close()
            raise ValueError(f"{self.url}: the policy failed: {answer.strip().splitlines()[-1]}")
        return unpack(answer)

    def predict_action_chunk(self, observation: dict[str, Any]) -> Float[np.ndarray, "n a"]:
        """The first `block` actions of a new answer."""
        actions = np.asarray(self.infer(observation)["actions"])
        if actions.ndim != 2 or len(actions) < self.block:
            raise ValueError(
                f"expected {self.block} or more rows of actions, got shape {list(actions.shape)}"
            )
        return actions[: self.block].astype(np.float32)

    def select_action(self, observation: dict[str, Any]) -> Float[np.ndarray, " a"]:
        """The next action; the server is asked when the last block is used up."""
        if not self._queue:
            self._queue = list(self.predict_action_chunk(observation))
        return self._queue.pop(0)

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        try:
            self._socket = connect(
                self.url,
                max_size=MAX_MESSAGE,
                open_timeout=self.timeout_s,
                compression=None,
                additional_headers=self._headers,
            )
        except OSError as error:
            raise ConnectionError(f"{self.url}: no policy server answers: {error}") from error
        greeting = self._socket.recv(timeout=self.timeout_s)
        self.metadata = unpack(greeting) if isinstance(greeting, bytes) else {}


def _pack_array(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        data = np.ascontiguousarray(value).tobytes()
        return {b"__ndarray__": True, b"data": data, b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"cannot send {type(value).__name__}")


def _unpack_array(value: dict[Any, Any]) -> Any:
    found = {key.decode() if isinstance(key, bytes) else key: item for key, item in value.items()}
    if not found.keys() & {"__ndarray__", "__npgeneric__"}:
        return value
    kind = np.dtype(found["dtype"])
    if kind.kind not in "biuf":
        raise ValueError(f"expected an array of numbers, got dtype {kind}")
    if "__npgeneric__" in found:
        return kind.type(found["data"])
    return np.frombuffer(found["data"], kind).reshape(found["shape"])
