"""A lease pool as DESIGN.md 4.3 describes its data plane, with cards that are only counted, and faults on request.

It records every request with its fleet headers and knows how many are open: a request that is left by its client gives its card back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.openai_answers import event, last_event, plain

TOKEN = "pool-token-of-the-doubles-0123456789abcdef"


@dataclass
class PoolDouble:
    """cards: memory sizes; models: alias → memory it needs. `fault`: a status to answer, `hang`, `reset` or `cut` (mid-stream)."""

    cards: list[int] = field(default_factory=lambda: [12, 12])
    models: dict[str, int] = field(default_factory=dict)
    queue_s: float = 5.0
    queue_bound: int = 64
    serve_s: float = 0.0
    token_s: float = 0.0
    tokens: int = 3
    fault: int | str | None = None
    draining: bool = False
    fault_headers: dict[str, str] = field(default_factory=dict)
    capacity_works: bool = True
    requests: list[dict[str, Any]] = field(default_factory=list)
    open: int = 0
    peak: int = 0
    gate: asyncio.Event | None = None

    def __post_init__(self) -> None:
        self._free = sorted(self.cards)
        self._waiters: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self, port: int = 0) -> None:
        # a handler is cancelled when its client leaves, as the real pool notices it
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/capacity", self._capacity)
        app.router.add_route("*", "/v1/{route:.*}", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        assert self._runner.addresses
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def reset(self) -> None:
        self.fault, self.fault_headers, self.capacity_works, self.draining = None, {}, True, False
        self.serve_s, self.token_s, self.tokens, self.queue_s, self.gate = 0.0, 0.0, 3, 5.0, None
        self.requests.clear()
        self.peak = 0

    async def all_closed(self) -> None:
        await self._idle.wait()

    @property
    def free(self) -> list[int]:
        return list(self._free)

    async def _capacity(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _error(401, "invalid_api_key")
        if not self.capacity_works:
            return _error(500, "broken")
        models = {
            f"model-of-{alias}": {
                "aliases": [alias],
                "free_cards": sum(card >= need for card in self._free),
                "waiting": sum(need == want for want, _ in self._waiters),
                "load_s_p50": 1.0,
                "failing": False,
            }
            for alias, need in self.models.items()
        }
        return web.json_response({"draining": self.draining, "queue": len(self._waiters), "models": models})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _error(401, "invalid_api_key")
        raw = await request.read()
        body = json.loads(raw) if raw else {}
        entry = {"path": request.path, "headers": dict(request.headers), "body": body, "queued": False}
        self.requests.append(entry)
        if isinstance(self.fault, int):
            return _error(self.fault, "worker_failed", self.fault_headers)
        if self.fault == "reset":
            assert request.transport is not None
            request.transport.abort()
            raise asyncio.CancelledError
        self.open += 1
        self._idle.clear()
        self.peak = max(self.peak, self.open)
        try:
            if self.fault == "hang":
                await asyncio.Event().wait()
            return await self._on_a_card(request, body, entry)
        finally:
            self.open -= 1
            if self.open == 0:
                self._idle.set()

    async def _on_a_card(self, request: web.Request, body: dict[str, Any], entry: dict[str, Any]) -> web.StreamResponse:
        need = self.models.get(str(body.get("model")), 0)
        try:
            card = await self._take(need, request.headers.get("x-gpu-fleet-max-wait-ms"), entry)
        except (TimeoutError, OverflowError):
            return _error(429, "no_card", {"Retry-After": "2"})
        try:
            if self.gate is not None:
                await self.gate.wait()
            await asyncio.sleep(self.serve_s)
            return await self._answer(request, body, {"x-gpu-fleet-card": f"GPU-{card}", "x-gpu-fleet-lease": "lease-1"})
        finally:
            self._give(card)

    async def _take(self, need: int, max_wait_ms: str | None, entry: dict[str, Any]) -> int:
        fitting = [card for card in self._free if card >= need]
        if fitting:
            self._free.remove(fitting[0])
            return fitting[0]
        wait = self.queue_s if max_wait_ms is None else int(max_wait_ms) / 1000
        if wait <= 0 or len(self._waiters) >= self.queue_bound:
            raise OverflowError
        entry["queued"] = True
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append((need, future))
        try:
            return await asyncio.wait_for(future, wait)
        except BaseException:
            if future.done() and not future.cancelled():
                self._give(future.result())
            with contextlib.suppress(ValueError):
                self._waiters.remove((need, future))
            raise

    def _give(self, card: int) -> None:
        for waiter in list(self._waiters):
            if card >= waiter[0] and not waiter[1].done():
                self._waiters.remove(waiter)
                waiter[1].set_result(card)
                return
        self._free = sorted([*self._free, card])

    async def _answer(self, request: web.Request, body: dict[str, Any], headers: dict[str, str]) -> web.StreamResponse:
        if not body.get("stream"):
            return web.json_response(plain(request.path, body), headers=headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **headers})
        await response.prepare(request)
        for number in range(self.tokens):
            await response.write(event(request.path, body, number))
            if self.fault == "cut":
                assert request.transport is not None
                request.transport.abort()
                return response
            await asyncio.sleep(self.token_s)
        await response.write(last_event(request.path, body))
        await response.write_eof()
        return response


def _error(status: int, code: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": {"message": code, "type": "pool", "param": None, "code": code}}, status=status, headers=headers)
