"""The last hop's copy of a request that leaves the fleet: text redacted, structure withheld, files refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gateway_guard.client_fields import ALLOWED, CONTENT_FIELDS
from gateway_guard.policy import Refusal

TEXT_TYPES = frozenset(
    {"text", "input_text", "output_text", "message", "refusal", "thinking", "redacted_thinking", "reasoning", "summary_text", "reasoning_text",
     "function", "function_call", "function_call_output", "tool_use", "tool_result", "ephemeral"}
)  # fmt: skip
RESULT_TYPES = frozenset({"tool_result", "function_call_output"})
FILE_KEYS = frozenset({"image_url", "input_audio", "audio", "video_url", "file", "file_id", "file_data", "file_url", "image", "source"})
NO_CONTENT = ALLOWED - {*CONTENT_FIELDS, "model"}  # a provider is sent what a client wrote there, whatever its type should be
CONTEXT_TAGS = "context|retrieved_context|retrieval|documents|document|search_results|search_result|rag|knowledge|repository|file_contents"
_CONTEXT = re.compile(rf"<(?P<tag>{CONTEXT_TAGS})\b.*?(?:</(?P=tag)\s*>|\Z)", re.DOTALL | re.IGNORECASE)


def outgoing_fields(request: Mapping[str, Any], redact: Callable[[str], str], withhold: bool) -> dict[str, Any]:
    """Return the fields to replace in `request`; the request itself is not touched. Raises Refusal when it carries anything but text.

    withhold: tool results, function outputs and tagged retrieval context become a marker instead of redacted text.
    """
    if any(_holds_numbers(request.get(name)) for name in ("input", "prompt")):
        raise Refusal(403, "only text may leave the fleet: lists of tokens cannot be read, so not redacted")
    cleaner = _Cleaner(redact, withhold)
    changed = {name: cleaner.content(request[name]) for name in CONTENT_FIELDS if name in request}
    changed.update({name: cleaner.strings(request[name]) for name in NO_CONTENT if name in request})
    return changed


def _holds_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, int | float) or _holds_numbers(item) for item in value)


def _marker(what: str, value: Any) -> str:
    return f"[{what} withheld: {len(value if isinstance(value, str) else str(value))} characters]"


class _Cleaner:
    def __init__(self, redact: Callable[[str], str], withhold: bool) -> None:
        self._redact = redact
        self._withhold = withhold

    def text(self, text: str) -> str:
        if self._withhold:
            text = _CONTEXT.sub(lambda match: _marker("retrieval context", match[0]), text)
        return self._redact(text)

    def content(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.content(item) for item in value]
        if isinstance(value, Mapping):
            return self._item(value)
        return value

    def _item(self, item: Mapping[str, Any]) -> dict[str, Any]:
        kind = item.get("type")
        if not (kind is None or (isinstance(kind, str) and kind in TEXT_TYPES)) or any(item.get(key) is not None for key in FILE_KEYS):
            raise Refusal(403, "only text may leave the fleet: images, audio and files are refused")
        if self._withhold and (kind in RESULT_TYPES or item.get("role") in ("tool", "function")):
            return {
                key: _marker("tool result", value) if key in ("content", "output") else self.strings(value) for key, value in item.items()
            }
        # the arguments of a tool call are data of any shape, not content parts
        return {key: self.strings(value) if kind == "tool_use" and key == "input" else self.content(value) for key, value in item.items()}

    def strings(self, value: Any) -> Any:
        """Redact every string of any JSON value, names of fields excepted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.strings(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self.strings(item) for key, item in value.items()}
        return value
