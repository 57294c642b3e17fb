"""Which fields of a request body a client may send. Everything else is dropped: LiteLLM reads dozens of knobs from the body.

(`num_retries`, `fallbacks`, `api_base`, `mock_response`, `tags`, `router_settings_override`, … steer retries, routing and addresses.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from gateway_guard.policy import Refusal

CONTENT_FIELDS = ("messages", "input", "prompt", "suffix", "system", "instructions", "query", "documents")
OTHER_TEXT_FIELDS = (
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "response_format",
    "text",
    "stop",
    "stop_sequences",
    "text_format",
    "output_format",
)
SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "n", "max_tokens", "max_completion_tokens", "max_output_tokens", "presence_penalty",
    "frequency_penalty", "repeat_penalty", "logit_bias", "logprobs", "top_logprobs", "reasoning", "reasoning_effort", "thinking",
    "parallel_tool_calls", "truncation", "verbosity", "grammar", "json_schema", "chat_template_kwargs", "cache_prompt",
)  # fmt: skip
SHAPE_FIELDS = (
    "model",
    "stream",
    "stream_options",
    "dimensions",
    "encoding_format",
    "top_n",
    "return_documents",
    "size",
    "quality",
    "response_format",
    "user",
)
ALLOWED = frozenset((*CONTENT_FIELDS, *OTHER_TEXT_FIELDS, *SAMPLING_FIELDS, *SHAPE_FIELDS))

# LiteLLM also makes these from headers and query parameters, so they are removed whoever sent them.
KNOBS = frozenset(
    {"num_retries", "max_retries", "timeout", "stream_timeout", "request_timeout", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks",
     "default_fallbacks", "max_fallbacks", "fallback_depth", "router_settings_override", "model_group_retry_policy", "retry_policy", "mock_response",
     "mock_timeout", "mock_testing_fallbacks", "mock_testing_rate_limit_error", "cooldown_time", "api_base", "base_url", "api_key", "api_version",
     "organization", "user_config", "extra_headers", "extra_body", "extra_query", "headers", "default_headers", "tags", "caching", "cache", "guardrails",
     "specific_deployment", "custom_llm_provider", "model_list", "model_info", "deployment_id", "allowed_openai_params", "drop_params",
     "additional_drop_params", "previous_response_id", "conversation", "background", "store", "include", "prompt_id", "prompt_variables",
     "prompt_version", "litellm_credential_name", "input_cost_per_token", "output_cost_per_token", "rpm", "tpm", "order", "weight", "region_name",
     "enable_weighted_failover", "_target_order", "_excluded_deployment_ids", "_retry_skipped_deployment_ids", "request_retry_count",
     "num_retries_per_request", "logger_fn", "callbacks", "success_callback", "failure_callback", "no-log", "web_search_options", "mcp_servers",
     "policies", "secret_fields_override"}
)  # fmt: skip
TOOL_TYPES = frozenset({"function", "custom"})


def strip(data: MutableMapping[str, Any]) -> None:
    """Remove in place what a client may not steer. `data` is LiteLLM's request: the body plus what LiteLLM added."""
    request = data.get("proxy_server_request")
    body = request.get("body") if isinstance(request, Mapping) else None
    sent = set(body) if isinstance(body, Mapping) else set(data)
    for name in (sent - ALLOWED) - _OURS:
        data.pop(name, None)
    for name in KNOBS.intersection(data):
        del data[name]
    if isinstance(body, Mapping):
        for field in ("metadata", "litellm_metadata"):
            _forget_spoofed(data.get(field), body.get(field))
    refuse_foreign_tools(data.get("tools"))
    refuse_wrong_shapes(data)


# LiteLLM's own entries have these names; what the client sent under them is handled key by key below.
_OURS = frozenset({"metadata", "litellm_metadata", "proxy_server_request", "secret_fields", "litellm_call_id", "litellm_logging_obj"})


def _forget_spoofed(ours: Any, theirs: Any) -> None:
    """Drop from LiteLLM's metadata every entry that is still the client's own: nothing of it is needed, and some of it is trusted."""
    if isinstance(ours, dict) and isinstance(theirs, Mapping):
        for key, value in list(theirs.items()):  # on some routes both are one object
            if key in ours and ours[key] == value:
                del ours[key]


def _is_text_or_object(value: Any) -> bool:
    return isinstance(value, str | Mapping)


# Only fields whose wrong value LiteLLM would repeat, prompt and all, in its log and in a 500.
_SHAPES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "query": (lambda value: isinstance(value, str), "a string"),
    "documents": (lambda value: isinstance(value, list) and all(map(_is_text_or_object, value)), "a list of strings and objects"),
    "prompt": (lambda value: isinstance(value, str | list), "a string or a list"),
    "top_n": (lambda value: isinstance(value, int), "a whole number"),
    "return_documents": (lambda value: isinstance(value, bool), "true or false"),
    "response_format": (lambda value: isinstance(value, Mapping) or value in ("url", "b64_json"), "an object (of images: url or b64_json)"),
}


def refuse_wrong_shapes(data: Mapping[str, Any]) -> None:
    for name, (fits, wanted) in _SHAPES.items():
        if data.get(name) is not None and not fits(data[name]):
            raise Refusal(400, f"{name} must be {wanted}")


def refuse_foreign_tools(tools: Any) -> None:
    """Refuse tools that the gateway or a provider would run itself (MCP servers, web search, code): they are ways out of the fleet."""
    if tools is None:
        return
    if not isinstance(tools, list):
        raise Refusal(400, "tools must be a list")
    for tool in tools:
        kind = tool.get("type", "function" if "input_schema" in tool or "name" in tool else None) if isinstance(tool, Mapping) else None
        if kind not in TOOL_TYPES:
            raise Refusal(400, "only tools of type function are served")
