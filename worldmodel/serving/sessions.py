"""Streaming sessions over a websocket: JSON text both ways.

    client   {"type": "open", "profile_id", "seed", "context"}
    service  {"type": "opened", "model_version", "frames_per_second", "block"}
    client   {"type": "step", "step_id": 0, "actions"}          rows in multiples of `block`
    service  {"type": "frames", "step_id": 0, "frames"}         as many as actions
    client   {"type": "close"}

The response to an invalid message is {"type": "error", "error"}; the session is not changed.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import torch
from fastapi import WebSocket, WebSocketDisconnect
from pydantic import BaseModel

from worldmodel.environments.spaces import WorldSpec
from worldmodel.pipelines.session import Session
from worldmodel.serving.config import ServeConfig
from worldmodel.serving.errors import ServiceError, invalid
from worldmodel.serving.messages import CloseMessage, OpenMessage, StepMessage, parse_message
from worldmodel.serving.predictor import Predictor, encode_frames
from worldmodel.serving.worker import Worker
from worldmodel.types import FRAMES_PER_LATENT

LOG = logging.getLogger("worldmodel.serving")
TRY_AGAIN, GOING_AWAY, NORMAL = 1013, 1001, 1000  # websocket close codes


@dataclass
class _Open:
    session: Session
    spec: WorldSpec
    next_step: int = 0


class SessionDesk:
    """Opens sessions, one per websocket, up to a limit."""

    def __init__(self, predictor: Predictor, worker: Worker, config: ServeConfig) -> None:
        self.predictor, self.worker, self.config = predictor, worker, config
        self.num_open = 0

    async def serve(self, socket: WebSocket) -> None:
        """Serve one client from its first message to its last."""
        await socket.accept()
        if self.num_open >= self.config.max_sessions:
            full = ServiceError("OVERLOADED", f"{self.num_open} sessions are open; try again later")
            await _send_error(socket, full)
            await socket.close(TRY_AGAIN)
            return
        self.num_open += 1
        try:
            await self._talk(socket)
        except WebSocketDisconnect:
            LOG.info("a session ended with its connection")
        finally:
            self.num_open -= 1

    async def _talk(self, socket: WebSocket) -> None:
        state: _Open | None = None
        while True:
            try:
                async with asyncio.timeout(self.config.idle_s):
                    text = await socket.receive_text()
            except TimeoutError:
                await _send_error(socket, invalid(f"nothing came for {self.config.idle_s:g} s"))
                await socket.close(GOING_AWAY)
                return
            except KeyError:  # bytes instead of text
                await _send_error(socket, invalid("expected JSON text, got bytes"))
                continue
            try:
                message = await asyncio.to_thread(_parse, text.encode())
                if isinstance(message, CloseMessage):
                    await socket.close(NORMAL)
                    return
                if isinstance(message, OpenMessage):
                    state = await self._open(message)
                    await socket.send_json(self._opened(state))
                else:
                    await socket.send_json(await self._step(state, message))
            except ServiceError as error:
                await _send_error(socket, error)
            except (ValueError, RuntimeError) as error:
                LOG.error("a step failed: %s", type(error).__name__, exc_info=error)
                await _send_error(socket, ServiceError("INTERNAL", "the step failed; open the session anew"))
                state = None

    async def _open(self, message: OpenMessage) -> _Open:
        session, spec = await self._run(lambda _: self.predictor.open(message))
        return _Open(session, spec)

    def _opened(self, state: _Open) -> dict[str, Any]:
        return {
            "type": "opened",
            "model_version": self.predictor.served.version,
            "frames_per_second": state.spec.fps,
            "block": FRAMES_PER_LATENT,
        }

    async def _step(self, state: _Open | None, message: StepMessage) -> dict[str, Any]:
        if state is None:
            raise invalid("no session is open: send a message of type open first")
        if message.step_id != state.next_step:
            raise invalid(f"step_id: expected {state.next_step}, got {message.step_id}")
        actions = self.predictor.check_actions(message.actions, state.spec, "actions")
        most = self.config.max_prediction_frames
        if not 0 < len(actions) <= most or len(actions) % FRAMES_PER_LATENT:
            raise invalid(
                f"actions: expected a multiple of {FRAMES_PER_LATENT} up to {most}, got {len(actions)}"
            )
        given = torch.from_numpy(actions)[None]
        frames = await self._run(lambda _: encode_frames(state.session.step(given)[0]))
        state.next_step += 1
        return {"type": "frames", "step_id": message.step_id, "frames": frames}

    async def _run(self, job: Any) -> Any:
        # The number of sessions is limited: each has at most one job waiting.
        return await self.worker.run(job, self.config.deadline_s, is_bounded=False)


def _parse(text: bytes) -> OpenMessage | StepMessage | CloseMessage:
    kinds: dict[str, type[OpenMessage | StepMessage | CloseMessage]] = {
        "open": OpenMessage,
        "step": StepMessage,
        "close": CloseMessage,
    }
    kind = parse_message(_Kind, text).type
    if kind not in kinds:
        raise invalid(f"type: expected open, step or close, got {kind!r}")
    return parse_message(kinds[kind], text)


class _Kind(BaseModel):
    type: str


async def _send_error(socket: WebSocket, error: ServiceError) -> None:
    await socket.send_json({"type": "error", **error.body()})
