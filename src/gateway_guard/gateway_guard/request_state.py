"""What the guard remembers of the request that is being served: kept in a context variable, so no field of a body can forge or reach it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from gateway_guard.policy import Access
from gateway_guard.retries import Attempt, Failure


@dataclass(slots=True)
class RequestState:
    """One client request: its access, its attempts by model group, and the last error, to be repeated when no other attempt is allowed."""

    access: Access
    group: str | None = None
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    last_error: Exception | None = None
    retry_after: str | None = None
    pool_headers: dict[str, str] = field(default_factory=dict)  # what the pool told of the card and the lease

    def begin(self, group: str, host: str | None, at_once: bool) -> None:
        self.group = group
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
