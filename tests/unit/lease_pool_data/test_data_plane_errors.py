"""The error table of DESIGN.md 4.3, row by row."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from lease_pool.types import Refused

from tests.support.worker_fake_core import CHAT, SECOND_TOKEN, TOKEN
from tests.support.worker_rig import STREAM, get, head, make_rig, post, until
from tests.support.worker_scripted import CHUNKED_END, EVENTS_HEAD, Received, always, chunk, event, response, then_close, then_hang

EMBED = {"model": "embed", "input": "x"}


async def test_health_and_ready_need_no_token_and_say_what_they_know(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        assert (await rig.ask(get("/health", token=None))).status == 200
        ready = await rig.ask(get("/ready", token=None))
        assert (ready.status, ready.json()) == (200, {"ready": True, "draining": False, "rebooting": None})
        rig.core.draining = True
        drained = await rig.ask(get("/ready", token=None))
        assert (drained.status, drained.json()) == (503, {"ready": False, "draining": True, "rebooting": None})
        assert (await rig.ask(get("/health", token=None))).status == 200


@pytest.mark.parametrize(
    "path", ["/v1/models", "/capacity", "/metrics", "/nothing", "/", "/api/tags", "//health", "/health/", "/v1/../health"]
)
async def test_every_other_path_wants_a_token_before_it_tells_whether_it_exists(tmp_path: Path, path: str) -> None:
    async with make_rig(tmp_path) as rig:
        for data in (get(path, token=None), get(path, token="wrong"), get(path, token=""), get(path, token=TOKEN[:-1])):
            answer = await rig.ask(data)
            assert answer.status == 401
            assert answer.error()["code"] == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_all_listed_tokens_are_valid_and_a_reload_changes_them(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        assert [(await rig.ask(get("/v1/models", token=t))).status for t in (TOKEN, SECOND_TOKEN)] == [200, 200]
        (tmp_path / "pool.token").write_text("\n  third \n\n")
        assert (await rig.ask(get("/v1/models"))).status == 200
        rig.plane.reload_tokens(tmp_path / "pool.token")
        assert [(await rig.ask(get("/v1/models", token=t))).status for t in (TOKEN, SECOND_TOKEN, "", " ", "third")] == [
            401,
            401,
            401,
            401,
            200,
        ]


async def test_a_token_in_another_scheme_or_twice_is_refused(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        for line in (f"Basic {TOKEN}", TOKEN, f"Bearer{TOKEN}", "Bearer", f"Bearer {TOKEN}, Bearer {TOKEN}"):
            assert (await rig.ask(get("/v1/models", token=None, Authorization=line))).status == 401
        twice = head("GET", "/v1/models").replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert (await rig.ask(twice)).status in (400, 401)
        assert (await rig.ask(get("/v1/models", token=None, Authorization=f"bearer {TOKEN}"))).status == 200


async def test_a_request_without_a_token_is_refused_before_its_body_is_read(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        client = await rig.connect()
        await client.send(head("POST", token=None, Content_Length="1000"))
        assert (await client.answer()).status == 401


@pytest.mark.parametrize("request_line", [
    ("GET", "/api/tags"), ("GET", "/props"), ("GET", "/version"), ("GET", "/v1/props"), ("POST", "/api/show"), ("GET", "/v1/chat/completions"),
    ("POST", "/v1/models"), ("POST", "/v1//chat/completions"), ("POST", "/v1/chat/completions/"), ("POST", "/v1/./chat/completions"), ("POST", "/v1/%63hat/completions"),
    ("POST", "/V1/chat/completions"), ("POST", "/x/../v1/chat/completions"), ("PUT", "/v1/chat/completions"), ("DELETE", "/v1/models"), ("GET", "http://pool/v1/models"),
    ("POST", "/health"), ("OPTIONS", "/v1/models"), ("GET", "/v1/models/t3-code"), ("GET", "/slots"),
])  # fmt: skip
async def test_anything_else_is_404_and_takes_no_lease(tmp_path: Path, request_line: tuple[str, str]) -> None:
    async with make_rig(tmp_path) as rig:
        answer = await rig.ask(head(*request_line, Content_Length="2") + b"{}")
        assert answer.status == 404
        assert answer.error()["code"] == "not_found"
        assert not rig.core.demands


BAD_BODIES: list[tuple[bytes, str | None]] = [
    (b"", None), (b"{", None), (b"[]", None), (b"null", None), (b'"x"', None), (b"\xff\xfe", None), (b"[" * 100_000, None), (b'{"a":' * 100_000, None),
    (b"{}", "model"), (b'{"model": null}', "model"), (b'{"model": 3}', "model"), (b'{"model": ["t3-code"]}', "model"),
    (b'{"model": "t3-code", "stream": "yes"}', "stream"), (b'{"model": "t3-code", "stream": 1}', "stream"), (b'{"model": "t3-code"} x', None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), BAD_BODIES)
async def test_a_bad_body_is_400_naming_the_field(tmp_path: Path, body: bytes, param: str | None) -> None:
    async with make_rig(tmp_path) as rig:
        answer = await rig.ask(post(body))
        assert answer.status == 400
        error = answer.error()
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
        assert param is None or param in error["message"]
        assert not rig.core.demands


async def test_the_wrong_endpoint_for_a_model_is_400(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        for data, path in (
            (EMBED, "/v1/chat/completions"),
            (CHAT, "/v1/embeddings"),
            (CHAT, "/v1/rerank"),
            (CHAT, "/v1/images/generations"),
        ):
            answer = await rig.ask(post(data, path))
            assert answer.status == 400
            assert path in answer.error()["message"]


async def test_an_unknown_model_is_404_and_no_model_is_listed(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        for name in ("nope", "", "T3-CODE", "chat-model\n", "../chat-model"):
            answer = await rig.ask(post(CHAT | {"model": name}))
            assert answer.status == 404
            assert answer.error()["code"] == "model_not_found"
            assert b"chat-model" not in answer.body
            assert b"t3-code" not in answer.body


async def test_a_body_over_the_bound_is_413_declared_or_chunked_or_unpacked(tmp_path: Path) -> None:
    async with make_rig(tmp_path, bounds={"body_mib": 0.01}) as rig:
        limit = int(0.01 * 2**20)
        client = await rig.connect()
        await client.send(head(Content_Length="99999999999"))
        assert (await client.answer()).error()["code"] == "body_too_large"
        big = b'{"model": "t3-code", "x": "' + b"a" * limit + b'"}'
        assert (await rig.ask(post(big))).status == 413
        assert (await rig.ask(head(Transfer_Encoding="chunked") + chunk(big[:5000]) + chunk(big[5000:]) + CHUNKED_END)).status == 413
        assert (await rig.ask(post(gzip.compress(big), Content_Encoding="gzip"))).status == 413
        assert not rig.core.demands


async def test_full_and_draining_carry_retry_after_in_whole_seconds(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        for refused, after in (
            (Refused(429, "queue_full", "full", 12), "12"),
            (Refused(429, "queue_full", "full"), "1"),
            (Refused(503, "no_card", "none", 0), "1"),
        ):
            rig.core.refuse_admission = refused
            for data in (CHAT, STREAM):
                answer = await rig.ask(post(data))
                assert (answer.status, answer.headers["retry-after"], answer.error()["code"]) == (refused.status, after, refused.code)
        rig.core.refuse_admission = None
        rig.core.draining = True
        answer = await rig.ask(post())
        assert (answer.status, answer.headers["retry-after"]) == (503, "7")


async def test_a_request_with_max_wait_zero_waits_for_nothing(tmp_path: Path) -> None:
    async with make_rig(tmp_path, cards=1) as rig:
        rig.core.load_gate.clear()
        first = await rig.connect()
        await first.send(post())
        await until(lambda: rig.core.active)
        answer = await rig.ask(post(x_gpu_fleet_max_wait_ms="0"))
        assert (answer.status, answer.headers["retry-after"]) == (429, "3")
        rig.core.load_gate.set()
        assert (await first.answer()).status == 200
        await rig.ask(post(x_gpu_fleet_max_wait_ms="1500"))
        assert rig.core.demands[-1].max_wait_s == 1.5
        for bad in ("-1", "x", "1.5", "1e3", "9" * 13):
            assert (await rig.ask(post(x_gpu_fleet_max_wait_ms=bad))).status == 400


async def test_a_worker_that_dies_before_the_first_byte_is_502(tmp_path: Path) -> None:
    for death in (
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        EVENTS_HEAD,
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\nContent-Type: application/json\r\n\r\n{",
    ):
        async with make_rig(tmp_path, then_close(death)) as rig:
            for data in (CHAT, STREAM):
                if data is STREAM and death.endswith(b"{"):
                    continue  # a byte of it is out by then
                answer = await rig.ask(post(data))
                assert answer.status == 502
                assert answer.error()["code"] == "worker_failed"
            assert rig.core.failures
        (tmp_path / "worker.sock").unlink(missing_ok=True)


async def test_no_worker_at_its_socket_is_502(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        (tmp_path / "worker.sock").unlink()
        assert (await rig.ask(post())).status == 502
        assert (await rig.ask(post(STREAM))).status == 502


@pytest.mark.parametrize(("body", "expected"), [
    (b'{"error": {"message": "too long", "type": "exceed", "param": "messages", "code": "ctx"}}', ("too long", "exceed", "messages", "ctx")),
    (b'{"error": {"code": 400, "message": "n", "type": "invalid_request_error", "n_ctx": 4}}', ("n", "invalid_request_error", None, "worker_refused")),
    (b'{"error": "plain"}', ("plain", "invalid_request_error", None, "worker_refused")),
    (b'{"detail": "d"}', ("d", "invalid_request_error", None, "worker_refused")),
    (b"just text", ("just text", "invalid_request_error", None, "worker_refused")),
    (b"", ("the worker answered 422", "invalid_request_error", None, "worker_refused")),
    (b"[1]", ("the worker answered 422", "invalid_request_error", None, "worker_refused")),
])  # fmt: skip
async def test_a_workers_4xx_is_passed_on_in_the_envelope(tmp_path: Path, body: bytes, expected: tuple[Any, ...]) -> None:
    async with make_rig(tmp_path, always(response(body, "422 Unprocessable", extra="Retry-After: 9\r\n"))) as rig:
        for data in (CHAT, STREAM):
            answer = await rig.ask(post(data))
            assert answer.status == 422
            error = answer.error()
            assert (error["message"], error["type"], error["param"], error["code"]) == expected
        assert not rig.core.failures


@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Service Unavailable", "302 Found", "101 Switching Protocols"])
async def test_a_workers_5xx_is_502_and_the_worker_is_given_up(tmp_path: Path, status: str) -> None:
    async with make_rig(tmp_path, always(response(b'{"error": {"message": "CUDA error"}}', status))) as rig:
        for data in (CHAT, STREAM):
            assert (await rig.ask(post(data))).error()["code"] == "worker_failed"
        assert len(rig.core.failures) == 2
        assert rig.core.outcomes == {"worker_failed": 2}


async def test_each_deadline_is_a_504_that_names_it(tmp_path: Path) -> None:
    bounds = {"request_s": 0.3, "first_byte_s": 0.4, "stall_s": 0.3, "ping_s": 50}
    async with make_rig(tmp_path, then_hang(b""), bounds=bounds) as rig:
        whole, stream = await rig.ask(post()), await rig.ask(post(STREAM))
        assert (whole.status, whole.error()["code"]) == (504, "deadline_request_s")
        assert "request_s" in whole.error()["message"]
        assert (stream.status, stream.error()["code"]) == (504, "deadline_first_byte_s")
        assert len(rig.core.failures) == 2


async def test_request_s_counts_from_arrival_queue_and_load_included(tmp_path: Path) -> None:
    async with make_rig(tmp_path, bounds={"request_s": 0.3}) as rig:
        rig.core.load_gate.clear()
        answer = await rig.ask(post())
        assert (answer.status, answer.error()["code"]) == (504, "deadline_request_s")
        rig.core.queue_gate.clear()
        assert (await rig.ask(post())).status == 504
        assert not rig.core.active
        assert not rig.core.failures


async def test_a_stalled_stream_ends_with_an_error_event_that_names_the_deadline(tmp_path: Path) -> None:
    async with make_rig(tmp_path, then_hang(EVENTS_HEAD + chunk(event("a"))), bounds={"stall_s": 0.3}) as rig:
        answer = await rig.ask(post(STREAM))
        assert answer.status == 200
        events = answer.body.split(b"\n\n")
        assert events[0] + b"\n\n" == event("a")
        assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == "deadline_stall_s"
        assert events[2:] == [b""]
        assert rig.core.failures


@pytest.mark.parametrize("rest", [b"", b'data: {"half', b"7"])
async def test_a_worker_that_dies_mid_stream_ends_in_an_error_event_and_never_in_silence(tmp_path: Path, rest: bytes) -> None:
    partial = chunk(rest) if len(rest) > 1 else rest
    async with make_rig(tmp_path, then_close(EVENTS_HEAD + chunk(event("a")) + partial)) as rig:
        answer = await rig.ask(post(STREAM))
        first, last = answer.body.split(b"\n\n")[:2]
        assert first + b"\n\n" == event("a")
        assert json.loads(last.removeprefix(b"data: "))["error"] == {
            "message": "the worker ended in the middle of its answer", "type": "server_error", "param": None, "code": "worker_failed",
        }  # fmt: skip
        assert b"[DONE]" not in answer.body
        assert rig.core.failures


async def test_a_worker_without_framing_that_dies_is_no_end_of_a_stream(tmp_path: Path) -> None:
    unframed = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    async with make_rig(tmp_path, then_close(unframed + event("a"))) as rig:
        assert b'"worker_failed"' in (await rig.ask(post(STREAM))).body
    (tmp_path / "worker.sock").unlink(missing_ok=True)
    async with make_rig(tmp_path, then_close(unframed + event("a") + b"data: [DONE]\n\n")) as rig:
        assert (await rig.ask(post(STREAM))).body == event("a") + b"data: [DONE]\n\n"
        assert not rig.core.failures


@pytest.mark.parametrize("promised", [10, 1000], ids=["less than an error event", "more than an error event"])
async def test_events_of_a_promised_length_that_break_off_end_in_a_whole_error_event(tmp_path: Path, promised: int) -> None:
    promise = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(event('a')) + promised}\r\n\r\n".encode()
    async with make_rig(tmp_path, then_close(promise + event("a"))) as rig:
        answer = await rig.ask(post(STREAM))
        first, last = answer.body.split(b"\n\n")[:2]
        assert first + b"\n\n" == event("a")
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "worker_failed"


async def test_an_answer_that_nobody_asked_for_is_never_the_next_client_s(tmp_path: Path) -> None:
    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response(json.dumps({"n": len(rig.worker.received)}).encode()))
        await asyncio.sleep(0.05)
        writer.write(response(b'{"stray": 1}'))
        await writer.drain()

    async with make_rig(tmp_path, behave) as rig:
        for number in range(1, 4):
            assert (await rig.ask(post())).json() == {"n": number}
            await asyncio.sleep(0.1)


async def test_every_refusal_after_a_ping_is_an_error_event(tmp_path: Path) -> None:
    async with make_rig(tmp_path, always(response(b'{"error": {"message": "no"}}', "400 Bad Request")), bounds={"ping_s": 0.05}) as rig:
        rig.core.queue_gate.clear()
        for refused in (
            Refused(429, "queue_timeout", "waited", 4),
            Refused(503, "draining", "draining", 1),
            Refused(502, "start_failed", "x"),
            None,
        ):
            client = await rig.connect()
            await client.send(post(STREAM))
            status, headers = await client.head()
            assert status == 200
            assert "x-gpu-fleet-card" not in dict(headers)
            assert await client.chunk() == b": ping\n\n"
            rig.core.refuse_in_queue = refused
            rig.core.queue_gate.set()
            data = b""
            while piece := await client.chunk():
                data += piece if piece != b": ping\n\n" else b""
            assert json.loads(data.removeprefix(b"data: "))["error"]["code"] == (refused.code if refused else "worker_refused")
            assert await client.closed()
            rig.core.queue_gate.clear()


async def test_a_worker_that_ends_while_its_socket_stays_open_is_noticed(tmp_path: Path) -> None:
    async with make_rig(tmp_path, then_hang(b"")) as rig:
        client = await rig.connect()
        await client.send(post())
        await until(lambda: rig.worker.received)
        rig.core.worker_ended.set()
        answer = await asyncio.wait_for(client.answer(), 3)
        assert answer.status == 502
        assert "signal 9" in answer.error()["message"]
