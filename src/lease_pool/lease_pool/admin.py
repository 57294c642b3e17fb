"""The admin socket (DESIGN.md 4.4): HTTP on a unix socket; the file's mode decides who may speak."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from lease_pool import __version__, snapshots
from lease_pool.core import PoolCore
from lease_pool.journal import parse_since, utc
from lease_pool.launch import lock_path
from lease_pool.leases import Waiter
from lease_pool.reconcile import Reconciler
from lease_pool.types import Demand, Refused, SupervisorError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SOCKET_MODE = 0o660
BODY_MAX = 1 << 20
BEAT_S = 5.0  # a loan's stream says something at least this often, so that a dead borrower is noticed


class _BadRequest(Exception):
    """The caller's mistake, in words."""


class Admin:
    """Owned by the service; knows the core's parts, no bytes of requests."""

    def __init__(self, core: PoolCore, reconciler: Reconciler) -> None:
        self._core = core
        self._reconciler = reconciler
        self._runner: web.AppRunner | None = None
        self._closing = asyncio.Event()

    async def start(self, path: Path) -> None:
        app = web.Application(middlewares=[_errors], client_max_size=BODY_MAX)
        app.add_routes(
            [
                web.get("/status", self._status),
                web.get("/leases", self._leases),
                web.get("/events", self._events),
                web.post("/drain", self._drain),
                web.post("/resume", self._resume),
                web.post("/reconcile", self._reconcile),
                web.post("/release/{uuid:.+}", self._release),
                web.post("/quarantine/{uuid:.+}", self._quarantine),
                web.post("/borrow", self._borrow),
                web.post("/intent", self._intent),
            ]
        )
        # A borrower that leaves must end its loan at once, in the handler that holds it.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        path.unlink(missing_ok=True)  # noqa: ASYNC240  one unlink at start
        old = os.umask(0o117)
        try:
            await web.UnixSite(self._runner, str(path)).start()
        finally:
            os.umask(old)
        os.chmod(path, SOCKET_MODE)

    async def close(self) -> None:
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response({"version": __version__} | snapshots.status(self._core.state))

    async def _leases(self, request: web.Request) -> web.Response:
        return web.json_response({"leases": snapshots.leases(self._core.state)})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        try:
            since = parse_since(request.query.get("since", "0"))
        except ValueError:
            raise _BadRequest(f"since: {request.query['since']!r}: must be 0 or an RFC 3339 time") from None
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        # The follower is there before the kept lines are read, so that nothing falls between the two.
        follow = self._core.state.journal.follow() if request.query.get("follow") == "1" else None
        pending = asyncio.ensure_future(anext(follow)) if follow is not None else None
        if pending is not None:
            await asyncio.sleep(0)
        try:
            for line in list(self._core.state.journal.kept(since)):
                await response.write(line.encode() + b"\n")
            closing = asyncio.ensure_future(self._closing.wait())
            while follow is not None and pending is not None:
                await asyncio.wait((pending, closing), return_when=asyncio.FIRST_COMPLETED)
                if closing.done():
                    break
                await response.write(pending.result().encode() + b"\n")
                pending = asyncio.ensure_future(anext(follow))
            closing.cancel()
        finally:
            if pending is not None and follow is not None:
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await pending
                await follow.aclose()
        return response

    async def _drain(self, request: web.Request) -> web.Response:
        body = await _body(request, {"card", "reason"})
        self._core.verbs.drain(self._card(body), _text(body, "reason"))
        return web.json_response({"ok": True})

    async def _resume(self, request: web.Request) -> web.Response:
        self._core.verbs.resume(self._card(await _body(request, {"card"})))
        return web.json_response({"ok": True})

    async def _reconcile(self, request: web.Request) -> web.Response:
        return web.json_response({"findings": await self._reconciler.run()})

    async def _release(self, request: web.Request) -> web.Response:
        uuid = self._known(request.match_info["uuid"])
        if not self._core.verbs.release(uuid):
            return web.json_response({"error": f"card {uuid} has no lease"}, status=409)
        return web.json_response({"ok": True})

    async def _quarantine(self, request: web.Request) -> web.Response:
        uuid = self._known(request.match_info["uuid"])
        body = await _body(request, {"reason"})
        self._core.reports.quarantine(self._core.state.by_uuid[uuid], _text(body, "reason") or "by an operator")
        return web.json_response({"ok": True})

    async def _intent(self, request: web.Request) -> web.Response:
        body = await _body(request, {"reboot", "until"})
        reboot = body.get("reboot")
        if reboot not in (None, "intending", "rebooting"):
            raise _BadRequest(f"reboot: {reboot!r}: must be null, 'intending' or 'rebooting'")
        try:
            until = _until(body["until"]) if reboot is not None else 0.0
        except (KeyError, ValueError):
            raise _BadRequest(f"until: {body.get('until')!r}: must be seconds or an RFC 3339 time") from None
        self._core.verbs.set_intent(reboot, until)
        return web.json_response({"ok": True})

    async def _borrow(self, request: web.Request) -> web.StreamResponse:
        """The answer's first line names the cards; the loan lasts as long as the connection."""
        body = await _body(request, {"memory_mib", "cards"})
        memory, count = _count(body, "memory_mib"), _count(body, "cards") or 1
        if count > len(self._core.state.cards):
            raise _BadRequest(f"cards: {count}: this host has {len(self._core.state.cards)}")
        demand = Demand(request=secrets.token_hex(8), alias="run", model="", arrived=time.monotonic())
        waiter = self._core.line.enqueue_loan(demand, memory, count)
        try:
            await waiter.granted
            return await self._lend(request, waiter)
        finally:
            self._core.line.withdraw(waiter)

    async def _lend(self, request: web.Request, waiter: Waiter) -> web.StreamResponse:
        cards = [lease.card for lease in waiter.loan]
        locks = self._core.config.locks_dir
        granted = [{"slot": c.slot, "uuid": c.uuid, "lock": str(lock_path(locks, c.slot))} for c in cards]
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        await response.write(json.dumps({"cards": granted}).encode() + b"\n")
        ended: list[asyncio.Future[str]] = [asyncio.ensure_future(asyncio.shield(lease.gone)) for lease in waiter.loan]
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while True:
                watched: list[asyncio.Future[Any]] = [*ended, closing]
                await asyncio.wait(watched, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
                over = next((future.result() for future in ended if future.done()), None)
                if over is not None:
                    await response.write(json.dumps({"ended": over}).encode() + b"\n")
                    return response
                if closing.done():
                    return response
                await response.write(b"\n")
        finally:
            closing.cancel()
            for future in ended:
                future.cancel()

    def _card(self, body: dict[str, Any]) -> str | None:
        uuid = _text(body, "card")
        return None if uuid is None else self._known(uuid)

    def _known(self, uuid: str) -> str:
        if uuid not in self._core.state.by_uuid:
            raise _BadRequest(f"card: {uuid!r}: unknown; this host has {', '.join(self._core.state.by_uuid)}")
        return uuid


def _until(value: Any) -> float:
    """A time in seconds or RFC 3339 (UTC where it names no zone), within what RFC 3339 can say. Raises ValueError."""
    if isinstance(value, str):
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        value = (moment - datetime.fromtimestamp(0, UTC)).total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("until must be seconds or RFC 3339")
    try:
        utc(value)
    except (OverflowError, OSError) as error:
        raise ValueError(f"until is out of range: {error}") from None
    return float(value)


async def _body(request: web.Request, known: set[str]) -> dict[str, Any]:
    data = await request.read()
    if not data.strip():
        return {}
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise _BadRequest("the body must be JSON") from None
    if body is None:
        return {}
    if not isinstance(body, dict) or not set(body) <= known:
        raise _BadRequest(f"the body must be an object with {', '.join(sorted(known))}")
    return body


def _text(body: dict[str, Any], key: str) -> str | None:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise _BadRequest(f"{key}: {value!r}: must be a string")
    return value


def _count(body: dict[str, Any], key: str) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _BadRequest(f"{key}: {value!r}: must be a whole number of at least 1")
    return value


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except _BadRequest as error:
        return web.json_response({"error": str(error)}, status=400)
    except Refused as refused:
        headers = {"Retry-After": str(refused.retry_after_s)} if refused.retry_after_s else {}
        return web.json_response({"error": refused.message, "code": refused.code}, status=refused.status, headers=headers)
    except web.HTTPException as error:
        return web.json_response({"error": error.reason}, status=error.status)
    except (SupervisorError, OSError) as error:
        if request.transport is None or request.transport.is_closing():
            raise  # nobody is left to be told
        return web.json_response({"error": str(error) or type(error).__name__}, status=500)
