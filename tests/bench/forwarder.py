"""The yardstick: a forwarder as anybody writes it with aiohttp and uvloop, untuned. `python -m tests.bench.forwarder PORT SOCKET`."""

from __future__ import annotations

import sys

import aiohttp
import uvloop
from aiohttp import web


async def forward(request: web.Request) -> web.StreamResponse:
    session: aiohttp.ClientSession = request.app[SESSION]
    headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
    async with session.post("http://worker" + request.path, data=await request.read(), headers=headers) as answer:
        if answer.content_type != "text/event-stream":
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        return response


SESSION = web.AppKey("session", aiohttp.ClientSession)


async def make_app() -> web.Application:
    app = web.Application()
    app[SESSION] = aiohttp.ClientSession(connector=aiohttp.UnixConnector(sys.argv[2], limit=0))
    app.router.add_post("/{path:.*}", forward)
    return app


if __name__ == "__main__":
    uvloop.install()
    web.run_app(make_app(), host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=lambda *_: None)
