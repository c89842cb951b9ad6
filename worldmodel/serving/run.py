"""Starts a service from a checkpoint."""

import socket
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from worldmodel.checkpoint.folder import locate
from worldmodel.environments.spaces import WorldSpec
from worldmodel.environments.tabletop import TabletopScenes
from worldmodel.files import fingerprint
from worldmodel.models.model import WorldModel
from worldmodel.serving.config import ServeConfig
from worldmodel.serving.connections import BACKLOG, SocketProtocol, WebProtocol
from worldmodel.serving.predictor import ServedModel
from worldmodel.types import CameraMatrices


def serve_model(
    source: str,
    profiles: dict[str, str] | None = None,
    *,
    allow_external: bool = False,
    device: str = "auto",
) -> ServedModel:
    """Load a checkpoint with its version; by default one profile per robot, named after it."""
    folder = locate(source)
    model = WorldModel.from_pretrained(source, allow_external=allow_external, device=device)
    known = profiles or {f"worldmodel-{robot}": robot for robot in model.normalizer.embodiments}
    version = f"{Path(source).name}-{fingerprint(folder)}"
    return ServedModel(model, version, known, _tabletop_camera(model))


def bind(config: ServeConfig) -> socket.socket:
    """Reserve the port before anything is loaded: another program may use it."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host.strip("[]"), config.port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"{config.host}:{config.port} cannot be used ({reason}): name another --port"
        ) from error


def run_app(app: FastAPI, config: ServeConfig, door: socket.socket) -> None:
    """Serve until interrupted. Bodies and tokens are never logged."""
    uvicorn.Server(server_config(app, config)).run(sockets=[door])


def server_config(app: FastAPI, config: ServeConfig) -> uvicorn.Config:
    """How requests and messages are received."""
    return uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        log_level="warning",
        ws_max_size=config.max_request_bytes,
        http=WebProtocol,
        ws=SocketProtocol,
        backlog=BACKLOG,
        timeout_keep_alive=30,
        server_header=False,
    )


def _tabletop_camera(model: WorldModel) -> CameraMatrices | None:
    """Camera matrices of the embedded simulator, for models trained on it."""
    try:
        return TabletopScenes(WorldSpec.of(model.contract, model.normalizer))(0).camera
    except ValueError:  # another camera, another robot, or no simulator
        return None
