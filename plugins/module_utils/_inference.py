# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""One real inference request, measured from outside. Nothing here knows Ansible.

Shapes are those of OpenAI's API as gateway and pool speak it (DESIGN.md 4.3). Every wait is bounded by the request's timeout.
"""

from __future__ import annotations

import http.client
import json
import time
import typing as t
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._http import connection, error_of

Json = t.Dict[str, t.Any]

PATHS = {
    "chat": "/v1/chat/completions",
    "stream": "/v1/chat/completions",
    "vision": "/v1/chat/completions",
    "embedding": "/v1/embeddings",
    "completion": "/v1/completions",
    "responses": "/v1/responses",
    "rerank": "/v1/rerank",
    "models": "/v1/models",
}

# A red square of 32 x 32 pixels, what a vision request shows when no image is given.
RED_SQUARE_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAJ0lEQVR42u3NsQkAAAjAsP7/tF7hIASyp6lTCQQCgUAgEAgEgi/BAjLD/C5w/SM9AAAAAElFTkSuQmCC"
)

# An answer larger than this is not an answer to a probe.
MAX_BODY = 16 * 1024 * 1024


class ProbeError(Exception):
    """No complete answer came; the message says what happened and after how many seconds."""


@dataclass(frozen=True)
class Request:
    """What to send and where. `timeout` bounds the whole exchange in seconds."""

    url: str
    kind: str
    model: str
    prompt: str
    timeout: float
    socket: t.Optional[str] = None
    api_key: t.Optional[str] = field(default=None, repr=False)
    headers: t.Mapping[str, str] = field(default_factory=dict)
    image: t.Optional[str] = None
    max_tokens: int = 16
    dimensions: t.Optional[int] = None
    extra_body: t.Mapping[str, t.Any] = field(default_factory=dict)
    validate_certs: bool = True

    @property
    def streams(self) -> bool:
        return self.kind == "stream"


def body_of(request: Request) -> t.Optional[Json]:
    """The JSON body; None for a GET. The seed and temperature make answers comparable."""
    sampling: Json = {"max_tokens": request.max_tokens, "temperature": 0, "seed": 1}
    content: t.Any = request.prompt
    if request.kind == "models":
        return None
    if request.kind == "embedding":
        body: Json = {"input": request.prompt}
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
    elif request.kind == "completion":
        body = dict(sampling, prompt=request.prompt)
    elif request.kind == "responses":
        body = {"input": request.prompt, "max_output_tokens": request.max_tokens, "temperature": 0}
    elif request.kind == "rerank":
        body = {"query": request.prompt, "documents": ["a card that mines", request.prompt]}
    else:
        if request.kind == "vision":
            image = {"url": f"data:image/png;base64,{request.image or RED_SQUARE_PNG}"}
            content = [{"type": "text", "text": request.prompt}, {"type": "image_url", "image_url": image}]
        body = dict(sampling, messages=[{"role": "user", "content": content}])
    if request.streams:
        body["stream"] = True
    return dict(body, model=request.model, **request.extra_body)


def send(request: Request) -> Json:
    """Send the request; return status, headers, seconds, answer. Raises ProbeError when no complete answer came in time."""
    began = time.monotonic()
    deadline = began + request.timeout
    try:
        conn = connection(request.url, request.timeout, request.socket, request.validate_certs)
    except ValueError as error:
        raise ProbeError(str(error)) from None
    try:
        body = body_of(request)
        path = urlsplit(request.url).path.rstrip("/")
        path = (path[: -len("/v1")] if path.endswith("/v1") else path) + PATHS[request.kind]
        conn.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body).encode(), _headers(request))
        response = conn.getresponse()
        result: Json = {
            "status": response.status,
            "headers": {
                name.lower(): value
                for name, value in response.getheaders()
                if name.lower().startswith(("x-", "llm_provider-x-gpu-fleet-", "retry-after"))
            },
            "seconds": {"headers": time.monotonic() - began},
        }
        if request.streams and response.status == 200:
            result.update(read_stream(_lines(response, conn, deadline), began, result["seconds"]))
        else:
            data = _whole(response, conn, deadline)
            result.update(
                answer_of(request.kind, data)
                if response.status == 200
                else {"error": error_of(data) or {"message": data[:200].decode("utf-8", "replace")}}
            )
        result["seconds"]["total"] = time.monotonic() - began
    except TimeoutError:
        raise ProbeError(f"no complete answer within {request.timeout:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise ProbeError(f"after {time.monotonic() - began:.1f} s: {str(error) or type(error).__name__}") from None
    finally:
        conn.close()
    result["seconds"] = {name: round(value, 3) for name, value in result["seconds"].items()}
    result.update(fleet_headers(result["headers"]))
    return result


def _headers(request: Request) -> t.Dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream" if request.streams else "application/json"}
    if request.api_key:
        headers["Authorization"] = f"Bearer {request.api_key}"
    return dict(headers, **request.headers)


def _bounded(conn: http.client.HTTPConnection, deadline: float) -> None:
    """The socket's timeout is a pause between bytes; this makes it the time left of the whole exchange."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    if conn.sock is not None:
        conn.sock.settimeout(left)


