"""The OpenAI client and litellm against the data plane: every kind of answer they know."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import openai
import pytest
from lease_pool.types import Refused

from tests.support import litellm_venv
from tests.support.worker_fake_core import CHAT, TOKEN
from tests.support.worker_rig import Rig, make_rig
from tests.support.worker_scripted import EVENTS_HEAD, chunk, event, model_server, then_close

HI: Any = [{"role": "user", "content": "hi"}]


def client(rig: Rig, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{rig.plane.port}/v1", api_key=TOKEN, **options)


async def test_the_official_client_chats_streams_and_embeds(tmp_path: Path) -> None:
    async with make_rig(tmp_path, model_server("word")) as rig, client(rig) as ai:
        answer = await ai.chat.completions.create(model="t3-code", messages=HI)
        assert answer.choices[0].message.content == "word"
        stream = await ai.chat.completions.create(model="t3-code", messages=HI, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "word" * 3
        vectors = await ai.embeddings.create(model="embed", input="x", encoding_format="float")
        assert vectors.data[0].embedding == [0.5, -0.5]
        assert [m.id async for m in ai.models.list()] == ["chat-model", "t3-code", "embed-model", "embed"]


async def test_the_official_client_survives_pings_before_the_first_event(tmp_path: Path) -> None:
    async with make_rig(tmp_path, model_server("word"), bounds={"ping_s": 0.02}) as rig, client(rig) as ai:
        rig.core.load_s = 0.2
        stream = await ai.chat.completions.create(model="t3-code", messages=HI, stream=True)
        assert len([c async for c in stream]) == 4


async def test_an_error_event_reaches_the_official_client_as_an_error(tmp_path: Path) -> None:
    async with make_rig(tmp_path, then_close(EVENTS_HEAD + chunk(event("a")))) as rig, client(rig, max_retries=0) as ai:
        stream = await ai.chat.completions.create(model="t3-code", messages=HI, stream=True)
        with pytest.raises(openai.APIError) as failed:
            assert [c async for c in stream]
        assert failed.value.code == "worker_failed"


async def test_the_official_client_waits_as_retry_after_says_and_tries_again(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig, client(rig, max_retries=2) as ai:
        original, refusals = rig.core.admit, [Refused(429, "queue_full", "full", 1)]

        def admit(model: str) -> None:
            if refusals:
                raise refusals.pop()
            original(model)

        rig.core.admit = admit  # type: ignore[method-assign]
        assert (await ai.chat.completions.create(model="t3-code", messages=HI)).choices
        assert len(rig.core.demands) == 1


_LITELLM_CLIENT = """
import json, sys, litellm
base = {"model": "openai/t3-code", "api_base": sys.argv[1], "api_key": sys.stdin.readline().strip(), "messages": json.loads(sys.argv[2])}
whole = litellm.completion(**base).choices[0].message.content
parts = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**base, stream=True)]
print(json.dumps([whole, "".join(parts)]))
"""


async def test_litellm_chats_and_streams(tmp_path: Path) -> None:
    """With LiteLLM exactly as a host has it, in the environment that its lock makes."""
    interpreter = await asyncio.to_thread(litellm_venv.python)
    async with make_rig(tmp_path, model_server("word")) as rig:
        client = await asyncio.create_subprocess_exec(
            interpreter,
            "-c",
            _LITELLM_CLIENT,
            f"http://127.0.0.1:{rig.plane.port}/v1",
            json.dumps(CHAT["messages"]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
        answer, _ = await client.communicate(f"{TOKEN}\n".encode())
        assert client.returncode == 0
        assert json.loads(answer.splitlines()[-1]) == ["word", "word" * 3]
