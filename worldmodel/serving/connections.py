"""Limits on connections, so that slow or stalled clients cannot keep others out."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MAX_CONNECTIONS = BACKLOG = 100  # at once and per turn of the event loop; a process may open 256 files
UNREAD_S = 30.0  # seconds in which a client must read the data sent to it


class _Read(asyncio.Protocol):
    """Closes connections whose client does not read."""

    loop: asyncio.AbstractEventLoop
    transport: Any
    unread: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        # Closing would wait until the client has read everything.
        self.unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()


class WebProtocol(_Read, AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """If there are too many connections, the oldest one that waits for its client is closed."""

    def connection_made(self, transport: Any) -> None:
        self.born = self.loop.time()
        alive = [one for one in self.connections if not one.transport.is_closing()]
        if len(alive) >= MAX_CONNECTIONS and (waiting := [one for one in alive if _waits(one)]):
            min(waiting, key=lambda one: one.born).transport.abort()
        super().connection_made(transport)


class SocketProtocol(_Read, WebSocketsSansIOProtocol):
    """A websocket with the same limit."""


def _waits(one: Any) -> bool:
    """Whether it waits for the rest of a request, or for the next."""
    cycle = getattr(one, "cycle", None)
    return isinstance(one, WebProtocol) and (cycle is None or cycle.response_complete or cycle.more_body)
