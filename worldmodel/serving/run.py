"""From a checkpoint to a running service."""

from pathlib import Path

import uvicorn
from fastapi import FastAPI

from worldmodel.checkpoint.folder import locate
from worldmodel.environments.spaces import WorldSpec
from worldmodel.environments.tabletop import TabletopScenes
from worldmodel.files import fingerprint
from worldmodel.models.model import WorldModel
from worldmodel.serving.app import create_app
from worldmodel.serving.config import ServeConfig
from worldmodel.serving.predictor import ServedModel
from worldmodel.types import CameraMatrices


def serve_model(
    source: str, profiles: dict[str, str] | None = None, *, allow_external: bool = False
) -> ServedModel:
    """A checkpoint with its version; without given profiles, one per robot, called after it."""
    folder = locate(source)
    model = WorldModel.from_pretrained(source, allow_external=allow_external)
    known = profiles or {f"worldmodel-{robot}": robot for robot in model.normalizer.embodiments}
    version = f"{Path(source).name}-{fingerprint(folder)}"
    return ServedModel(model, version, known, _tabletop_camera(model))


def run_app(app: FastAPI, config: ServeConfig) -> None:
    """Serve until interrupted. Bodies and tokens are never logged."""
    uvicorn.run(
        app,
        host=config.host,
        port=config.port,
        log_level="warning",
        ws_max_size=config.max_request_bytes,
        ws="websockets-sansio",
        timeout_keep_alive=30,
        server_header=False,
    )


def start_service(
    source: str,
    config: ServeConfig,
    profiles: dict[str, str] | None = None,
    *,
    allow_external: bool = False,
) -> None:
    """Load, say where, and serve."""
    app = create_app(serve_model(source, profiles, allow_external=allow_external), config)
    run_app(app, config)


def _tabletop_camera(model: WorldModel) -> CameraMatrices | None:
    """Where the camera of the embedded simulator stands, for models that were trained on it."""
    try:
        return TabletopScenes(WorldSpec.of(model.contract, model.normalizer))(0).camera
    except ValueError:  # another camera, another robot, or no simulator
        return None
