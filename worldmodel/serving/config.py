"""Where the service listens and how much it takes on."""

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

TOKEN_VARIABLE = "WORLDMODEL_TOKEN"
MIN_TOKEN = 16  # characters


@dataclass(frozen=True)
class ServeConfig:
    """Settings of `worldmodel serve`; the limits hold for every client together."""

    host: str = "127.0.0.1"  # address to listen on; others than loopback need a token
    port: int = 8100  # 0: any free one
    token: str = ""  # what clients must send as a bearer token; empty: none is asked
    num_inference_steps: int = 0  # sampling steps per latent frame; 0: those that show the model best
    max_batch_size: int = 8  # samples in one request
    max_request_bytes: int = 16 << 20  # of one request or websocket message
    max_concurrency: int = 4  # requests that are held at once; more get 429
    max_sessions: int = 8  # open websockets; more are refused
    max_prediction_frames: int = 64  # of one sample
    max_context_frames: int = 16  # of one sample
    idle_s: float = 300.0  # seconds after which a silent session is closed
    read_s: float = 30.0  # seconds in which the body of a request must arrive
    deadline_s: float = 120.0  # seconds that a request may wait and compute
    remembered: int = 256  # answers that are kept for retries of the same request id
    remembered_bytes: int = 64 << 20  # of all kept answers together

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.token:
            raise ValueError(
                f"host {self.host} can be reached from other machines: set {TOKEN_VARIABLE} or --token-file"
            )
        if self.token and len(self.token) < MIN_TOKEN:
            raise ValueError(f"a token has {MIN_TOKEN} characters or more, got {len(self.token)}")
        for name in ("max_batch_size", "max_request_bytes", "max_concurrency", "max_prediction_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is 1 or more, got {getattr(self, name)}")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(file: str | None) -> str:
    """The token in a file, or in the environment; never on the command line, where others can see it."""
    if file:
        return Path(file).read_text(encoding="utf-8").strip()
    return os.environ.get(TOKEN_VARIABLE, "").strip()
