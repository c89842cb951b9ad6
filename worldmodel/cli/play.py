"""Drive a world model interactively in the browser."""

import argparse
from collections.abc import Sequence

from worldmodel.cli_errors import one_way_out
from worldmodel.config import add_device


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description="Drive a world model in the browser, next to the simulator if available. "
        "The page is served to this machine only.",
    )
    parser.add_argument("checkpoint", nargs="?", default="desk", help="folder, hub id or shipped name")
    parser.add_argument("--dataset", help="recorded episodes to load, and first frames of other robots")
    parser.add_argument("--mapping", metavar="YAML", help="keys and names of the dataset (DataMapping)")
    parser.add_argument("--camera", help="camera of the dataset (default: the one the model was trained on)")
    parser.add_argument("--embodiment", help="one of the model's robots (default: the first)")
    parser.add_argument(
        "--task",
        default="place_a2b_left",
        help="of simulated scenes: place_a2b_left, place_a2b_right, babble, carry",
    )
    parser.add_argument(
        "--steps", type=int, default=0, help="sampling steps (default: recommended for the model)"
    )
    parser.add_argument("--port", type=int, default=8200, help="(default: 8200)")
    parser.add_argument(
        "--out", default="outputs/play", help="where drives are saved (default: outputs/play)"
    )
    add_device(parser)
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    run(parser.parse_args(argv))
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Serve the page until interrupted."""
    import threading
    import webbrowser

    from worldmodel.serving.config import ServeConfig

    try:
        from worldmodel.serving.play.run import play_app
        from worldmodel.serving.run import bind, run_app
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "websockets"):
            raise
        raise ValueError('the page needs FastAPI: pip install -e ".[serve]"') from error
    config = ServeConfig(port=arguments.port)
    with bind(config) as door:
        app = play_app(
            arguments.checkpoint,
            dataset=arguments.dataset,
            mapping=arguments.mapping,
            camera=arguments.camera,
            embodiment=arguments.embodiment,
            task=arguments.task,
            num_inference_steps=arguments.steps,
            out=arguments.out,
            device=arguments.device,
        )
        address = f"http://127.0.0.1:{door.getsockname()[1]}/"
        print(f"drive at {address}, Ctrl-C ends it", flush=True)
        if not arguments.no_browser:
            threading.Timer(1.0, webbrowser.open, [address]).start()
        run_app(app, config, door)
