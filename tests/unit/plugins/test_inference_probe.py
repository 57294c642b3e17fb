from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest

from tests.support.http_double import Answer, Sent, json_answer
from tests.support.run_module import ModuleFailed, run_module

KEY = "sk-acceptance-0123456789abcdef"
CHAT = {
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "They mine."}}],
    "usage": {"total_tokens": 16},
}
FLEET = {"x_gpu_fleet_card": "GPU-1", "x_gpu_fleet_lease": "lease-1", "x_gpu_fleet_queued_ms": "3", "x_gpu_fleet_load_ms": "1312"}
ERROR = {"error": {"message": "the queue is full", "type": "rate_limit_error", "param": None, "code": "queue_full"}}


def event(**delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def test_a_chat_returns_the_answer_the_card_and_the_times(http, capsys) -> None:
    server = http(lambda _sent: json_answer(CHAT, **FLEET))
    result = run_module(
        capsys, "inference_probe", url=server.url, model="t4-router", api_key=KEY, prompt="Hello?", headers={"x-data-class": "restricted"}
    )
    assert (result["answer"], result["finish_reason"], result["usage"]) == ("They mine.", "stop", {"total_tokens": 16})
    assert (result["card"], result["lease"], result["queued_ms"], result["load_ms"]) == ("GPU-1", "lease-1", 3, 1312)
    assert 0 < result["seconds"]["headers"] <= result["seconds"]["total"]
    assert result["changed"] is False
    (sent,) = server.sent
    assert (sent.method, sent.path) == ("POST", "/v1/chat/completions")
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.headers["x-data-class"] == "restricted"
    assert sent.json["messages"] == [{"role": "user", "content": "Hello?"}]
    assert (sent.json["model"], sent.json["max_tokens"], sent.json["temperature"]) == ("t4-router", 16, 0)


def test_the_key_never_appears_in_the_result_even_when_the_server_repeats_it(http, capsys) -> None:
    server = http(lambda _sent: json_answer({"error": {"message": f"no such key: {KEY}"}}, 401))
    with pytest.raises(ModuleFailed) as failed:
        run_module(capsys, "inference_probe", url=server.url, model="m", api_key=KEY)
    assert KEY not in json.dumps(failed.value.result)
    assert "expected 200" in failed.value.result["msg"]


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/", "/prefix/v1"])
def test_the_base_url_may_end_in_v1_or_not(http, capsys, base) -> None:
    server = http(lambda _sent: json_answer(CHAT))
    run_module(capsys, "inference_probe", url=server.url + base, model="m")
    assert server.sent[0].path == ("/prefix" if "prefix" in base else "") + "/v1/chat/completions"


def test_a_stream_is_put_together_and_its_chunks_and_pings_are_counted(http, capsys) -> None:
    chunks = [b": ping\n\n", event(role="assistant"), event(content="They "), event(content="mine."), DONE]
    server = http(lambda _sent: Answer(chunks=chunks, headers={"x-gpu-fleet-card": "GPU-1"}))
    result = run_module(capsys, "inference_probe", url=server.url, model="m", kind="stream")
    assert (result["answer"], result["chunks"], result["pings"], result["done"], result["card"]) == ("They mine.", 3, 1, True, "GPU-1")
    assert result["seconds"]["headers"] <= result["seconds"]["first_byte"] <= result["seconds"]["total"]
    assert server.sent[0].json["stream"] is True


def test_the_first_byte_is_timed_when_it_comes_not_when_the_stream_ends(http, capsys) -> None:
    gate = threading.Event()

    def chunks() -> Any:
        yield event(content="now")
        gate.wait(0.3)  # nobody sets it: the pause is the point
        yield DONE

    server = http(lambda _sent: Answer(chunks=chunks()))
    seconds = run_module(capsys, "inference_probe", url=server.url, model="m", kind="stream")["seconds"]
    assert seconds["total"] - seconds["first_byte"] >= 0.29


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(chunks=[event(content="half")]), r"the stream ended without \[DONE\]"),
        (Answer(chunks=[event(content="half")], cut=True), "after .* s: |ended without .DONE."),
        (
            Answer(chunks=[event(content="half"), b"data: " + json.dumps(ERROR).encode() + b"\n\n"]),
            "an error event in the stream: the queue is full",
        ),
        (Answer(chunks=[event(role="assistant"), DONE]), "an empty answer"),
        (Answer(chunks=[b"data: oops\n\n"]), "an event that is not JSON: oops"),
    ],
)
def test_a_stream_that_ends_badly_fails_saying_how(http, capsys, answer, message) -> None:
    server = http(lambda _sent: answer)
    with pytest.raises(ModuleFailed, match=message):
        run_module(capsys, "inference_probe", url=server.url, model="m", kind="stream")


def test_a_vision_request_carries_a_real_png(http, capsys) -> None:
    server = http(lambda _sent: json_answer(CHAT))
    run_module(capsys, "inference_probe", url=server.url, model="m", kind="vision", prompt="What is it?")
    text, image = server.sent[0].json["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is it?"}
    head, data = image["image_url"]["url"].split(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data).startswith(b"\x89PNG\r\n\x1a\n")


