"""Reads one request: which endpoint, its body within bounds, and the two fields the pool needs of it. The body's bytes are never changed."""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic_core import SchemaValidator, ValidationError, core_schema

from lease_pool.envelope import RefusedParam
from lease_pool.types import Refused

ENDPOINTS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v1/images/generations": "images",
}
BODY_STALL_S = 30.0  # no byte of the body for so long
BODY_S = 300.0  # the whole body
_NOTE_MAX = 256  # characters of a header that goes to the journal
_GZIP = 16 + zlib.MAX_WBITS

# Only these two fields become Python objects: the other millions of values that fit into a body would stop the loop for seconds and cost 25 times its size.
_FIELD = core_schema.typed_dict_field(core_schema.any_schema(), required=False)
_FIELDS = SchemaValidator(core_schema.typed_dict_schema({"model": _FIELD, "stream": _FIELD}, extra_behavior="ignore"))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for."""

    model: str
    stream: bool


def too_large(body_max: int) -> Refused:
    """The refusal of a body over the bound."""
    return Refused(413, "body_too_large", f"the request body is over the bound of {body_max} bytes (body_mib)")


def expectation(request: web.BaseRequest) -> bool:
    """Whether the client waits for `100 Continue`. Raises Refused (417) for any other expectation."""
    expect = request.headers.get("Expect")
    if expect is None:
        return False
    if {value.strip().lower() for value in request.headers.getall("Expect")} != {"100-continue"}:
        raise Refused(417, "expectation_failed", "the only expectation served is 100-continue")
    return True


def declared_framing(request: web.BaseRequest, body_max: int) -> None:
    """Refuse, before a byte of the body is read, a declared length over the bound, and a transfer coding that is not undone here (`gzip, chunked`)."""
    coding = request.headers.get("Transfer-Encoding")
    if coding is not None and coding.strip().lower() != "chunked":
        raise Refused(400, "bad_http", "the only transfer coding served is chunked")
    length = request.headers.get("Content-Length")
    if length is not None and int(length) > body_max:
        raise too_large(body_max)


async def read_body(request: web.BaseRequest, body_max: int) -> bytes:
    """The body's bytes as sent (chunked framing undone). Raises Refused (413, 408, 400)."""
    content = request.content
    if content.is_eof():
        body = content.read_nowait(-1)
        if len(body) > body_max:
            raise too_large(body_max)
        return body
    pieces: list[bytes] = []
    size = 0
    now = asyncio.get_running_loop().time
    end = now() + BODY_S
    try:
        async with asyncio.timeout_at(now() + BODY_STALL_S) as limit:
            while piece := await content.readany():
                size += len(piece)
                if size > body_max:
                    raise too_large(body_max)
                pieces.append(piece)
                limit.reschedule(min(now() + BODY_STALL_S, end))
    except TimeoutError:
        raise Refused(408, "body_too_slow", f"the request body stood still for {BODY_STALL_S:g} s or took over {BODY_S:g} s") from None
    except web.RequestPayloadError:
        raise Refused(400, "bad_http", "the request body is not valid HTTP/1.1") from None
    return b"".join(pieces)


def asked(request: web.BaseRequest, body: bytes, body_max: int) -> Asked:
    """`model` and `stream` of a JSON body. Raises Refused (400 naming the field, 413, 415)."""
    if "Content-Encoding" in request.headers:
        encoding = ",".join(request.headers.getall("Content-Encoding"))
        body = _decoded(body, encoding.strip().lower() or "identity", body_max)
    data = _json(body)
    model, stream = data.get("model"), data.get("stream")
    if not isinstance(model, str):
        problem = "is missing" if model is None else "must be a string"
        raise RefusedParam(400, "bad_model", f"model {problem}", "model")
    if stream is not None and not isinstance(stream, bool):
        raise RefusedParam(400, "bad_stream", "stream must be true or false", "stream")
    return Asked(model, stream is True)


def max_wait_s(request: web.BaseRequest) -> float | None:
    """Seconds of `x-gpu-fleet-max-wait-ms`, None without it. Raises Refused (400)."""
    text = request.headers.get("x-gpu-fleet-max-wait-ms")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise RefusedParam(400, "bad_max_wait", "x-gpu-fleet-max-wait-ms must be a whole number of milliseconds", "x-gpu-fleet-max-wait-ms")
    return int(text) / 1000


def note(request: web.BaseRequest, name: str) -> str:
    """A header of the gateway for the journal: printable, bounded, empty when absent."""
    value = request.headers.get(name, "")
    if value.isascii() and value.isprintable() and len(value) <= _NOTE_MAX:
        return value
    return "".join(c if c.isprintable() else "?" for c in value[:_NOTE_MAX])


def request_id(request: web.BaseRequest) -> str:
    """The gateway's `x-request-id`, else one of our own."""
    return note(request, "x-request-id") or os.urandom(12).hex()


def _json(body: bytes) -> dict[str, Any]:
    try:
        data = _FIELDS.validate_json(body)
    except ValidationError as error:
        data = _json_slowly(body, str(error))
    if not isinstance(data, dict):
        raise Refused(400, "bad_json", "the request body must be a JSON object")
    return data


def _json_slowly(body: bytes, error: str) -> Any:
    """What the fast parser does not take and another may (unpaired surrogates, deep nesting): the worker decides about it."""
    if "[type=dict_type" in error:
        return None
    try:
        if "hex escape" in error or "recursion" in error:
            return json.loads(body)
    except (ValueError, RecursionError):
        pass
    raise Refused(400, "bad_json", "the request body is not valid JSON")


def _decoded(body: bytes, encoding: str, body_max: int) -> bytes:
    """A readable copy of an encoded body, bounded; the worker gets the bytes as they came."""
    if encoding == "identity":
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise Refused(415, "unsupported_encoding", "a request body may be encoded with gzip or deflate only")
    decoder = zlib.decompressobj(_GZIP if encoding != "deflate" else zlib.MAX_WBITS)
    try:
        plain = decoder.decompress(body, body_max + 1)
    except zlib.error:
        raise Refused(400, "bad_encoding", "the request body is not what its Content-Encoding says") from None
    if len(plain) > body_max:
        raise too_large(body_max)
    if not decoder.eof or decoder.unused_data:  # a second member would be read by the worker alone
        raise Refused(400, "bad_encoding", "the request body is not what its Content-Encoding says")
    return plain
