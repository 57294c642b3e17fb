"""A hosted provider: whatever reaches it has left the fleet. It answers anything and records every request."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tests.support.openai_answers import event, last_event, plain


class HostedDouble:
    """`requests`: what left the fleet; `status`: what it answers."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.status = 200
        self.url = ""
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.requests.append({"path": request.path, "headers": dict(request.headers), "text": text})
        if self.status != 200:
            return web.json_response({"error": {"message": "no", "type": "x", "param": None, "code": "x"}}, status=self.status)
        try:
            body = await request.json() if text else {}
        except ValueError:
            body = {}
        if not (isinstance(body, dict) and body.get("stream")):
            return web.json_response(plain(request.path, body if isinstance(body, dict) else {}))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event(request.path, body, 0))
        await response.write(last_event(request.path, body))
        return response