def test_an_embedding_returns_its_size_and_length(http, capsys) -> None:
    server = http(lambda _sent: json_answer({"data": [{"index": 0, "embedding": [0.6, 0.8, 0.0]}]}))
    result = run_module(capsys, "inference_probe", url=server.url, model="m", kind="embedding", dimensions=3, prompt="text")
    assert (result["dimensions"], result["norm"]) == (3, 1.0)
    assert (server.sent[0].path, server.sent[0].json) == ("/v1/embeddings", {"input": "text", "dimensions": 3, "model": "m"})


def test_an_embedding_of_zeros_fails(http, capsys) -> None:
    server = http(lambda _sent: json_answer({"data": [{"index": 0, "embedding": [0.0, 0.0]}]}))
    with pytest.raises(ModuleFailed, match=r"an embedding of 2 dimensions and norm 0"):
        run_module(capsys, "inference_probe", url=server.url, model="m", kind="embedding")


@pytest.mark.parametrize(
    "case",
    [
        (
            "completion",
            "/v1/completions",
            {"choices": [{"text": "Paris", "finish_reason": "length"}]},
            {"answer": "Paris", "finish_reason": "length"},
        ),
        (
            "responses",
            "/v1/responses",
            {"status": "completed", "output": [{"content": [{"type": "output_text", "text": "Paris"}]}]},
            {"answer": "Paris"},
        ),
        (
            "rerank",
            "/v1/rerank",
            {"results": [{"index": 1, "relevance_score": 7.4}, {"index": 0, "relevance_score": -3.1}]},
            {"scores": [-3.1, 7.4]},
        ),
    ],
)
def test_the_other_endpoints_are_read_too(http, capsys, case) -> None:
    kind, path, body, expected = case
    server = http(lambda _sent: json_answer(body))
    result = run_module(capsys, "inference_probe", url=server.url, model="m", kind=kind)
    assert expected.items() <= result.items()
    assert server.sent[0].path == path


def test_the_list_of_models_is_read_with_a_get_and_without_a_model(http, capsys) -> None:
    server = http(lambda _sent: json_answer({"data": [{"id": "t4-router"}, {"id": "t3-code"}]}))
    assert run_module(capsys, "inference_probe", url=server.url, kind="models")["models"] == ["t3-code", "t4-router"]
    assert (server.sent[0].method, server.sent[0].path) == ("GET", "/v1/models")


def test_a_refusal_that_was_expected_is_a_success_with_its_error(http, capsys) -> None:
    server = http(lambda _sent: json_answer(ERROR, 429, retry_after="2"))
    result = run_module(capsys, "inference_probe", url=server.url, model="m", expected_status=[429, 503])
    assert (result["status"], result["error"], result["headers"]["retry-after"]) == (429, ERROR["error"], "2")


def test_a_success_that_was_not_expected_fails(http, capsys) -> None:
    server = http(lambda _sent: json_answer(CHAT))
    with pytest.raises(ModuleFailed, match=r"status 200, expected 401 or 403"):
        run_module(capsys, "inference_probe", url=server.url, model="m", expected_status=[401, 403])


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]", b'{"choices": []}', b'{"choices": [{"message": null}]}'])
def test_a_200_of_another_shape_fails_showing_it(http, capsys, body) -> None:
    server = http(lambda _sent: Answer(body=body))
    with pytest.raises(ModuleFailed, match=r"a 200 that is no chat answer"):
        run_module(capsys, "inference_probe", url=server.url, model="m")


def test_the_bound_is_for_the_whole_exchange_even_when_bytes_trickle(http, capsys) -> None:
    ended = threading.Event()

    def trickle() -> Any:
        while not ended.wait(0.05):
            yield b": ping\n\n"

    server = http(lambda _sent: Answer(chunks=trickle()))
    try:
        with pytest.raises(ModuleFailed, match=r"no complete answer within 0.4 s"):
            run_module(capsys, "inference_probe", url=server.url, model="m", kind="stream", timeout=0.4)
    finally:
        ended.set()


def test_check_mode_sends_nothing(http, capsys) -> None:
    server = http(lambda _sent: json_answer(CHAT))
    assert run_module(capsys, "inference_probe", check=True, url=server.url, model="m")["skipped"] is True
    assert server.sent == []


def test_a_unix_socket_is_spoken_to(http, capsys, tmp_path) -> None:
    http(lambda _sent: json_answer(CHAT), tmp_path / "worker.sock")
    assert (
        run_module(capsys, "inference_probe", url="http://worker", socket=str(tmp_path / "worker.sock"), model="m")["answer"]
        == "They mine."
    )


def test_a_model_is_required_unless_models_are_listed(capsys) -> None:
    with pytest.raises(ModuleFailed, match=r"kind is chat but all of the following are missing: model"):
        run_module(capsys, "inference_probe", url="http://127.0.0.1:9")


@pytest.mark.parametrize("url", ["ftp://host", "127.0.0.1:4000", "http://"])
def test_a_url_that_is_none_is_refused(capsys, url) -> None:
    with pytest.raises(ModuleFailed, match=r"is not an http:// or https:// URL"):
        run_module(capsys, "inference_probe", url=url, model="m")


def test_extra_keys_go_into_the_body(http, capsys) -> None:
    def answer(sent: Sent) -> Answer:
        return json_answer(CHAT) if sent.json["user"] == "probe" else json_answer(ERROR, 400)

    assert run_module(capsys, "inference_probe", url=http(answer).url, model="m", extra_body={"user": "probe"})["status"] == 200
