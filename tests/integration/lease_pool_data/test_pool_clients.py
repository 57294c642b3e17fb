"""The whole pool (`lease-pool serve`, real worker processes) as its clients see it: official clients, leaving clients, a stopping pool, secrets."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.pool_rig import TOKEN, PoolRig, model

CANARY_PROMPT = "canary-prompt-51c7"
CANARY_PRINCIPAL = "canary-principal-33d1"
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer {token}\r\nContent-Length: {size}\r\n\r\n"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def raw(body: dict[str, Any], token: str = TOKEN) -> bytes:
    data = json.dumps(body).encode()
    return HEAD.format(token=token, size=len(data)).encode() + data


def client(rig: PoolRig, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{rig.port}/v1", api_key=TOKEN, **options)


async def test_the_official_openai_client_gets_answers_streams_and_its_own_error_classes() -> None:
    async with PoolRig() as rig, client(rig, max_retries=0) as ai:
        answer = await ai.chat.completions.create(model="t4-m", messages=[{"role": "user", "content": "hi"}])
        assert answer.choices
        stream = await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        assert [chunk async for chunk in stream]
        assert {m.id async for m in ai.models.list()} == {"m", "t4-m"}
        with pytest.raises(openai.NotFoundError) as missing:
            await ai.chat.completions.create(model="nope", messages=[])
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError):
            await ai.embeddings.create(model="m", input="x")
        with pytest.raises(openai.AuthenticationError):
            await ai.with_options(api_key="wrong").models.list()
        await rig.until_all("mining")


async def test_the_official_client_retries_a_429_as_told_and_is_then_served() -> None:
    async with PoolRig(bounds={"queue_s": 0.4}) as rig, client(rig, max_retries=5) as ai:
        slow = asyncio.ensure_future(rig.ask(CHAT | {"delay": 1.5}))
        await rig.until_state("serving")
        answer = await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert answer.choices
        assert (await slow)[0] == 200
        outcomes = [event["outcome"] for event in await rig.events("request")]
        assert "queue_timeout" in outcomes


async def test_a_stopping_pool_answers_new_connections_503_until_it_has_drained() -> None:
    async with PoolRig(cards=2) as rig:
        stream = asyncio.ensure_future(rig.ask(CHAT | {"stream": True, "gap": 0.1}))
        await rig.until_state("serving")
        rig.kill(signal.SIGTERM)

        async def stopping() -> Any:
            return (await rig.status())["draining"]

        await rig.until(stopping, "the signal has arrived")
        status, body = await rig.ask(CHAT)
        assert (status, body["error"]["code"]) == (503, "stopping")
        status, text = await stream
        assert status == 200
        assert str(text).rstrip().endswith("data: [DONE]")
        assert await rig.ended() == 0


def argv_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


async def _leaver(rig: PoolRig, rng: random.Random) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    body = CHAT | rng.choice(({"stream": True, "gap": 0.05}, {"delay": 0.2}, {}))
    writer.write(raw(body))
    reading = asyncio.ensure_future(reader.read())
    await asyncio.wait((reading,), timeout=rng.random() * 0.6)
    rng.choice((writer.close, writer.transport.abort, writer.write_eof))()
    await asyncio.gather(reading, return_exceptions=True)
    writer.close()


async def _disconnects(count: int) -> None:
    rng = random.Random(11)
    async with PoolRig(cards=2, models={"m": model("--load", "0.05", parallel=2)}, bounds={"ping_s": 0.1}) as rig:
        for _ in range(count // 10):
            await asyncio.gather(*(_leaver(rig, rng) for _ in range(10)))
        await rig.until_all("mining", 15)
        assert (await rig.admin("GET", "/leases"))["leases"] == []
        assert rig.workers() == []
        assert (await rig.get("/capacity"))[1]["queue"] == 0
        outcomes = {event["outcome"] for event in await rig.events("request")}
        assert outcomes <= {"ok", "client_left"}
        assert (await rig.ask(CHAT))[0] == 200


async def test_50_randomised_disconnects_on_real_workers_leave_no_lease() -> None:
    await _disconnects(50)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_1000_randomised_disconnects_on_real_workers_leave_no_lease() -> None:
    await _disconnects(1000)


async def test_no_secret_reaches_log_journal_status_metrics_or_argv_even_at_debug() -> None:
    rig = PoolRig()
    try:
        await rig.start({"GPU_FLEET_LOG_LEVEL": "debug"})
        body = CHAT | {"messages": [{"role": "user", "content": CANARY_PROMPT}]}
        seen = [await rig.ask(body, x_request_id="req-7", x_gpu_fleet_principal=CANARY_PRINCIPAL)]
        seen.append(await rig.ask(body | {"model": "nope"}))
        keys: set[str] = set()
        argvs = ""
        slow = asyncio.ensure_future(rig.ask(body | {"delay": 0.5}))
        await rig.until_state("serving")
        for pid in rig.workers():
            argvs += argv_of(pid)
        for key_file in [*(rig.folder / "run").rglob("*.key"), *(rig.folder / "run").rglob("*key*")]:
            keys.add(key_file.read_text().strip())
        await slow
        for bad in (
            b"GET / HTTP/1.1\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\nbad line " + CANARY_PROMPT.encode() + b"\r\n\r\n",
            raw(body, "wrong-canary-token"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            writer.write(bad)
            seen.append((0, (await reader.read(2000)).decode()))
            writer.close()
        metrics = (await rig.get("/metrics"))[1]
        journal = json.dumps(await rig.events())
        public = json.dumps(await rig.status()) + metrics + rig.log.read_text() + argvs
        assert keys - {""}, "the worker's key file was looked for and not found"
        for secret in {TOKEN, CANARY_PROMPT, "wrong-canary-token", *keys} - {""}:
            assert secret not in public
            assert secret not in journal
        assert CANARY_PRINCIPAL not in public  # a person's name belongs in the journal, and only there
        assert CANARY_PRINCIPAL in journal
        assert TOKEN not in json.dumps(seen)
    finally:
        await rig.end()
