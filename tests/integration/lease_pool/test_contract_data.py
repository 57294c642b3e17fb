"""The data plane's table of errors, its headers and its bounds, row by row, on a real pool with real workers."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import aiohttp
import pytest

from tests.support.pool_rig import PYTHON, TOKEN, WORKERS, Maker, PoolRig, model

KEYS = {"message", "type", "param", "code"}


async def raw(rig: PoolRig, method: str, path: str, data: bytes | None = None, token: str | None = TOKEN, **headers: str) -> Any:
    assert rig.session is not None
    sent = {k.replace("_", "-"): v for k, v in headers.items()}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    async with rig.session.request(method, f"http://127.0.0.1:{rig.port}{path}", data=data, headers=sent) as response:
        return response.status, response.headers, await response.read()


def refused(answer: Any, status: int) -> dict[str, Any]:
    assert answer[0] == status, answer
    data = json.loads(answer[2])
    assert set(data) == {"error"}, data
    assert set(data["error"]) == KEYS, data
    return data["error"]


async def test_every_refusal_before_a_lease_has_its_status_its_envelope_and_takes_no_card(rigs: Maker) -> None:
    rig = rigs(1, {"m": model(aliases=["t4-m"]), "e": model(endpoints=["embeddings"])}, bounds={"body_mib": 1})
    await rig.start()
    chat = "/v1/chat/completions"
    body = json.dumps({"model": "m"}).encode()
    for token in (None, "", "wrong", TOKEN + "x"):
        for method, path in (
            ("POST", chat),
            ("GET", "/v1/models"),
            ("GET", "/metrics"),
            ("GET", "/capacity"),
            ("GET", "/api/tags"),
            ("GET", "/"),
        ):
            refused(await raw(rig, method, path, token=token), 401)
    for data in (b"{", b"[]", b"null", b"", b'{"model": "m"'):
        refused(await raw(rig, "POST", chat, data), 400)
    for data in (b"{}", b'{"model": 3}', b'{"model": null}', b'{"model": ["m"]}'):
        error = refused(await raw(rig, "POST", chat, data), 400)
        assert "model" in error["message"]
        assert error["param"] == "model"
    error = refused(await raw(rig, "POST", chat, b'{"model": "e"}'), 400)
    assert "e" in error["message"]
    assert chat in error["message"]
    error = refused(await raw(rig, "POST", chat, b'{"model": "nope"}'), 404)
    assert error["code"] == "model_not_found"
    assert "t4-m" not in json.dumps(error)
    refused(await raw(rig, "POST", chat, b'{"model": "m", "x": "' + b"y" * (1 << 20) + b'"}'), 413)
    probes = [("GET", p) for p in ("/api/tags", "/props", "/version", "/v1/props", "/slots", "/", "/v1", "/v1/models/m", chat)]
    for method, path in [
        *probes,
        ("POST", "/api/show"),
        ("PUT", "/v1/models"),
        ("POST", "/v1/models"),
        ("DELETE", chat),
        ("POST", "/health"),
    ]:
        refused(await raw(rig, method, path, body if method == "POST" else None), 404)
    for path in ("/health", "/ready"):
        assert (await raw(rig, "GET", path, token=None))[0] == 200
    assert not [e for e in await rig.events("state") if e["outcome"] == "freeing"]


async def test_a_request_answered_at_once_never_counts_as_a_waiter_and_a_full_queue_says_when_to_come_again(rigs: Maker) -> None:
    rig = rigs(2, bounds={"queue": 1, "queue_s": 1.5})
    await rig.start()
    running = [asyncio.create_task(rig.ask({"delay": 3})) for _ in range(2)]
    await rig.until_all("serving")
    assert (await rig.get("/capacity"))[1]["queue"] == 0
    assert (await rig.get("/capacity"))[1]["models"]["m"] == {
        "aliases": ["t4-m"], "free_cards": 0, "waiting": 0, "load_s_p50": pytest.approx(1, abs=3), "failing": False
    }  # fmt: skip
    waiting = asyncio.create_task(raw(rig, "POST", "/v1/chat/completions", b'{"model": "m"}'))

    async def one_waits() -> bool:
        return bool((await rig.status())["queue"] == 1)

    await rig.until(one_waits, "one waits")
    for headers in ({}, {"x_gpu_fleet_max_wait_ms": "0"}):
        began = time.monotonic()
        answer = await raw(rig, "POST", "/v1/chat/completions", b'{"model": "m"}', **headers)
        refused(answer, 429)
        assert int(answer[1]["Retry-After"]) >= 1
        assert time.monotonic() - began < 0.5
    answer = await waiting
    refused(answer, 429)
    assert int(answer[1]["Retry-After"]) >= 1
    assert [status for status, _ in await asyncio.gather(*running)] == [200, 200]


@pytest.mark.parametrize(
    ("bounds", "extra", "body", "expected"),
    [
        ({"ready_s": 0.6}, ("--mode", "never-ready"), {}, (504, "ready_s")),
        ({"request_s": 0.6}, (), {"delay": 5}, (504, "request_s")),
        ({"request_s": 0.6}, ("--load", "5"), {}, (504, "request_s")),
        ({"first_byte_s": 0.6}, (), {"delay": 5, "stream": True}, (504, "first_byte_s")),
        ({}, ("--mode", "die-request"), {"stream": True}, (502, "")),
    ],
)
async def test_a_deadline_or_a_dead_worker_is_told_before_and_after_the_200_and_the_next_worker_is_a_fresh_one(
    rigs: Maker, bounds: dict[str, float], extra: tuple[str, ...], body: dict[str, Any], expected: tuple[int, str]
) -> None:
    status, name = expected
    rig = rigs(1, {"m": model(*extra), "n": model()}, window_s=60, bounds=bounds)
    await rig.start()
    error = refused(await raw(rig, "POST", "/v1/chat/completions", json.dumps({"model": "m"} | body).encode()), status)
    assert name in error["message"]
    # The same for a stream whose 200 left as a ping.
    if name in ("ready_s", "first_byte_s"):
        rig.config["bounds"]["ping_s"] = 0.15
        rig.write()
        rig.kill(signal.SIGHUP)
        await rig.until(lambda: "reloaded" in rig.log.read_text(), "reloaded")
        await rig.until_all("mining")
        async with rig.post({"stream": True} | body) as response:
            text = await response.text()
            assert response.status == 200
        assert text.startswith(": ping\n\n")
        last = json.loads(text.rstrip().rpartition("data: ")[2])
        assert set(last["error"]) == KEYS
        assert last["error"]["code"] == error["code"]
        assert "[DONE]" not in text
    assert (await rig.ask({"model": "n"}))[0] == 200


async def test_a_stalled_stream_and_one_whose_worker_dies_end_with_an_error_event_and_a_closed_body(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "die-stream"), "n": model()}, bounds={"stall_s": 0.5})
    await rig.start()
    for name, body, code in (("m", {}, "worker_failed"), ("n", {"gap": 5}, "deadline_stall_s")):
        async with rig.post({"model": name, "stream": True} | body) as response:
            text = await response.text()  # raises if the chunked body is not closed properly
            assert response.headers["X-Accel-Buffering"] == "no"
            assert {"x-gpu-fleet-card", "x-gpu-fleet-lease", "x-gpu-fleet-queued-ms", "x-gpu-fleet-load-ms"} <= {
                k.lower() for k in response.headers
            }
        error = json.loads(text.rstrip().rpartition("data: ")[2])["error"]
        assert (set(error), error["code"], "[DONE]" in text) == (KEYS, code, False)
    await rig.until_all("mining")


SERVER = """
import sys, json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class H(BaseHTTPRequestHandler):
    def do_GET(self): self.say(200 if self.path == "/alive" else 404)
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if b"teapot" in body: return self.say(418, {"detail": "short and stout"})
        self.say(200, {"argv": sys.argv[1:], "env": dict(os.environ), "headers": dict(self.headers), "body": body.decode()})
    def say(self, status, what=None):
        data = json.dumps(what).encode()
        self.send_response(status); self.send_header("Content-Length", str(len(data))); self.end_headers(); self.wfile.write(data)
