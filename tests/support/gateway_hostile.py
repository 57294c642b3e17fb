"""Requests that try to get restricted data out of the fleet. None of them may reach a hosted model, whatever is answered."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

HOSTED_ID = "dep:t1-smart:hosted"
HOSTED_NAMES = (
    "t1-smart", "hosted:far/far-model", "t3-smart@public", HOSTED_ID, "dep:t3-smart@public:hosted", "openai/far-model", "far-model", "far/far-model",
    "openai/t1-smart", "openai/hosted:far/far-model",
)  # fmt: skip
SECRET = "restricted words that must stay"
MESSAGES = [{"role": "user", "content": SECRET}]
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Hostile:
    """One request. `key`: whose key (tests.support.gateway_fleet.KEYS)."""

    name: str
    path: str = CHAT
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"
    key: str = "agent"


def _json(**body: Any) -> bytes:
    return json.dumps(body).encode()


def hostile_requests(hosted_url: str) -> list[Hostile]:
    found = [
        *_names(),
        *_knobs(hosted_url),
        *_spoofs(),
        *_routes(),
        *_headers(hosted_url),
        *_encodings(),
        *_content(hosted_url),
        *_other_kinds(hosted_url),
    ]
    assert len({case.name for case in found}) == len(found)
    return found


def _names() -> Iterator[Hostile]:
    for name in HOSTED_NAMES:
        yield Hostile(f"restricted asks for {name}", body=_json(model=name, messages=MESSAGES))
        yield Hostile(f"a public key's restricted request asks for {name}", key="public-agent", body=_json(model=name, messages=MESSAGES))
    for name in ("t3-smart,t1-smart", "t1-smart,t3-smart", "t3-smart, t1-smart", "t3-smart,hosted:far/far-model"):
        yield Hostile(f"two models {name}", body=_json(model=name, messages=MESSAGES), key="public-agent")
    for name in (
        "T1-SMART", " t1-smart", "t1-smart ", "t1-smart\u0000", "t1\u2010smart", "ｔ１－ｓｍａｒｔ", "t1-ѕmart", "t1-smart\n", "t1-smart\u200b", "*", "t1-*", "all-proxy-models",
        "all-team-models", "no-default-models", "openai/*", "../t1-smart", "t3-smart/../t1-smart", "t3-smart#t1-smart", "t3-smart?model=t1-smart", "", "x" * 100_000,
        "t1-smart@public", "t3-smart@internal", "os.environ/FLEET_FAR_KEY",
    ):  # fmt: skip
        yield Hostile(f"model name {name[:24]!r} of length {len(name)}", body=_json(model=name, messages=MESSAGES), key="public-agent")
    for value in (["t1-smart"], ["t3-smart", "t1-smart"], {"name": "t1-smart"}, None, 7, True):
        yield Hostile(f"model is {value!r}", body=_json(model=value, messages=MESSAGES), key="public-agent")


def _knobs(hosted_url: str) -> Iterator[Hostile]:
    hosted = {"model": "openai/far-model", "api_base": f"{hosted_url}/v1", "api_key": "x"}
    deployment = {"model_name": "t3-smart", "litellm_params": hosted}
    knobs: dict[str, Any] = {
        "fallbacks": ["t1-smart"], "fallbacks as mapping": [{"t3-smart": ["t1-smart"]}], "fallbacks with a base": [hosted],
        "context_window_fallbacks": [{"t3-smart": ["t1-smart"]}], "content_policy_fallbacks": [{"t3-smart": ["t1-smart"]}], "default_fallbacks": ["t1-smart"],
        "api_base": f"{hosted_url}/v1", "base_url": f"{hosted_url}/v1", "router_settings_override": {"fallbacks": [{"t3-smart": ["t1-smart"]}]},
        "user_config": {"model_list": [deployment]}, "model_list": [deployment], "deployment_id": HOSTED_ID, "specific_deployment": True,
        "custom_llm_provider": "openai", "litellm_params": hosted, "extra_body": {"api_base": hosted_url}, "client": "x", "organization": "x",
        "mock_testing_fallbacks": True, "mock_testing_context_fallbacks": True, "mock_testing_rate_limit_error": True, "mock_response": "x",
        "model_group_alias": {"t3-smart": "t1-smart"}, "tags": ["hosted"], "num_retries": 20, "max_fallbacks": 20, "disable_fallbacks": False,
        "guardrails": ["x"], "litellm_credential_name": "x", "prompt_id": "t1-smart", "previous_response_id": "resp_x", "callbacks": ["x"],
        "web_search_options": {}, "metadata": {"fallbacks": ["t1-smart"]}, "original_model_group": "t1-smart", "fallback_model_group": ["t1-smart"],
        "_target_order": 2, "azure_ad_token": hosted_url, "aws_bedrock_runtime_endpoint": hosted_url, "vertex_location": hosted_url,
    }  # fmt: skip
    for name, value in knobs.items():
        yield Hostile(f"knob {name}", body=_json(model="t3-smart", messages=MESSAGES, **{name.split(" ")[0]: value}))


def _spoofs() -> Iterator[Hostile]:
    auth = {"models": ["t1-smart"], "metadata": {"crossing": "open"}, "user_role": "proxy_admin"}
    info = {"id": HOSTED_ID, "zone": "local", "host": "gpu-a"}
    spoofs = [{"user_api_key_auth": auth}, {"model_info": info}, {"data_class": "public", "crossing": "open"}, {"model_group": "t1-smart"},
              {"user_api_key_metadata": {"data_class": "public"}}, {"metadata": {"metadata": {"model_info": info}}}, {"deployment": "openai/far-model"},
              {"previous_models": [{"model_group": "t1-smart"}]}, {"specific_deployment": True}, {"_failover_excluded_ids": ["dep:t3-smart:gpu-a"]}]  # fmt: skip
    for number, spoof in enumerate(spoofs):
        for where in ("metadata", "litellm_metadata"):
            yield Hostile(
                f"spoofed {where} {number}", body=_json(model="t1-smart", messages=MESSAGES, **{where: spoof}), key="public-agent"
            )
    for name in (
        "data_class",
        "x-data-class",
        "x_data_class",
        "crossing",
        "user_api_key_auth",
        "model_info",
        "proxy_server_request",
        "secret_fields",
    ):
        yield Hostile(f"body field {name}", body=_json(model="t1-smart", messages=MESSAGES, **{name: "public"}), key="public-agent")
    deep: Any = {"model": "t1-smart"}
    for _ in range(200):
        deep = {"metadata": deep}
    yield Hostile("metadata nested 200 deep", body=_json(model="t3-smart", messages=MESSAGES, metadata=deep))


def _routes() -> Iterator[Hostile]:
    body = _json(model="t1-smart", messages=MESSAGES, input=SECRET, prompt=SECRET, max_tokens=5)
    for path in (
        "/chat/completions", "/engines/t1-smart/chat/completions", "/openai/deployments/t1-smart/chat/completions", "/v1/completions", "/v1/messages",
        "/v1/responses", "/responses", "/v1/embeddings", "/v1/rerank", "/v1/images/generations", "/v1/audio/speech", "/v1/moderations", "/v1/batches", "/v1/files",
        "/v1/threads", "/v1/assistants", "/openai/v1/chat/completions", "/openai/chat/completions", "/anthropic/v1/messages", "/gemini/v1beta/models/t1-smart:generateContent",
        "/v1beta/models/t1-smart:generateContent", "/models/t1-smart:generateContent", "/vllm/v1/chat/completions", "/bedrock/model/t1-smart/converse",
        "/azure/openai/deployments/t1-smart/chat/completions", "/cursor/chat/completions", "/v1/realtime", "/utils/test_policies_and_guardrails", "/test_connection",
        "/health/test_connection", "/model/new", "/config/update", "/key/generate", "/health", "/v1/chat/completions/", "//v1/chat/completions",
        "/v1/../v1/chat/completions", "/v1/chat%2Fcompletions", "/V1/CHAT/COMPLETIONS", "/v1/chat/completions;x=1", "/v1/chat/completions?model=t1-smart",
        "/mcp/", "/a2a/t1-smart", "/v1/videos", "/v1/ocr", "/v1/search/x", "/v1/vector_stores", "/v1/messages/count_tokens", "/utils/token_counter",
    ):  # fmt: skip
        yield Hostile(f"route {path}", path=path, body=body, key="public-agent")
    for method in ("PUT", "PATCH", "DELETE", "GET"):
        yield Hostile(f"method {method}", method=method, body=body, key="public-agent")


def _headers(hosted_url: str) -> Iterator[Hostile]:
    body = _json(model="t1-smart", messages=MESSAGES)
    for name, value in (
        ("X-Data-Class", ""), ("X-Data-Class", "PUBLIC,"), ("X-Data-Class", "public, restricted"), ("X-Data-Class", "pubIic"), ("X-Data-Class", "0"),
        ("X-Data-Class", "internal"), ("X_Data_Class", "public"), ("X-DataClass", "public"), ("X-Boundary-Approval", "operator.9999999999." + "A" * 86),
        ("X-Boundary-Approval", "approved"), ("X-Gpu-Fleet-Class", "public"), ("x-litellm-tags", "hosted"), ("x-litellm-num-retries", "20"),
        ("x-litellm-model", "t1-smart"), ("x-litellm-api-base", hosted_url), ("X-Forwarded-Host", "localhost"), ("Host", "localhost/?x=/v1/models"),
        ("X-Original-URL", "/v1/models"), ("x-litellm-spend-logs-metadata", '{"data_class": "public"}'), ("X-HTTP-Method-Override", "GET"),
    ):  # fmt: skip
        yield Hostile(f"header {name}: {value[:24]}", body=body, headers={name: value}, key="public-agent")
    yield Hostile("restricted key claims public", body=body, headers={"X-Data-Class": "public"}, key="agent")
    yield Hostile("internal key claims public", body=body, headers={"X-Data-Class": "public"}, key="developer")
    yield Hostile("internal without approval", body=body, headers={"X-Data-Class": "internal"}, key="developer")


def _encodings() -> Iterator[Hostile]:
    good = _json(model="t3-smart", messages=MESSAGES)
    pairs = [
        ("duplicate model, hosted last", b'{"model":"t3-smart","messages":[{"role":"user","content":"x"}],"model":"t1-smart"}'),
        ("duplicate model, hosted first", b'{"model":"t1-smart","messages":[{"role":"user","content":"x"}],"model":"t3-smart"}'),
        ("escaped model", b'{"\\u006dodel":"\\u0074\\u0031-smart","messages":[{"role":"user","content":"x"}]}'),
        ("model key with a byte order mark", b'\xef\xbb\xbf{"model":"t1-smart","messages":[]}'),
        ("UTF-16", json.dumps({"model": "t1-smart", "messages": MESSAGES}).encode("utf-16")),
        ("UTF-7", json.dumps({"model": "t1-smart", "messages": MESSAGES}).encode("utf-7")),
        ("invalid UTF-8 in the name", b'{"model":"t1-smart\xff","messages":[]}'),
        ("lone surrogate in the name", b'{"model":"t1-smart\\ud800","messages":[]}'),
        ("NaN and infinity", b'{"model":"t1-smart","messages":[],"temperature":NaN,"top_p":Infinity}'),
        ("a list instead of an object", b'[{"model":"t1-smart","messages":[]}]'),
        ("a string", b'"t1-smart"'),
        ("nothing", b""),
        ("trailing object", good + b'{"model":"t1-smart"}'),
        ("nested 5,000 deep", b'{"model":"t1-smart","messages":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    ]
    for name, body in pairs:
        yield Hostile(f"encoding: {name}", body=body, key="public-agent")
    form = b"model=t1-smart&messages=%5B%5D"
    yield Hostile("form encoding", body=form, headers={"Content-Type": "application/x-www-form-urlencoded"}, key="public-agent")
    yield Hostile(
        "content type text", body=_json(model="t1-smart", messages=MESSAGES), headers={"Content-Type": "text/plain"}, key="public-agent"
    )
    yield Hostile("base64 body", body=base64.b64encode(_json(model="t1-smart", messages=MESSAGES)), key="public-agent")


def _content(hosted_url: str) -> Iterator[Hostile]:
    tools: list[dict[str, Any]] = [
        {"type": "mcp", "server_label": "x", "server_url": f"{hosted_url}/mcp", "require_approval": "never"},
        {"type": "web_search", "search_context_size": "low"}, {"type": "web_search_preview"}, {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "file_search", "vector_store_ids": ["x"]}, {"type": "computer_use_preview"}, {"type": "image_generation"}, {"type": "advisor_20260301", "model": "t1-smart"},
    ]  # fmt: skip
    for tool in tools:
        for path in (CHAT, "/v1/responses", "/v1/messages"):
            body = _json(model="t3-smart", messages=MESSAGES, input=SECRET, max_tokens=5, tools=[tool])
            yield Hostile(f"tool {tool['type']} on {path}", path=path, body=body)
    forged = base64.b64encode(f"litellm:custom_llm_provider:openai;model_id:{HOSTED_ID};response_id:resp_1".encode()).decode()
    for field_name in ("previous_response_id", "conversation"):
        body = _json(model="t3-smart", input=SECRET, **{field_name: f"resp_{forged}"})
        yield Hostile(f"forged {field_name}", path="/v1/responses", body=body)


def _other_kinds(hosted_url: str) -> Iterator[Hostile]:
    """The routes that are no conversation: LiteLLM handles each of them in code of its own."""
    rerank = {"query": SECRET, "documents": [SECRET, {"text": SECRET}]}
    image = {"prompt": SECRET}
    for path, local, hosted, content in (
        ("/v1/rerank", "t4-rerank", "far-rank/rank-model", rerank),
        ("/rerank", "t4-rerank", "far-rank/rank-model", rerank),
        ("/v1/images/generations", "t3-image", "far/far-image", image),
        ("/images/generations", "t3-image", "far/far-image", image),
    ):
        model = hosted.partition("/")[2]
        for name in (
            hosted, model, f"hosted:{hosted}", f"dep:hosted:{hosted}:hosted", f"{local}@public", f"openai/{model}", f"hosted_vllm/{model}", f"cohere/{model}",
            f"{local},hosted:{hosted}", f"openai/{local}@public", "t1-smart",
        ):  # fmt: skip
            for key in ("agent", "public-agent"):
                yield Hostile(f"{path} of {key} asks for {name}", path=path, key=key, body=_json(model=name, **content))
        for knob, value in {
            "fallbacks": [f"hosted:{hosted}"], "api_base": f"{hosted_url}/v1", "base_url": f"{hosted_url}/v1", "custom_llm_provider": "cohere", "headers": {"Host": "x"},
            "extra_headers": {"Host": "x"}, "client": "x", "base_model": model, "mock_testing_fallbacks": True, "messages": MESSAGES, "input": SECRET,
        }.items():  # fmt: skip
            yield Hostile(f"{path} with {knob}", path=path, body=_json(model=local, **{**content, knob: value}))
    for path in (
        "/v2/rerank",
        "/v1/images/edits",
        "/images/edits",
        "/v1/images/variations",
        "/openai/deployments/t3-image/images/generations",
    ):
        body = _json(model="t3-image", **rerank, **image)
        yield Hostile(f"route {path}", path=path, key="public-agent", body=body, headers={"X-Data-Class": "public"})
