from __future__ import annotations

import json
import time
from typing import Any

import pytest
from gateway_guard.client_fields import ALLOWED, refuse_foreign_tools, strip
from gateway_guard.outgoing import outgoing_fields
from gateway_guard.policy import Refusal
from gateway_guard.text_redaction import PIECE, TextRedactor

redact = TextRedactor(["gpu-a", "gpu-b"], {"PROJECT": r"Orion-\d+"})


@pytest.mark.parametrize(
    "secret",
    [
        "sk-abcdEFGH12345678", "AKIAIOSFODNN7EXAMPLE", "ghp_0123456789abcdefABCDEF0123456789abcd", "glpat-0123456789abcdefABCD", "anna.b@example.org", "100.64.0.11",
        "192.168.3.4", "fd7a:115c:a1e0::1", "00:1A:2b:3c:4D:5e", "prl1pqqqqqqqqqqqqqqqqqqqqqqqqqq9", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq",
        "GPU-a0000000-0000-4000-8000-0000000000c0", "gpu-a", "GPU-B", "box.tail1234.ts.net", "+49 30 12345678", "(202) 555-0123", "4111 1111 1111 1111", "123-45-6789",
        "DE89 3704 0044 0532 0130 00", "Orion-77", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    ],
)  # fmt: skip
@pytest.mark.parametrize("around", ["{}", "before {} after", "x={}\ny=1", '{{"a": "{}"}}'])
def test_a_secret_does_not_survive_in_a_text(secret: str, around: str) -> None:
    text = redact(around.format(secret))
    assert secret not in text
    assert "[" in text


@pytest.mark.parametrize("secret", ["DE89 3704 0044 0532 0130 00", "DE89370400440532013000", "4111 1111 1111 1111"])
@pytest.mark.parametrize("after", [" IS MINE", " OK", " 12", " 3 TIMES"])
def test_a_number_does_not_survive_because_of_what_follows_it(secret: str, after: str) -> None:
    assert secret not in redact(secret + after)


@pytest.mark.parametrize("secret", ["ghp_0123456789abcdefABCDEF0123456789abcd", "box.tail1234.ts.net"])
def test_a_secret_does_not_survive_in_a_very_long_line(secret: str) -> None:
    for before in range(PIECE - 50, PIECE + 10, 7):
        assert secret not in redact("x " * (before // 2) + secret + " y" * PIECE)


@pytest.mark.parametrize(
    "text", ["a-", "a.", ".ts.net ", "<context ", "</context", f"AB12{'C' * 40} ", "://a:", "eyJ", "-----BEGIN ", "data:a/b;", "1 ", "a@"]
)
def test_no_text_takes_time_with_the_square_of_its_length(text: str) -> None:
    """One such request held up everybody's: a regular expression lets no other task run."""

    def seconds(length: int) -> float:
        started = time.process_time()
        fields(prompt=(text * length)[:length])
        return time.process_time() - started

    assert seconds(160_000) < max(24 * seconds(20_000), 0.5)  # the square would be 64 times as long


@pytest.mark.parametrize("line", ['password = "hunter2hunter2"', "API_KEY: 'abcdefghij'", "https://anna:hunter2pass@example.org/x"])
def test_a_password_in_code_does_not_survive(line: str) -> None:
    assert "hunter2" not in redact(line)
    assert "abcdefghij" not in redact(line)


def test_a_private_key_is_removed_whole_even_when_it_is_cut_off() -> None:
    block = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAA"
    assert redact(f"see\n{block}\n-----END OPENSSH PRIVATE KEY-----\nend") == "see\n[PRIVATE KEY]\nend"
    assert "AAAA" not in redact(f"see\n{block}")


def test_an_invisible_character_does_not_hide_a_secret() -> None:
    assert "EFGH" not in redact("s\u200bk-abcd\u2060EFGH12345678")


@pytest.mark.parametrize(
    "text", ["The fleet has 12 cards.", "def f(x):\n    return x + 1", "at 12:34:56 on 127.0.0.1", "Python 3.11 and 3.13", "größer, 日本語"]
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def fields(withhold: bool = True, **request: Any) -> dict[str, Any]:
    return outgoing_fields(request, redact, withhold)


@pytest.mark.parametrize("name", sorted(ALLOWED - {"model"}))
def test_no_field_that_a_client_may_send_leaves_unredacted(name: str) -> None:
    for value in ("anna@example.org", ["anna@example.org"], {"x": {"y": ["anna@example.org"]}}):
        assert "anna" not in str(fields(**{name: value}))
    usual = {"stream": True, "size": "1024x1024", "encoding_format": "base64", "reasoning": {"effort": "high"}, "temperature": 0.7, "n": 2}
    assert fields(**usual) == usual


def test_every_text_of_a_request_is_redacted_and_the_original_is_not_touched() -> None:
    request = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "at 100.64.0.11"}]},
            {"role": "system", "content": "at 100.64.0.11"},
        ],
        "instructions": "at 100.64.0.11",
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "at 100.64.0.11", "parameters": {"type": "object", "properties": {"file": {}}}},
            }
        ],
        "stop": ["100.64.0.11"],
    }
    before = json.dumps(request)
    assert "100.64" not in json.dumps(fields(**request))
    assert json.dumps(request) == before


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "tool", "tool_call_id": "1", "content": "the whole file"}],
        [{"role": "function", "name": "f", "content": "the whole file"}],
        [{"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "the whole file"}]}],
        [
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "the whole file"}]}],
            }
        ],
        [{"role": "user", "content": "x <context source='a'>the whole file</context> y"}],
        [{"role": "user", "content": "x <Documents>the whole file"}],
    ],
)
def test_tool_results_and_retrieval_context_are_withheld(messages: list[dict[str, Any]]) -> None:
    text = json.dumps(fields(messages=messages))
    assert "whole file" not in text
    assert "withheld" in text


