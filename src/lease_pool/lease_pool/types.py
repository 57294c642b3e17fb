"""The words that the parts of the pool speak to each other: frozen values and the protocols between owners.

Three parts meet here and nowhere else: the core (who holds which card), the supervisors (which processes run on a
card) and the data plane (which bytes go where). None imports another's modules; all import this one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from lease_pool.config import CardConfig, ModelConfig, PoolConfig


class CardState(enum.StrEnum):
    """What a card is doing (DESIGN.md section 3); the values are what status, metrics and events show."""

    MINING = "mining"
    FREEING = "freeing"
    LOADING = "loading"
    SERVING = "serving"
    UNLOADING = "unloading"
    RETURNING = "returning"
    DRAINED = "drained"
    QUARANTINED = "quarantined"
    MISSING = "missing"


# --- core <-> supervisor ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a worker answers: a unix socket, or a loopback port where its server cannot listen on a socket."""

    socket: Path | None
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One worker to start on one card, complete: `exec-worker` or the guard needs nothing else.

    `argv` and `env` have every placeholder filled except `{api_key_file}`, `{socket}`, `{host}` and `{port}`, which only the
    supervisor knows; it fills them anywhere in an argument or in a value of `env`. `memory_mib` is what must be free on the card before the server starts.
    """

    slot: str
    uuid: str
    model: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    memory_mib: int
    free_s: float
    stop_s: float
    needs_port: bool = False
    ready_path: str = "/health"


class SupervisorError(Exception):
    """A stop, start or wait failed; the message says what was tried, on which card, and what was found."""


class OccupiedElsewhere(SupervisorError):
    """Another pool or a `run` borrower holds the card's occupant lock: nothing was touched, the request goes back to its queue."""


class Occupancy(Protocol):
    """One worker's time on one card, from the idle workload's stop to its return. All awaits are bounded by the caller.

    The order is `freed`, `exited`/`end`, `returned`. When a next request is in line, or the card is to stay without its idle workload (drain,
    quarantine), `returned` is not called: `occupy`, or `hold` and `stop_idle`, follow directly on `end`.
    """

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def pid(self) -> int | None:
        """The worker's process once it runs, else None."""

    async def freed(self) -> None:
        """Return when the idle workload is gone, the lock is ours and the card is free; retries inside. Raises SupervisorError."""

    async def exited(self) -> str:
        """Return when no process of the worker's tree is left, however that came: `exit 0`, `signal 9`, … Safe to await more than once."""

    async def end(self) -> None:
        """SIGTERM, `stop_s`, SIGKILL of the whole tree, wait until it is gone. Idempotent; works in every phase, freeing included."""

    async def returned(self) -> None:
        """Return when the idle workload runs again on the card and works (active and alive); raises SupervisorError with the reason."""


@dataclass(frozen=True, slots=True)
class IdleState:
    """The idle workload of one card: `active` (its process runs), `alive` (it really works; None: no way to know)."""

    active: bool
    alive: bool | None


@dataclass(frozen=True, slots=True)
class Found:
    """What a supervisor finds on a slot: used at start and by the reconciler, never to decide who owns the card (the lock does)."""

    slot: str
    locked: bool
    worker_pid: int | None
    idle: IdleState


class Supervisor(Protocol):
    """Starts and stops what runs on cards. Implementations: supervisor_systemd.py, supervisor_process.py. One job at a time a slot.

    What fails raises SupervisorError, or OSError (a full disk, no descriptors); where another holder of the occupant lock is the reason, OccupiedElsewhere.
    """

    async def open(self) -> None:
        """Connect, verify prerequisites (raises SupervisorError), kill verified strays (process supervisor)."""

    async def close(self) -> None: ...

    def reconfigure(self, config: PoolConfig) -> None:
        """Bounds and models are these from now on; running occupancies keep theirs. Cards and folders are the same."""

    async def occupy(self, card: CardConfig, spec: LaunchSpec) -> Occupancy:
        """Begin: idle workload off, worker on. Returns at once after the job is queued; progress is read from the Occupancy."""

    async def survey(self, card: CardConfig) -> Found: ...

    async def stop_worker(self, card: CardConfig) -> None:
        """Stop a worker that no lease owns (reconciler)."""

    async def stop_idle(self, card: CardConfig) -> None:
        """Stop the card's idle workload and wait until it is gone (card drain, quarantine, borrow)."""

    async def start_idle(self, card: CardConfig) -> None:
        """Start the card's idle workload and wait until it is active and alive. Raises SupervisorError with the reason."""

    async def hold(self, card: CardConfig, held: bool) -> None:
        """Make or remove what keeps the idle workload down over reboots (`<state_dir>/hold/<slot>`)."""


@runtime_checkable
class Lender(Protocol):
    """A supervisor that takes a lent card home by itself, even when the pool is killed (process supervisor). Without it the core lends with
    `stop_idle`, the lock and `start_idle`; systemd's units bring the miner back after a killed pool.
    """

    async def lend(self, card: CardConfig, free_s: float) -> Occupancy:
        """Like `occupy` with the borrower's command in the worker's place: `freed` returns once the lock is free for the borrower, `end` and
        `exited` once the loan is over and the lock is free again.
        """


# --- core <-> data plane ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Demand:
    """One request for a card, as the scheduler sees it. Times are monotonic seconds; `max_wait_s` None = the pool's `queue_s`."""

    request: str
    alias: str
    model: str
    arrived: float
    max_wait_s: float | None = None
    principal: str = ""
    data_class: str = ""


class Refused(Exception):
    """A request that gets no (more) service: what to answer. `status` is the HTTP status of DESIGN.md 4.3, `code` the envelope's code."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


class Grant(Protocol):
    """A request's share of a lease: alive inside the `async with`."""

    @property
    def lease(self) -> str: ...

    @property
    def card(self) -> CardConfig: ...

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def queued_s(self) -> float: ...

    @property
    def load_s(self) -> float:
        """Seconds of freeing + loading this request waited for; 0.0 on a warm worker."""

    def first_byte(self) -> None:
        """The worker's first body byte went to the client (journal timing)."""

    def worker_failed(self, why: str) -> None:
        """The worker must take no new request (5xx, EOF, deadline): it ends when its other requests are done; `dead` at once."""

    async def worker_gone(self) -> str:
        """Return, with the reason, when the worker's process has ended (raced against the forward)."""


class Core(Protocol):
    """What the data plane may ask the core. Everything synchronous is a snapshot without I/O."""

    @property
    def config(self) -> PoolConfig: ...

    @property
    def draining(self) -> bool: ...

    def resolve(self, name: str) -> ModelConfig | None:
        """The model of an alias or model name; None when unknown."""

    def lease(self, demand: Demand) -> AbstractAsyncContextManager[Grant]:
        """Enter: admit or refuse before anything is awaited (503 draining or no usable card, 429 queue full, 502 the model backs off on all
        fitting cards), then wait for a card or a share of a worker, and for the worker to be ready. Raises Refused on every bound.
        Leave: the share is given back and the journal written; an exception leaving the block names the outcome; cancellation = the
        client left.
        """

    def ready(self) -> dict[str, Any]: ...

    def capacity(self) -> dict[str, Any]: ...

    def models(self) -> list[ModelConfig]: ...

    def answered(self, endpoint: str, status: int) -> None:
        """Counts an answer: `endpoint` is one of the published paths or `other`; `status` 0 when the client left before one."""

    async def metrics(self) -> bytes:
        """The Prometheus text, gauges computed from the real state at this moment."""
