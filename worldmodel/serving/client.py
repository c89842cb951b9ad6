"""A Python client of the service: predictions without a session, and streaming sessions."""

import base64
import contextlib
import http.client
import io
import json
import time
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from worldmodel.serving.messages import API_VERSION
from worldmodel.serving.pictures import encode_picture

RETRIED = {429, 502, 503, 504}
MAX_MESSAGE = 64 << 20  # bytes


class RefusedError(ValueError):
    """The service refused a request; `code` is machine-readable."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.code, self.is_retryable = error.get("code", ""), bool(error.get("retryable"))


class WorldModelClient:
    """Client of `worldmodel serve`, or of any service with WorldArena's Track-2 interface.

    Examples:
        >>> from worldmodel.serving.client import WorldModelClient
        >>> client = WorldModelClient("http://127.0.0.1:8100")
        >>> frames = client.predict(first_frame, commands, seed=0)  # doctest: +SKIP
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        profile_id: str = "",
        timeout_s: float = 120,
        patience_s: float = 60,
    ) -> None:
        """Create a client; sends nothing yet.

        Args:
            url: base address, such as http://127.0.0.1:8100.
            token: bearer token, if the service requires one.
            profile_id: one of the service's profiles; empty: its first.
            timeout_s: seconds to wait for a response.
            patience_s: seconds to retry a busy or restarting service.
        """
        self.url, self.token, self.timeout_s, self.patience_s = urlsplit(url), token, timeout_s, patience_s
        self._profile_id, self._manifest = profile_id, dict[str, Any]()

    def health(self) -> dict[str, Any]:
        """Whether the service is ready."""
        return self._ask("GET", "/v1/health")

    def capabilities(self) -> dict[str, Any]:
        """Profiles and limits, requested once."""
        if not self._manifest:
            self._manifest = self._ask("GET", "/v1/capabilities")
        return self._manifest

    @property
    def profile_id(self) -> str:
        """The profile used in requests."""
        return self._profile_id or self.capabilities()["profiles"][0]["profile_id"]

    def predict(
        self,
        frames: UInt8[np.ndarray, "t H W 3"],
        actions: Float[np.ndarray, "n a"],
        *,
        past_actions: Float[np.ndarray, "m a"] | Sequence[Sequence[float]] = (),
        seed: int = 0,
        request_id: str | None = None,
    ) -> UInt8[np.ndarray, "n H W 3"]:
        """Predict one frame for each action."""
        sample = {
            "sample_id": "0",
            "seed": seed,
            "context": _context(frames, past_actions),
            "actions": np.asarray(actions, np.float64).tolist(),
        }
        return self.predict_samples([sample], request_id)[0]

    def predict_samples(
        self, samples: Sequence[dict[str, Any]], request_id: str | None = None
    ) -> list[UInt8[np.ndarray, "n H W 3"]]:
        """Predict samples given in the interface's format; returns frames in the same order."""
        asked = {
            "api_version": API_VERSION,
            "request_id": request_id or str(uuid.uuid4()),
            "model_version": self.capabilities()["model_version"],
            "profile_id": self.profile_id,
            "samples": list(samples),
        }
        answer = self._ask("POST", "/v1/predict", asked)
        return [_pictures(prediction["frames"]) for prediction in answer["predictions"]]

    def open(
        self,
        frames: UInt8[np.ndarray, "t H W 3"],
        *,
        past_actions: Float[np.ndarray, "m a"] | Sequence[Sequence[float]] = (),
        seed: int = 0,
    ) -> "RemoteSession":
        """Open a streaming session that continues these frames."""
        return RemoteSession(self, np.asarray(frames), np.asarray(past_actions, np.float64).tolist(), seed)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request; a busy or absent service is retried for a while with the same request id."""
        until = time.monotonic() + self.patience_s
        payload = None if body is None else json.dumps(body)
        while True:
            try:
                status, answer, wait = self._send(method, path, payload)
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() > until:
                    raise ConnectionError(f"{self.url.geturl()}: no answer: {error}") from error
                status, answer, wait = 503, {}, 0.5
            if status == 200:
                return answer
            if status not in RETRIED or time.monotonic() > until:
                raise RefusedError(answer.get("error", {"code": status, "message": "no explanation"}))
            time.sleep(wait)

    def _send(self, method: str, path: str, payload: str | None) -> tuple[int, dict[str, Any], float]:
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.url.hostname or "", self.url.port, timeout=self.timeout_s)
        try:
            headers = self._headers() | ({"Content-Type": "application/json"} if payload else {})
            connection.request(method, self.url.path.rstrip("/") + path, payload, headers)
            response = connection.getresponse()
            wait = float(response.getheader("Retry-After") or 0.2)
            return response.status, json.loads(response.read()), min(wait, 0.5)
        except json.JSONDecodeError as error:
            raise ConnectionError("the answer was cut off") from error
        finally:
            connection.close()


class RemoteSession:
    """A session of the service. It keeps the newest frames, so that it can be reopened after a restart."""

    def __init__(
        self, client: WorldModelClient, frames: np.ndarray, past_actions: list[list[float]], seed: int
    ) -> None:
        self.client, self.seed = client, seed
        self.frames, self.actions = frames, past_actions
        self._keep = len(frames)
        self._socket: ClientConnection | None = None
        self.reopen()

    def step(self, actions: Float[np.ndarray, "n a"]) -> UInt8[np.ndarray, "n H W 3"]:
        """One frame for each action; their number is a multiple of the service's block."""
        rows = np.asarray(actions, np.float64).tolist()
        answer = self._talk({"type": "step", "step_id": self._next, "actions": rows})
        made = _pictures(answer["frames"])
        self._next += 1
        self.frames = np.concatenate([self.frames, made])[-self._keep :]
        self.actions = (self.actions + rows)[len(self.actions) + len(rows) - self._keep + 1 :]
        return made

    def reopen(self) -> None:
        """Open a new session from the newest frames, for instance after a restart of the service."""
        self.close()
        base = self.client.url
        scheme = "wss" if base.scheme == "https" else "ws"
        address = f"{scheme}://{base.netloc}{base.path.rstrip('/')}/v1/session"
        try:
            self._socket = connect(
                address,
                additional_headers=self.client._headers(),
                max_size=MAX_MESSAGE,
                open_timeout=self.client.timeout_s,
            )
        except OSError as error:
            raise ConnectionError(f"{base.geturl()}: no service answers: {error}") from error
        self._next = 0
        context = _context(self.frames, self.actions)
        asked = {"type": "open", "profile_id": self.client.profile_id, "seed": self.seed, "context": context}
        self.block = int(self._talk(asked)["block"])

    def close(self) -> None:
        """End the session."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> "RemoteSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _talk(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._socket is None:
            raise ConnectionError("the session is closed; reopen() goes on from its newest frames")
        try:
            # A service sends the reason for a refusal before it closes: read it even if sending fails.
            with contextlib.suppress(ConnectionClosed):
                self._socket.send(json.dumps(message))
            answer = json.loads(self._socket.recv(timeout=self.client.timeout_s))
        except (ConnectionClosed, OSError, TimeoutError) as error:
            self._socket = None
            raise ConnectionError(
                "the service went away in the middle of the session; reopen() goes on from its newest frames"
            ) from error
        if answer["type"] == "error":
            raise RefusedError(answer["error"])
        return answer


def _context(frames: np.ndarray, past_actions: Any) -> dict[str, Any]:
    if np.asarray(frames).dtype != np.uint8:
        raise ValueError(f"frames: expected uint8 in 0 .. 255, got {np.asarray(frames).dtype}")
    pictures = [encode_picture(frame) for frame in np.asarray(frames)]
    return {"frames": pictures, "actions": np.asarray(past_actions, np.float64).tolist()}


def _pictures(frames: Sequence[dict[str, Any]]) -> UInt8[np.ndarray, "n H W 3"]:
    return np.stack(
        [
            np.array(Image.open(io.BytesIO(base64.b64decode(frame["data"])), formats=("PNG",)))
            for frame in frames
        ]
    )