def test_function_outputs_of_the_responses_api_are_withheld() -> None:
    text = json.dumps(fields(input=[{"type": "function_call_output", "call_id": "1", "output": "the whole file"}]))
    assert "whole file" not in text


def test_where_the_operator_allows_it_tool_results_leave_redacted() -> None:
    text = json.dumps(fields(withhold=False, messages=[{"role": "tool", "tool_call_id": "1", "content": "the whole file of gpu-a"}]))
    assert "the whole file of [NODE]" in text


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        {"type": "input_audio", "input_audio": {"data": "AA"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "input_image", "image_url": "x"},
        {"type": "input_file", "file_data": "x"},
        {"type": "image", "source": {"type": "base64", "data": "AA"}},
        {"type": "document", "source": {"type": "text", "data": "AA"}},
        {"type": "something_new", "payload": "AA"},
        {"type": "text", "text": "x", "image_url": "y"},
        {"type": ["text"], "text": "x"},
    ],
)
def test_anything_but_text_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(Refusal):
        fields(messages=[{"role": "user", "content": [part]}])
    with pytest.raises(Refusal):
        fields(input=[part])


@pytest.mark.parametrize("tokens", [[1, 2], [[1, 2], [3]], ["text", [1]]])
def test_text_as_numbers_of_tokens_is_refused(tokens: Any) -> None:
    for name in ("input", "prompt"):
        with pytest.raises(Refusal):
            fields(**{name: tokens})


def test_an_image_within_a_text_is_removed() -> None:
    assert fields(prompt="see data:image/png;base64,iVBORw0KGgo= now")["prompt"] == "see [FILE] now"


def test_the_arguments_of_a_tool_call_may_have_any_shape_and_are_redacted() -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"file": "x", "type": "anything", "host": "gpu-a"}}
    found = fields(messages=[{"role": "assistant", "content": [call]}])
    assert found["messages"][0]["content"][0]["input"] == {"file": "x", "type": "anything", "host": "[NODE]"}


def test_knobs_unknown_fields_and_spoofed_metadata_are_dropped() -> None:
    body = {
        "model": "t3-smart",
        "messages": [],
        "temperature": 1,
        "api_base": "x",
        "num_retries": 9,
        "unheard_of": 1,
        "metadata": {"model_info": {"zone": "local"}, "a": 1},
    }
    data = {
        **body,
        "metadata": {**body["metadata"], "model_info": {"zone": "hosted"}, "ours": 1},
        "litellm_call_id": "1",
        "timeout": 1,
        "proxy_server_request": {"body": body},
    }
    strip(data)
    assert set(data) == {"model", "messages", "temperature", "metadata", "litellm_call_id", "proxy_server_request"}
    assert data["metadata"] == {"model_info": {"zone": "hosted"}, "ours": 1}


@pytest.mark.parametrize(
    "tools", [[{"type": "mcp"}], [{"type": "web_search_preview"}], [{"type": "code_interpreter"}], "x", [1], [{}], {"type": "function"}]
)
def test_tools_that_others_would_run_are_refused(tools: Any) -> None:
    with pytest.raises(Refusal):
        refuse_foreign_tools(tools)


def test_functions_are_served_in_each_dialect() -> None:
    refuse_foreign_tools(None)
    refuse_foreign_tools(
        [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "name": "f"}, {"name": "f", "input_schema": {}}]
    )
