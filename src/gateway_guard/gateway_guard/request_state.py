"""What the guard remembers of the request that is being served: kept in a context variable, so no field of a body can forge or reach it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from gateway_guard.policy import Access
from gateway_guard.retries import Attempt, Failure


@dataclass(slots=True)
class RequestState:
    """One client request: its access, its attempts by model group, and the last error, to be repeated when no other attempt is allowed."""

    access: Access
    request: Any = None  # the framework's, to hear of a client that leaves
    watching: asyncio.Task[None] | None = None
    group: str | None = None
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    last_error: Exception | None = None
    retry_after: str | None = None
    pool_headers: dict[str, str] = field(default_factory=dict)  # what the pool told of the card and the lease

    def unreached(self) -> list[str]:
        """Return what could not be reached at the end of a group's attempts, in words, pools first. Each group's last attempt counts, not only the
        very last: where a fallback failed as well LiteLLM repeats the first group's error."""
        last = [attempts[-1] for attempts in self.attempts.values() if attempts]
        hosted = {attempt.host is None for attempt in last if attempt.failure is Failure.NOT_REACHED}
        return ["hosted provider" if is_hosted else "host of this model" for is_hosted in sorted(hosted)]

    def error_headers(self) -> dict[str, str]:
        return {"x-request-id": self.access.request_id, **({"retry-after": self.retry_after} if self.retry_after is not None else {})}

    def stop_watching(self) -> None:
        if self.watching is not None:
            self.watching.cancel()

    def begin(self, group: str, host: str | None, at_once: bool) -> None:
        self.group, self.pool_headers = group, {}
        self.attempts.setdefault(group, []).append(Attempt(host, at_once))

    @property
    def attempt(self) -> Attempt | None:
        """The attempt under way, or the last one."""
        attempts = self.attempts.get(self.group or "")
        return attempts[-1] if attempts else None

    def fail(self, failure: Failure, error: Exception, retry_after: str | None) -> None:
        self.last_error, self.retry_after = error, retry_after
        attempts = self.attempts.get(self.group or "")
        if attempts:
            attempts[-1] = Attempt(attempts[-1].host, attempts[-1].at_once, failure)


CURRENT: ContextVar[RequestState | None] = ContextVar("gateway_guard_request", default=None)
