"""Serve a world model over HTTP: WorldArena's Track-2 interface, and streaming sessions."""

import argparse
from collections.abc import Sequence

from worldmodel.cli_errors import one_way_out
from worldmodel.config import add_device


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description="Serve a world model: GET /v1/health, GET /v1/capabilities, POST /v1/predict and a "
        "websocket at /v1/session. /docs lists them. Other machines need a token.",
    )
    parser.add_argument("checkpoint", nargs="?", default="desk", help="folder, hub id or shipped name")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    parser.add_argument("--port", type=int, default=8100, help="(default: 8100)")
    parser.add_argument(
        "--token-file", metavar="FILE", help="holds the token of clients (default: $WORLDMODEL_TOKEN)"
    )
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="ID=ROBOT",
        help="name of a profile (default: worldmodel-ROBOT for every robot)",
    )
    parser.add_argument(
        "--steps", type=int, default=0, help="sampling steps (default: recommended for the model)"
    )
    parser.add_argument("--max-concurrency", type=int, default=4, help="requests held at once (default: 4)")
    parser.add_argument("--max-sessions", type=int, default=8, help="open websockets (default: 8)")
    parser.add_argument(
        "--allow-external", action="store_true", help="also load from other places that the model names"
    )
    add_device(parser)
    run(parser.parse_args(argv))
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Serve until interrupted."""
    from worldmodel.serving.config import ServeConfig, read_token

    config = ServeConfig(
        host=arguments.host,
        port=arguments.port,
        token=read_token(arguments.token_file),
        num_inference_steps=arguments.steps,
        max_concurrency=arguments.max_concurrency,
        max_sessions=arguments.max_sessions,
    )
    profiles = dict(_profile(text) for text in arguments.profile)
    try:
        from worldmodel.serving.app import create_app
        from worldmodel.serving.run import bind, run_app, serve_model
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "websockets"):
            raise
        raise ValueError('the service needs FastAPI: pip install -e ".[serve]"') from error
    with bind(config) as door:
        served = serve_model(
            arguments.checkpoint,
            profiles or None,
            allow_external=arguments.allow_external,
            device=arguments.device,
        )
        address = f"http://{config.host}:{door.getsockname()[1]}/docs"
        print(f"serving {arguments.checkpoint} at {address}, Ctrl-C ends it", flush=True)
        run_app(create_app(served, config), config, door)


def _profile(text: str) -> tuple[str, str]:
    name, separator, robot = text.partition("=")
    if not separator or not name or not robot:
        raise ValueError(f"--profile is ID=ROBOT, got {text!r}")
    return name, robot