def _whole(response: http.client.HTTPResponse, conn: http.client.HTTPConnection, deadline: float) -> bytes:
    data = b""
    while True:
        _bounded(conn, deadline)
        block = response.read1(65536)
        if not block:
            return data
        data += block
        if len(data) > MAX_BODY:
            raise ProbeError(f"the answer is larger than {MAX_BODY >> 20} MiB")


def _lines(response: http.client.HTTPResponse, conn: http.client.HTTPConnection, deadline: float) -> t.Iterator[str]:
    while True:
        _bounded(conn, deadline)
        line = response.readline(MAX_BODY)
        if not line:
            return
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def read_stream(lines: t.Iterable[str], began: float, seconds: t.Dict[str, float]) -> Json:
    """What an event stream said: its text, the number of chunks and pings, whether `[DONE]` came, and an error event if one did."""
    result: Json = {"answer": "", "chunks": 0, "pings": 0, "done": False, "finish_reason": None, "usage": None}
    for line in lines:
        if line.startswith(":"):
            result["pings"] += 1
            continue
        if not line.startswith("data:"):
            continue
        data = line[len("data:") :].strip()
        if data == "[DONE]":
            result["done"] = True
            continue
        try:
            event = json.loads(data)
        except ValueError:
            raise ProbeError(f"an event that is not JSON: {data[:200]}") from None
        if "error" in event:
            result["error"] = event["error"] if isinstance(event["error"], dict) else {"message": str(event["error"])}
            continue
        seconds.setdefault("first_byte", time.monotonic() - began)
        result["chunks"] += 1
        result["usage"] = event.get("usage") or result["usage"]
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            result["answer"] += delta.get("content") or delta.get("reasoning_content") or ""
            result["finish_reason"] = choice.get("finish_reason") or result["finish_reason"]
    return result


def answer_of(kind: str, data: bytes) -> Json:
    """The parts of a 200 that a probe looks at. Raises ProbeError when it has another shape than the API's."""
    try:
        body = json.loads(data)
        if kind == "models":
            return {
                "answer": ", ".join(sorted(model["id"] for model in body["data"])),
                "models": sorted(model["id"] for model in body["data"]),
            }
        if kind == "embedding":
            vector = body["data"][0]["embedding"]
            return {
                "answer": "",
                "dimensions": len(vector),
                "norm": round(sum(x * x for x in vector) ** 0.5, 6),
                "usage": body.get("usage"),
            }
        if kind == "rerank":
            scores = {r["index"]: r["relevance_score"] for r in body["results"]}
            return {"answer": "", "scores": [scores[index] for index in sorted(scores)], "usage": body.get("usage")}
        if kind == "responses":
            texts = [part["text"] for item in body["output"] for part in item.get("content") or [] if "text" in part]
            return {"answer": "".join(texts), "finish_reason": body.get("status"), "usage": body.get("usage")}
        choice = body["choices"][0]
        if kind == "completion":
            answer = choice["text"]
        else:
            message = choice["message"]
            answer = message.get("content") or message.get("reasoning_content") or ""
        return {"answer": answer, "finish_reason": choice.get("finish_reason"), "usage": body.get("usage")}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise ProbeError(f"a 200 that is no {kind} answer: {data[:200].decode('utf-8', 'replace')}") from None


def fleet_headers(headers: t.Mapping[str, str]) -> Json:
    """Which card served, under which lease, after how long; None where the answer does not say."""

    def number(name: str) -> t.Optional[float]:
        try:
            return float(headers[name])
        except (KeyError, ValueError):
            return None

    def header(name: str) -> t.Optional[str]:
        for prefix in ("", "llm_provider-"):
            if prefix + name in headers:
                return headers[prefix + name]
        return None

    return {
        "card": header("x-gpu-fleet-card"),
        "lease": header("x-gpu-fleet-lease"),
        "queued_ms": number("x-gpu-fleet-queued-ms"),
        "load_ms": number("x-gpu-fleet-load-ms"),
    }


def faults_of(kind: str, result: Json, expected_status: t.Sequence[int]) -> t.List[str]:
    """Why this answer is not a good one; empty when it is. A status that was expected and is not 200 is good as it is."""
    error = result.get("error") or {}
    said = f": {error['message']}" if error.get("message") else ""
    if result["status"] not in expected_status:
        return [f"status {result['status']}, expected {' or '.join(map(str, expected_status))}{said}"]
    if result["status"] != 200:
        return []
    faults = []
    if error:
        faults.append(f"an error event in the stream{said}")
    if kind == "stream" and not error and not result["done"]:
        faults.append("the stream ended without [DONE]")
    if kind in ("chat", "vision", "completion", "responses", "stream") and not result["answer"]:
        faults.append("an empty answer")
    if kind == "embedding" and not (result["dimensions"] and result["norm"] > 0):
        faults.append(f"an embedding of {result['dimensions']} dimensions and norm {result['norm']}")
    return faults
