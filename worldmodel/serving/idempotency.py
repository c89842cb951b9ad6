"""An idempotency cache: a repeated request id with the same content gets the same bytes, else a conflict."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from worldmodel.serving.errors import ServiceError


@dataclass
class _Entry:
    digest: bytes
    answer: asyncio.Future[bytes]
    size: int = 0  # bytes, once complete


class AnswerBook:
    """The latest responses, limited in number and size; failures are not kept."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    async def answer(self, request_id: str, digest: bytes, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The cached response, the pending one, or a new one."""
        entry = self._entries.get(request_id)
        if entry is not None and entry.digest != digest:
            raise ServiceError(
                "REQUEST_ID_CONFLICT", "request_id was used before with other content", request_id
            )
        if entry is not None:
            return await asyncio.shield(entry.answer)
        entry = _Entry(digest, asyncio.get_running_loop().create_future())
        self._entries[request_id] = entry
        try:
            made = await make()
        except BaseException as error:
            del self._entries[request_id]
            entry.answer.set_exception(error if isinstance(error, ServiceError) else _gone(request_id))
            entry.answer.exception()  # retrieved, so that asyncio does not log an unhandled exception
            raise
        entry.answer.set_result(made)
        entry.size = len(made)
        self._trim()
        return made

    def _trim(self) -> None:
        done = [name for name, entry in self._entries.items() if entry.answer.done()]
        total = sum(entry.size for entry in self._entries.values())
        for name in done:
            if len(self._entries) <= self.max_entries and total <= self.max_bytes:
                return
            total -= self._entries.pop(name).size


def _gone(request_id: str) -> ServiceError:
    return ServiceError("INTERNAL", "the first request with this id was given up", request_id)
