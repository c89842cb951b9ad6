"""Address and limits of the service."""

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

TOKEN_VARIABLE = "WORLDMODEL_TOKEN"
MIN_TOKEN = 16  # characters


@dataclass(frozen=True)
class ServeConfig:
    """Settings of `worldmodel serve`; limits apply to all clients together."""

    host: str = "127.0.0.1"  # address to listen on; others than loopback need a token
    port: int = 8100  # 0: any free one
    token: str = ""  # bearer token required from clients; empty: none
    num_inference_steps: int = 0  # sampling steps per latent frame; 0: the number recommended for the model
    max_batch_size: int = 8  # samples in one request
    max_request_bytes: int = 16 << 20  # of one request or websocket message
    max_concurrency: int = 4  # concurrent requests; more get 429
    max_sessions: int = 8  # open websockets; more are refused
    max_prediction_frames: int = 64  # of one sample
    max_context_frames: int = 16  # of one sample
    idle_s: float = 300.0  # seconds after which an idle session is closed
    read_s: float = 30.0  # seconds in which the body of a request must arrive
    deadline_s: float = 120.0  # seconds that a request may wait and compute
    remembered: int = 256  # responses kept for retries of the same request id
    remembered_bytes: int = 64 << 20  # of all kept responses together

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
    """Whether only this machine can connect to it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(file: str | None) -> str:
    """Read the token from a file or the environment.

    Never from the command line, which other users can read.
    """
    if file:
        return Path(file).read_text(encoding="utf-8").strip()
    return os.environ.get(TOKEN_VARIABLE, "").strip()
