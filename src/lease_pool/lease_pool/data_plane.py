"""The data plane (DESIGN.md 4.3): authentication, routes, admission, and one `async with` a request that holds its share of a lease."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from pathlib import Path
from time import monotonic
from typing import Any

from aiohttp import web

from lease_pool import incoming
from lease_pool.envelope import RefusedParam
from lease_pool.forward import Call, Forward, deadline_passed
from lease_pool.headers import to_worker
from lease_pool.http_server import Connection, HttpServer, listening_sockets
from lease_pool.reply import JSON, Reply
from lease_pool.tokens import Tokens
from lease_pool.types import Core, Demand, Grant, Refused
from lease_pool.upstream import Upstream
from lease_pool.watch import Watch

log = logging.getLogger("lease_pool.data_plane")

_OPEN_PATHS = ("/health", "/ready")
_BACKLOG = 1024
_COUNTED = frozenset((*incoming.ENDPOINTS, *_OPEN_PATHS, "/v1/models", "/capacity", "/metrics"))  # a client's own words are no label
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


def make_server(core: Core) -> DataPlane:
    """The data plane of a core. Raises ConfigError when the token file cannot be read."""
    return DataPlane(core)


class DataPlane:
    """Listens, answers and forwards. The core owns the cards; this owns the bytes.

    Order at stop: the core drains first (`lease` refuses, so new requests, on new connections too, are answered 503), then `close`.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tokens = Tokens(core.config.token_file)
        self._upstreams: dict[str, Upstream] = {}
        self._http: HttpServer | None = None
        self._servers: list[asyncio.Server] = []
        self.port = 0
        if not self._tokens:
            log.warning("%s has no token: every request but /health and /ready is answered 401", core.config.token_file)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the address cannot be had. `port` 0 takes a free one; `self.port` tells which."""
        loop = asyncio.get_running_loop()
        self._http = HttpServer(self._serve, self._core.answered)
        for sock in listening_sockets(host, port):
            self._servers.append(await loop.create_server(self._http, sock=sock, backlog=_BACKLOG))
            self.port = sock.getsockname()[1]

    async def close(self, grace_s: float = 2.0) -> None:
        """Stop listening, let answers that are being written finish for `grace_s`, then cut what is left."""
        for server in self._servers:
            server.close()
        if self._http is not None:
            self._http.pre_shutdown()
            await self._http.shutdown(grace_s)
        for upstream in self._upstreams.values():
            upstream.close()
        self._upstreams.clear()
        self._servers.clear()

    def reload_tokens(self, path: Path) -> None:
        """Read the token file again (SIGHUP). Raises ConfigError and keeps the old tokens when it cannot be read."""
        self._tokens.reload(path)

    @property
    def sockets(self) -> list[socket.socket]:
        """What is listened on."""
        return [sock for server in self._servers for sock in server.sockets]

    async def _serve(self, request: web.BaseRequest) -> Any:
        """One request, from its head to aiohttp's fate of the connection. CancelledError passes through: the client left."""
        connection = request.protocol
        assert isinstance(connection, Connection)  # noqa: S101  HttpServer makes no others
        connection.busy = True
        connection.head_complete()
        reply = Reply(request)
        path = request.raw_path.partition("?")[0]
        try:
            try:
                await self._answer(request, reply, path)
            except Refused as refused:
                if refused.status >= 500:
                    log.info("answered %d %s: %s", refused.status, refused.code, refused.message)
                reply.refuse(refused)
            if reply.blocked:
                async with asyncio.timeout(self._core.config.bounds.stall_s):
                    await reply.drained()
        except (ConnectionError, TimeoutError):
            reply.abort()
        except Exception:
            log.exception("request failed")
            reply.refuse(Refused(500, "internal_error", "the pool failed; its log says why"))
        finally:
            connection.busy = False
            self._core.answered(path if path in _COUNTED else "other", reply.status)
        return reply.outcome

    async def _answer(self, request: web.BaseRequest, reply: Reply, path: str) -> None:
        method = request.method
        if path in _OPEN_PATHS and method in ("GET", "HEAD"):
            self._open(path, reply)
            return
        authorization = request.headers.getall("Authorization", ())
        if path not in _OPEN_PATHS and not (len(authorization) == 1 and self._tokens.match(authorization[0])):
            reply.keep = reply.keep and request.content.is_eof()
            raise Refused(401, "unauthorized", "a valid bearer token is needed")
        endpoint = incoming.ENDPOINTS.get(path) if method == "POST" else None
        if endpoint is not None:
            await self._infer(request, reply, path, endpoint)
        elif method in ("GET", "HEAD") and path == "/v1/models":
            _json(reply, 200, self._catalog())
        elif method in ("GET", "HEAD") and path == "/capacity":
            _json(reply, 200, self._core.capacity())
        elif method in ("GET", "HEAD") and path == "/metrics":
            reply.send(200, _METRICS, await self._core.metrics())
        else:
            reply.keep = reply.keep and request.content.is_eof()
            raise Refused(404, "not_found", "there is nothing here")

    async def _infer(self, request: web.BaseRequest, reply: Reply, path: str, endpoint: str) -> None:
        arrived = monotonic()
        core = self._core
        bounds = core.config.bounds
        body_max = int(bounds.body_mib * 2**20)
        try:
            incoming.declared_framing(request, body_max)
            if incoming.expectation(request) and not request.content.is_eof():
                reply.go_on()
            body = await incoming.read_body(request, body_max)
        except Refused:
            reply.keep = False
            raise
        asked = incoming.asked(request, body, body_max)
        max_wait = incoming.max_wait_s(request)
        model = core.resolve(asked.model)
        if model is None:
            raise RefusedParam(404, "model_not_found", "there is no such model here", "model")
        if endpoint not in model.endpoints:
            raise RefusedParam(400, "wrong_endpoint", f"model {asked.model} is not served at {path}", "model")
        demand = Demand(
            request=incoming.request_id(request),
            alias=asked.model,
            model=model.name,
            arrived=arrived,
            max_wait_s=max_wait,
            principal=incoming.note(request, "x-gpu-fleet-principal"),
            data_class=incoming.note(request, "x-gpu-fleet-class"),
        )
        call = Call(path, to_worker(request.raw_headers, asked.stream), body, asked.stream, arrived)
        watch = Watch(reply, bounds.ping_s if asked.stream else None)
        try:
            # Entering the lease admits or refuses before anything is awaited, so before a ping could take the 200 out.
            # A stream has no bound over all of it; the queue and the load have their own, in the core.
            async with asyncio.timeout_at(None if asked.stream else arrived + bounds.request_s) as limit, core.lease(demand) as grant:
                limit.reschedule(None)
                await Forward(call, grant, reply, watch, bounds).run(self._upstream(grant))
        except TimeoutError:
            if not limit.expired():
                raise
            raise deadline_passed("request_s", bounds.request_s) from None
        finally:
            watch.stop()

    def _upstream(self, grant: Grant) -> Upstream:
        """The connections to the lease's worker; a new worker on the card means new ones."""
        slot, endpoint = grant.card.slot, grant.endpoint
        upstream = self._upstreams.get(slot)
        if upstream is None or (upstream.endpoint is not endpoint and upstream.endpoint != endpoint):
            if upstream is not None:
                upstream.close()
            upstream = self._upstreams[slot] = Upstream(endpoint)
        return upstream

    def _open(self, path: str, reply: Reply) -> None:
        if path == "/health":
            _json(reply, 200, {"status": "ok"})
        else:
            state = self._core.ready()
            _json(reply, 200 if state["ready"] else 503, state)

    def _catalog(self) -> dict[str, Any]:
        names = [name for model in self._core.models() for name in model.names]
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "gpu-fleet"} for name in names]}


def _json(reply: Reply, status: int, data: Any) -> None:
    reply.send(status, JSON, json.dumps(data, separators=(",", ":")).encode())
