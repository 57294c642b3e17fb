"""The one shape of every answer that is not 2xx: `{"error": {"message", "type", "param", "code"}}` (DESIGN.md 4.3)."""

from __future__ import annotations

import json
from typing import Any

from lease_pool.types import Refused

_MESSAGE_MAX = 2000  # characters of a worker's own message that are passed on


class RefusedParam(Refused):
    """A refusal that names the request's field (`param`) at fault."""

    def __init__(self, status: int, code: str, message: str, param: str) -> None:
        super().__init__(status, code, message)
        self.param = param


class WorkerRefused(Refused):
    """The worker's own 4xx, in the envelope: `error` is what it said, completed to the four keys.

    `code` is fixed: it becomes an outcome in the journal and a metric's label, where a worker's words have no place.
    """

    def __init__(self, status: int, error: dict[str, Any], retry_after_s: int | None) -> None:
        super().__init__(status, "worker_refused", str(error["message"]), retry_after_s)
        self.error = error


def error_type(status: int) -> str:
    """The OpenAI error type of a status."""
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def error_object(refused: Refused) -> dict[str, Any]:
    """The `error` object of a refusal, the four keys always present."""
    if isinstance(refused, WorkerRefused):
        return refused.error
    return {
        "message": refused.message,
        "type": error_type(refused.status),
        "param": getattr(refused, "param", None),
        "code": refused.code,
    }


def envelope(refused: Refused) -> bytes:
    """The body of an answer."""
    return json.dumps({"error": error_object(refused)}, separators=(",", ":")).encode()


def error_event(refused: Refused) -> bytes:
    """The same as one server-sent event, for a stream whose 200 is out."""
    return b"data: " + envelope(refused) + b"\n\n"


def from_worker(status: int, body: bytes, retry_after: str | None) -> WorkerRefused:
    """A worker's 4xx in the envelope, whatever shape the worker gave it: OpenAI's, `{"error": "text"}`, `{"detail": …}`, plain text or nothing."""
    said = _parsed(body)
    inner = said.get("error", said) if isinstance(said, dict) else said
    fields = inner if isinstance(inner, dict) else {}
    message = fields.get("message") or fields.get("detail") or (inner if isinstance(inner, str) else None)
    kind, param, code = fields.get("type"), fields.get("param"), fields.get("code")
    error = {
        "message": (message if isinstance(message, str) else f"the worker answered {status}")[:_MESSAGE_MAX],
        "type": kind if isinstance(kind, str) else error_type(status),
        "param": param if isinstance(param, str) else None,
        "code": code if isinstance(code, str) else "worker_refused",
    }
    return WorkerRefused(status, error, int(retry_after) if retry_after and retry_after.isdecimal() and retry_after.isascii() else None)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace").strip() or None
