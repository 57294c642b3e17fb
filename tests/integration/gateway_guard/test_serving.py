"""What the gateway does for those who may use it, and what it hands on to a pool and to a hosted model."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gateway_guard import approval
from tests.support.gateway_cases import ENDPOINTS
from tests.support.gateway_fleet import KEYS
from tests.support.gateway_rig import SIGNERS, Fleet

pytestmark = pytest.mark.asyncio(loop_scope="session")


def only_request(fleet: Fleet) -> dict[str, Any]:
    found = [item for items in fleet.pool_requests().values() for item in items]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(("path", "model", "body"), ENDPOINTS)
async def test_each_endpoint_reaches_a_pool_with_principal_class_and_request_id(
    fleet: Fleet, path: str, model: str, body: dict[str, Any]
) -> None:
    answer = await fleet.ask(model, path=path, **body)
    assert answer.status == 200, answer.text
    assert answer.headers["llm_provider-x-gpu-fleet-lease"] == "lease-1"  # nginx drops the prefix
    assert answer.headers["llm_provider-x-gpu-fleet-card"].startswith("GPU-")
    headers = {name.lower(): value for name, value in only_request(fleet)["headers"].items()}
    assert headers["x-gpu-fleet-principal"] == "agent"
    assert headers["x-gpu-fleet-class"] == "restricted"
    prefix = "llm_provider-" if path.endswith("/rerank") else ""  # nginx knows
    assert headers["x-request-id"] == answer.headers[f"{prefix}x-request-id"]
    assert only_request(fleet)["body"]["model"] == model
    assert fleet.left_the_fleet() == []


@pytest.mark.parametrize("metadata", [{"user_id": "someone"}, '{"user_id": "someone"}'])
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/messages", {"max_tokens": 5}), ("/v1/responses", {"input": "x"}), ("/v1/chat/completions", {})]
)
async def test_metadata_as_clients_send_it_is_taken_and_dropped(fleet: Fleet, path: str, body: dict[str, Any], metadata: Any) -> None:
    answer = await fleet.ask("t3-smart", path=path, metadata=metadata, **body)
    assert answer.status == 200, answer.text
    assert "someone" not in str(only_request(fleet))


async def test_a_client_cannot_forge_its_identity_towards_the_pool(fleet: Fleet) -> None:
    forged = {
        "x-gpu-fleet-principal": "operator",
        "x-gpu-fleet-class": "public",
        "x-request-id": "mine",
        "x-gpu-fleet-max-wait-ms": "86400000",
    }
    body = {
        "model": "t3-smart",
        "messages": [{"role": "user", "content": "x"}],
        "extra_headers": forged,
        "metadata": forged,
        "user": "operator",
    }
    await fleet.send("/v1/chat/completions", json.dumps(body).encode(), headers=forged)
    headers = {name.lower(): value for name, value in only_request(fleet)["headers"].items()}
    assert headers["x-gpu-fleet-principal"] == "agent"
    assert headers["x-gpu-fleet-class"] == "restricted"
    assert headers["x-request-id"] != "mine"
    assert headers.get("x-gpu-fleet-max-wait-ms") in (None, "0")


async def test_the_list_of_models_holds_what_the_key_may_say_and_nothing_of_the_topology(fleet: Fleet) -> None:
    listed = {}
    for name in ("agent", "operator"):
        answer = await fleet.send("/v1/models", b"", method="GET", key=name)
        listed[name] = {item["id"] for item in answer.json["data"]}
    assert listed["agent"] == {"t3-smart", "t3-code", "t3-plan", "t3-lone", "t4-router", "t4-embedding", "t4-rerank", "t3-image"}
    assert listed["operator"] >= {"gpu-a/t3-smart", "gpu-b/t3-smart", "t3-smart"}
    public = await fleet.send("/v1/models", b"", method="GET", key="public-agent", headers={"X-Data-Class": "public"})
    assert "t1-smart" in {item["id"] for item in public.json["data"]}
    assert not any("@" in item["id"] or ":" in item["id"] for item in public.json["data"])


async def test_a_node_alias_reaches_its_host_and_only_for_operators(fleet: Fleet) -> None:
    assert (await fleet.ask("gpu-b/t3-smart")).status == 403
    assert fleet.pool_requests() == {"gpu-a": [], "gpu-b": []}
    assert (await fleet.ask("gpu-b/t3-smart", key="operator")).status == 200
    assert [len(items) for items in fleet.pool_requests().values()] == [0, 1]


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic YTpi"},
        {"Authorization": "Bearer sk-master-key-of-the-tests"},
    ],
)
async def test_without_a_known_key_everything_is_401(fleet: Fleet, headers: dict[str, str]) -> None:
    answer = await fleet.send("/v1/chat/completions", b'{"model":"t3-smart","messages":[]}', headers=headers)
    assert answer.status == 401
    assert answer.json["error"]["type"] == "authentication_error"
    assert "Traceback" not in answer.text


async def test_anthropics_clients_send_their_key_in_their_own_header(fleet: Fleet) -> None:
    body = b'{"model":"t3-smart","max_tokens":5,"messages":[{"role":"user","content":"x"}]}'
    answer = await fleet.send("/v1/messages", body, headers={"Authorization": "", "X-Api-Key": KEYS["agent"]})
    assert answer.status in (200, 401)  # an empty Authorization counts as sent twice over
    async with fleet.session.post(f"{fleet.gateway.url}/v1/messages", data=body, headers={"X-Api-Key": KEYS["agent"]}) as response:
        assert response.status == 200


async def test_a_public_request_may_use_a_hosted_model_and_leaves_redacted(fleet: Fleet) -> None:
    messages = [
        {"role": "user", "content": "mail anna@example.org about Orion-5 on gpu-a at 100.64.0.11 with sk-abcdEFGH12345678"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": "100.64.0.11"}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "the whole file"},
    ]
    answer = await fleet.ask("t1-smart", key="public-agent", data_class="public", messages=messages, user="anna")
    assert answer.status == 200
    (left,) = fleet.left_the_fleet()
    for word in ("anna", "Orion-5", "gpu-a", "100.64", "abcdEFGH", "whole file"):
        assert word not in left["text"]
    assert "[EMAIL]" in left["text"]
    assert "tool result withheld" in left["text"]
    assert not any(name.lower().startswith("x-gpu-fleet") for name in left["headers"])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"])
async def test_every_dialect_leaves_redacted(fleet: Fleet, path: str) -> None:
    content = (
        {"input": "at 100.64.0.11"} if path.endswith("responses") else {"prompt": "at 100.64.0.11"} if path == "/v1/completions" else {}
    )
    if not content:
        content = {"messages": [{"role": "user", "content": "at 100.64.0.11"}]}  # type: ignore[dict-item]
    await fleet.ask("t1-smart", key="public-agent", data_class="public", path=path, max_tokens=9, **content)
    for left in fleet.left_the_fleet():
        assert "100.64" not in left["text"]


@pytest.mark.parametrize(
    ("path", "alias", "body"),
    [
        ("/v1/rerank", "t4-rerank", {"query": "at 100.64.0.11", "documents": ["mail anna@example.org", {"text": "mail anna@example.org"}]}),
        ("/v1/images/generations", "t3-image", {"prompt": "anna@example.org at 100.64.0.11"}),
    ],
)
async def test_documents_and_image_prompts_leave_only_when_public_and_only_redacted(
    fleet: Fleet, path: str, alias: str, body: dict[str, Any]
) -> None:
    for pool in fleet.pools.values():
        pool.fault = 502
    restricted = await fleet.ask(alias, path=path, key="public-agent", **body)
    assert restricted.status >= 500
    assert fleet.left_the_fleet() == []
    public = await fleet.ask(alias, path=path, key="public-agent", data_class="public", **body)
    assert public.status == 200, public.text
    (left,) = fleet.left_the_fleet()
    assert left["path"] == path
    assert "[EMAIL]" in left["text"]
    assert "[ADDRESS]" in left["text"]
    for word in ("anna", "100.64"):
        assert word not in left["text"]
    assert not any(name.lower().startswith("x-gpu-fleet") for name in left["headers"])


@pytest.mark.parametrize(("path", "alias", "body"), [*ENDPOINTS, ("/v1/messages", "t3-smart", {"max_tokens": 5, "stream": True})])
@pytest.mark.parametrize("fault", [400, 429, 502])
async def test_what_a_pool_answers_is_what_the_client_gets(fleet: Fleet, path: str, alias: str, body: dict[str, Any], fault: int) -> None:
    for pool in fleet.pools.values():
        pool.fault, pool.fault_headers = fault, {"Retry-After": "7"}
    answer = await fleet.ask(alias, path=path, **body)
    assert answer.status == fault, answer.text
    assert answer.json["error"]["message"]
    assert len(answer.headers["x-request-id"]) == 32
    if fault == 429:
        assert answer.headers["retry-after"] == "7"


async def test_files_are_refused_at_the_border_and_served_inside(fleet: Fleet) -> None:
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}],
        }
    ]
    assert (await fleet.ask("t1-smart", key="public-agent", data_class="public", messages=messages)).status == 403
    assert fleet.left_the_fleet() == []
    assert (await fleet.ask("t3-smart", messages=messages)).status == 200


async def test_a_public_request_falls_back_to_the_hosted_model_when_the_local_one_fails(fleet: Fleet) -> None:
    for pool in fleet.pools.values():
        pool.fault = 502
    answer = await fleet.ask("t3-code", key="public-agent", data_class="public")
    assert answer.status == 200
    assert len(fleet.left_the_fleet()) == 1


def approve(signer: str, principal: str, body: bytes, now: float | None = None) -> dict[str, str]:
    minted = approval.mint(
        SIGNERS[signer], signer=signer, principal=principal, body=body, now=time.time() if now is None else now, lifetime_s=600
    )
    return {"X-Data-Class": "internal", "X-Boundary-Approval": minted}


APPROVED = json.dumps({"model": "t1-smart", "messages": [{"role": "user", "content": "internal words"}]}).encode()


async def test_an_approved_internal_request_may_leave(fleet: Fleet) -> None:
    answer = await fleet.send("/v1/chat/completions", APPROVED, key="developer", headers=approve("operator", "developer", APPROVED))
    assert answer.status == 200, answer.text
    assert len(fleet.left_the_fleet()) == 1


async def test_a_workflow_approves_its_own_requests_with_its_own_key(fleet: Fleet) -> None:
    own = await fleet.send("/v1/chat/completions", APPROVED, key="workflow", headers=approve("workflow", "workflow", APPROVED))
    assert own.status == 200, own.text
    fleet.hosted.requests.clear()
    other = await fleet.send("/v1/chat/completions", APPROVED, key="developer", headers=approve("workflow", "developer", APPROVED))
    assert other.status == 403
    assert fleet.left_the_fleet() == []


async def test_an_approval_for_anything_else_is_refused(fleet: Fleet) -> None:
    other_body = APPROVED.replace(b"internal words", b"other words!!!")
    wrong = {
        "other body": approve("operator", "developer", other_body),
        "other principal": approve("operator", "agent", APPROVED),
        "expired": approve("operator", "developer", APPROVED, time.time() - 700),
        "unknown signer": approve("stranger", "developer", APPROVED),
        "restricted": {**approve("operator", "developer", APPROVED), "X-Data-Class": "restricted"},
        "no class": {"X-Boundary-Approval": approve("operator", "developer", APPROVED)["X-Boundary-Approval"]},
    }
    for name, headers in wrong.items():
        answer = await fleet.send("/v1/chat/completions", APPROVED, key="developer", headers=headers)
        assert answer.status == 403, name
    assert fleet.left_the_fleet() == []


async def test_prompts_keys_and_replies_stay_out_of_the_log(fleet: Fleet) -> None:
    words = "only-in-this-prompt-0815"
    fleet.pools["gpu-a"].fault = fleet.pools["gpu-b"].fault = 500
    await fleet.ask("t3-smart", messages=[{"role": "user", "content": words}])
    await fleet.ask("t1-smart", messages=[{"role": "user", "content": words}])
    log = fleet.gateway.log.read_text()
    assert words not in log
    assert not any(key in log for key in KEYS.values())
    assert "pool-token-of-the-doubles" not in log


WORDS = "only-in-this-prompt-4711"


@pytest.mark.parametrize(
    ("path", "alias", "body"),
    [
        ("/v1/rerank", "t4-rerank", {"query": [WORDS], "documents": [WORDS]}),
        ("/v1/rerank", "t4-rerank", {"query": WORDS, "documents": WORDS}),
        ("/v1/rerank", "t4-rerank", {"query": WORDS, "documents": [[WORDS]]}),
        ("/v1/rerank", "t4-rerank", {"query": WORDS, "documents": [WORDS], "top_n": WORDS}),
        ("/v1/rerank", "t4-rerank", {"query": WORDS, "documents": [WORDS], "return_documents": WORDS}),
        ("/v1/images/generations", "t3-image", {"prompt": {"x": WORDS}}),
        ("/v1/completions", "t3-smart", {"prompt": {"x": WORDS}}),
        ("/v1/chat/completions", "t3-smart", {"response_format": WORDS}),
    ],
)
async def test_a_request_of_a_wrong_shape_is_told_so_and_not_repeated_in_log_or_answer(
    fleet: Fleet, path: str, alias: str, body: dict[str, Any]
) -> None:
    answer = await fleet.ask(alias, path=path, **body)
    assert answer.status == 400
    assert WORDS not in answer.text
    assert WORDS not in fleet.gateway.log.read_text()
    assert fleet.pool_requests() == {"gpu-a": [], "gpu-b": []}
