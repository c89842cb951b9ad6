"""The errors of the service: a status, a code and a sentence that names the field."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "REQUEST_ID_CONFLICT": 409,
    "PAYLOAD_TOO_LARGE": 413,
    "UNSUPPORTED_VERSION": 422,
    "OVERLOADED": 429,
    "INTERNAL": 500,
    "NOT_READY": 503,
    "DEADLINE_EXCEEDED": 504,
}
RETRYABLE = {"OVERLOADED", "INTERNAL", "NOT_READY", "DEADLINE_EXCEEDED"}
MAX_MESSAGE = 400  # characters


@dataclass
class ServiceError(Exception):
    """A response other than 2xx."""

    code: str  # a key of STATUS
    message: str
    request_id: str | None = None

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    def body(self) -> dict[str, Any]:
        """The common JSON structure of all errors."""
        return {
            "error": {
                "code": self.code,
                "message": self.message[:MAX_MESSAGE],
                "request_id": self.request_id,
                "retryable": self.code in RETRYABLE,
            }
        }


def invalid(message: str) -> ServiceError:
    """The error for a malformed request."""
    return ServiceError("INVALID_ARGUMENT", message)


def first_fault(error: ValidationError) -> str:
    """A description of the first error in a message: the field, and what was expected."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = field_path(fault["loc"])
    return f"{place}: {fault['msg']}" if place else fault["msg"]


def field_path(parts: Sequence[int | str]) -> str:
    """Format a path as `samples[0].actions`, as in the published examples."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")