host, port = sys.argv[1].removeprefix("--at=").split(":")
ThreadingHTTPServer((host, int(port)), H).serve_forever()
"""


async def test_placeholders_are_filled_anywhere_and_the_worker_gets_its_own_environment_and_no_notes_of_the_gateway(rigs: Maker) -> None:
    rig = rigs(1)
    script = rig.folder / "server.py"
    script.write_text(SERVER)
    rig.config["models"] = {
        "p": {
            "backend": "command", "memory_mib": 1, "endpoints": ["chat"], "ready": "/alive", "file": "/models/x.gguf",
            "env": {"A": "b", "WHERE": "on-{slot}-{port}"},
            "argv": [PYTHON, "-S", str(script), "--at={host}:{port}", "x{uuid}y{slot}z", "{file}", "{api_key_file}", "--host", "--port=1", "{other}"],
        }
    }  # fmt: skip
    rig.write()
    await rig.start({"CUDA_VISIBLE_DEVICES": "7", "CUDA_CACHE": "1", "NVIDIA_X": "1", "LLAMA_ARG_PORT": "1", "KEEP": "1"})
    sent = b'{ "model":"p",  "unknown": [1.0, 1e5], "u": "\\u00e9\xc3\xa9" }'
    notes = {"x_gpu_fleet_principal": "alice", "x_gpu_fleet_class": "restricted", "x_request_id": "r-1"}
    status, headers, data = await raw(rig, "POST", "/v1/chat/completions", sent, **notes)
    assert status == 200, data
    got = json.loads(data)
    assert got["body"].encode() == sent
    at, names, file, key, *rest = got["argv"]
    assert at.startswith("--at=127.0.0.1:")
    assert (names, file, rest) == ("xGPU-0yc0z", "/models/x.gguf", ["--host", "--port=1", "{other}"])
    assert key.startswith(str(rig.folder))
    env = got["env"]
    assert (env["A"], env["KEEP"], env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("b", "1", "GPU-0", "PCI_BUS_ID")
    assert env["WHERE"] == f"on-c0-{at.rpartition(':')[2]}"
    assert not [k for k in env if k.startswith(("NVIDIA_", "LLAMA_")) or k == "CUDA_CACHE"]
    assert not [k for k in got["headers"] if k.lower().startswith("x-gpu-fleet") or k.lower() == "x-request-id"]
    assert TOKEN not in json.dumps(got)
    assert headers["x-gpu-fleet-card"] == "GPU-0"
    request = (await rig.events("request"))[-1]
    assert (request["principal"], request["class"], request["request"], request["outcome"]) == ("alice", "restricted", "r-1", "ok")
    answer = await raw(rig, "POST", "/v1/chat/completions", b'{"model":"p","messages":"teapot"}')
    assert "short and stout" in refused(answer, 418)["message"]
    await rig.until_all("mining")


async def test_a_worker_that_answered_500_serves_its_other_requests_to_their_end_and_takes_no_new_one(rigs: Maker) -> None:
    rig = rigs(1, {"m": model(parallel=3)}, window_s=60)
    rig.config["models"]["m"]["argv"] = [PYTHON, "-I", "-S", str(WORKERS / "worker.py"), "--socket", "{socket}"]
    rig.write()
    await rig.start()
    long = asyncio.create_task(rig.ask({"delay": 1.5}))
    await rig.until_state("serving")
    pid = (await rig.card())["lease"]["worker_pid"]
    assert (await rig.ask({"delay": 0, "fail": 500}))[0] == 502
    fresh = await rig.ask()
    assert long.done()
    assert (await long)[0] == 200
    assert (await long)[1]["pid"] == pid
    assert (fresh[0], fresh[1]["pid"] != pid) == (200, True)


async def test_a_client_that_leaves_in_any_phase_gives_its_card_back_within_two_seconds(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--load", "0.6"), "n": model()}, bounds={"stop_s": 1})
    await rig.start()
    for body, state in (
        ({"stream": True}, "loading"),
        ({"delay": 30}, "serving"),
        ({"delay": 30, "stream": True}, "serving"),
        ({"stream": True, "gap": 1}, "serving"),
    ):
        task = asyncio.create_task(rig.ask(body))
        await rig.until_state(state)
        waiting = asyncio.create_task(rig.ask({"model": "n"}))
        await asyncio.sleep(0.2)
        waiting.cancel()
        task.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
        began = time.monotonic()
        await rig.until_state("mining")
        assert time.monotonic() - began < 2.0, (body, state)
        assert (await rig.admin("GET", "/leases"))["leases"] == []
        assert (await rig.status())["queue"] == 0


async def test_requests_next_in_line_that_leave_are_no_lease_for_ever(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "ignore-term"), "n": model()}, bounds={"stop_s": 1.5})
    await rig.start()
    assert (await rig.ask())[0] == 200
    await rig.until_state("unloading")
    for _ in range(2):
        gone = asyncio.create_task(rig.ask({"model": "n"}))
        await asyncio.sleep(0.2)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    await rig.until_state("mining")
    assert (await rig.admin("GET", "/leases"))["leases"] == []
    assert "gpu_fleet_leases_active{" not in (await rig.get("/metrics"))[1]


async def test_the_http_parser_s_own_refusals_have_the_envelope_too(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    for bad in (b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"POST /v1/models HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(bad)
        head, _, data = (await reader.read()).partition(b"\r\n\r\n")
        assert b" 400 " in head.splitlines()[0]
        assert set(json.loads(data)["error"]) == KEYS
        writer.close()
    with pytest.raises(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session, session.get(f"https://127.0.0.1:{rig.port}/health"):
            pass
