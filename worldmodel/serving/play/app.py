"""The page and its websocket. Every visitor has a game; all share the model and the one computing thread.

page    {"type": "reset", "seed"} | {"type": "load", "episode", "frame"} | {"type": "back"}
        {"type": "robot", "robot", "seed"}
        {"type": "step", "hands", "sliders", "follow", "hold"} | {"type": "save", "format"}
server  bytes: length of the header (4), the header as JSON, then its pictures as PNG files
"""

import asyncio
import json
import logging
import re
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import FileResponse, JSONResponse, Response

from worldmodel.evaluation.action_edits import arm_concepts
from worldmodel.serving.config import is_loopback
from worldmodel.serving.errors import ServiceError
from worldmodel.serving.pictures import png_bytes
from worldmodel.serving.play.game import Game, Turn
from worldmodel.serving.play.save import FORMATS, save_game
from worldmodel.serving.play.teleop import Inputs
from worldmodel.serving.worker import Worker

LOG = logging.getLogger("worldmodel.serving")
PAGE = {  # address -> file in this folder, media type
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
POLICY = "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'"
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
MAX_GAMES = 4
MAX_LISTED = 64  # episodes offered on the page
MAX_MESSAGE = 65_536  # characters
STEP_S = 60.0  # time limit of a block in seconds
# Errors that a malformed message may raise; the game is not changed.
ODD = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    ServiceError,
    TypeError,
    ValueError,
)
SAVED = re.compile(r"drive-\d+\.mp4")


@dataclass
class PlayServer:
    """State shared by all games."""

    new_game: Callable[[], Game]
    title: str  # of the model
    out: Path  # where drives are saved
    worker: Worker = field(default_factory=lambda: Worker(MAX_GAMES))
    num_games: int = 0

    def describe(self, game: Game) -> dict[str, Any]:
        """The information that the page needs before the first scene."""
        spec, dataset = game.spec, game.dataset
        lengths = (
            [] if dataset is None else [dataset[i].num_frames for i in range(min(len(dataset), MAX_LISTED))]
        )
        return {
            "title": self.title,
            "parameters": sum(weights.numel() for weights in game.model.parameters()),
            "robot": spec.embodiment,
            "robots": list(game.robots),
            "fps": spec.fps,
            "height": game.size[0],
            "width": game.size[1],
            "sides": list(game.teleop.sides),
            "concepts": list(arm_concepts(spec.action_names)),
            "simulator": game.has_simulator,
            "episodes": lengths,
            "actions": [
                {"name": name, "low": float(low), "high": float(high)}
                for name, low, high in zip(spec.action_names, spec.low, spec.high, strict=True)
            ],
            "formats": list(FORMATS),
        }

    async def talk(self, socket: WebSocket) -> None:
        """Serve one page until it closes."""
        game = await self._run(self.new_game)
        turn = await self._run(lambda: game.reset(0))
        await socket.send_bytes(encode({"type": "hello", **self.describe(game)}, turn, game))
        while True:
            try:
                text = await socket.receive_text()
                if len(text) > MAX_MESSAGE:
                    raise ValueError("the message is too long")
                message = json.loads(text)
                answer = await self._run(partial(self._answer, game, message))
            except ODD as error:
                answer = encode({"type": "error", "message": str(error) or type(error).__name__}, None, game)
            await socket.send_bytes(answer)
            await self._run(game.measure)  # while the page shows the frames

    def _answer(self, game: Game, message: dict[str, Any]) -> bytes:
        kind = message["type"]
        if kind == "step":
            turn = game.step(read_inputs(message), follow=bool(message.get("follow")))
            return encode({"type": "frames"}, turn, game)
        if kind == "save":
            saved = save_game(game, self.out, str(message.get("format")))
            return encode({"type": "saved", "path": str(saved), "name": saved.name}, None, game)
        moves: dict[str, Callable[[], Turn]] = {
            "reset": lambda: game.reset(int(message.get("seed", 0)) % 2**31),
            "robot": lambda: game.change_robot(str(message["robot"]), int(message.get("seed", 0)) % 2**31),
            "load": lambda: game.load(int(message["episode"]), int(message["frame"])),
            "back": game.back,
        }
        if kind not in moves:
            raise ValueError(f"type is step, reset, robot, load, back or save, got {kind!r}")
        before = game.spec.embodiment, game.size
        turn = moves[kind]()
        is_same = (game.spec.embodiment, game.size) == before
        return encode({"type": "scene"} if is_same else {"type": "hello", **self.describe(game)}, turn, game)

    async def _run(self, job: Callable[[], Any]) -> Any:
        return await self.worker.run(lambda _: job(), STEP_S, is_bounded=False)


def read_inputs(message: dict[str, Any]) -> Inputs:
    """Held keys and sliders, validated."""
    hands = {str(side): _numbers(values, 4) for side, values in dict(message.get("hands", {})).items()}
    sliders = {
        int(column): _numbers([value], 1)[0] for column, value in dict(message.get("sliders", {})).items()
    }
    return Inputs(hands, sliders, [str(concept) for concept in message.get("hold", ())])


def _numbers(values: Any, count: int) -> list[float]:
    numbers = [float(value) for value in values]
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise ValueError(f"expected {count} finite numbers, got {values}")
    return numbers


def encode(header: dict[str, Any], turn: Turn | None, game: Game) -> bytes:
    """One message for the page: generated pictures, then as many from the simulator or recording, if any."""
    pictures: list[bytes] = []
    if turn is not None:
        beside = [] if turn.beside is None else list(turn.beside)
        pictures = [png_bytes(np.ascontiguousarray(picture)) for picture in (*turn.dream, *beside)]
        header = {
            **header,
            "count": len(turn.dream),
            "beside": bool(beside),
            "reading": turn.reading,
            "command": game.teleop.command.round(5).tolist(),
        }
    text = json.dumps({**header, "sizes": [len(picture) for picture in pictures]}).encode()
    return b"".join([struct.pack("<I", len(text)), text, *pictures])


def _file(name: str, media_type: str) -> Callable[[], Response]:
    content = Path(__file__).with_name(name).read_bytes()
    return lambda: Response(content, headers=HEADERS, media_type=media_type)


def create_play_app(server: PlayServer, host: str = "127.0.0.1") -> FastAPI:
    """Create the application for one model."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        server.worker.close()

    app = FastAPI(title="worldmodel play", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    if is_loopback(host):  # pages of other sites must not read what visitors drive
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    for address, (name, media_type) in PAGE.items():
        app.get(address)(_file(name, media_type))

    @app.get("/saved/{name}")
    async def saved(name: str) -> Any:
        path = server.out / name
        if not SAVED.fullmatch(name) or not path.is_file():
            return JSONResponse({"error": "no such video"}, 404)
        return FileResponse(path, media_type="video/mp4", filename=name)

    @app.websocket("/play")
    async def play(socket: WebSocket) -> None:
        origin, asked = socket.headers.get("origin", ""), socket.headers.get("host", "")
        is_foreign = origin and origin.split("//", 1)[-1] != asked
        if is_foreign or (is_loopback(host) and not is_loopback(asked.rsplit(":", 1)[0])):
            await socket.close(1008)
            return
        await socket.accept()
        if server.num_games >= MAX_GAMES:
            await socket.close(1013, f"{MAX_GAMES} people are driving already")
            return
        server.num_games += 1
        try:
            await server.talk(socket)
        except (WebSocketDisconnect, asyncio.CancelledError):
            LOG.info("a page was closed")
        finally:
            server.num_games -= 1

    return app
