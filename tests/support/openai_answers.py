"""What an OpenAI-compatible model server answers, by path: a whole body, one event of a stream, the last one. Standard library only."""

from __future__ import annotations

import json
from typing import Any


def plain(path: str, body: dict[str, Any]) -> dict[str, Any]:
    model = body.get("model")
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if path.endswith("/embeddings"):
        return {"object": "list", "model": model, "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}], "usage": usage}
    if path.endswith("/responses"):
        part = {"type": "output_text", "text": "hello", "annotations": []}
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": model,
            "status": "completed",
            "output": [message],
            "usage": usage,
        }
    if path.endswith("/chat/completions"):
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}
        return {"id": "c1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice], "usage": usage}
    if path.endswith("/rerank"):
        return {"id": "r1", "model": model, "results": [{"index": 0, "relevance_score": 0.5}], "usage": usage}
    if path.endswith("/images/generations"):
        return {"created": 1, "data": [{"b64_json": "aGVsbG8="}]}
    return {
        "id": "t1",
        "object": "text_completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}],
        "usage": usage,
    }


def event(path: str, body: dict[str, Any], number: int) -> bytes:
    if path.endswith("/responses"):
        event: dict[str, Any] = {
            "type": "response.output_text.delta",
            "item_id": "msg_1",
            "output_index": 0,
            "content_index": 0,
            "delta": f"t{number} ",
        }
    else:
        delta = {"text": f"t{number} "} if path.endswith("/v1/completions") else {"delta": {"content": f"t{number} "}}
        event = {
            "id": "c1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body.get("model"),
            "choices": [{"index": 0, "finish_reason": None, **delta}],
        }
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def last_event(path: str, body: dict[str, Any]) -> bytes:
    if path.endswith("/responses"):
        return b"data: " + json.dumps({"type": "response.completed", "response": plain(path, body)}).encode() + b"\n\n"
    event = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": body.get("model"),
        "choices": [{"index": 0, "finish_reason": "stop", "delta": {}}],
    }
    return b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"
