"""Faults of a configuration's shape, one key at a time: what pydantic found, in the operator's words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

Fault = tuple[str, str, str]  # key, value as shown, what is allowed


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


_PATTERN_WORDS = {
    r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$": "1 to 32 letters, digits, '_' or '-', beginning with a letter or digit",
    r"^[^\s,\x00-\x1f\x7f]{1,128}$": "an NVML UUID such as GPU-…, without spaces or commas",
    r"^[^\s\x00-\x1f\x7f]{1,200}$": "1 to 200 characters without spaces",
    r"^[^\s\x00-\x1f\x7f]{1,64}$": "1 to 64 characters without spaces",
    r"^/[^\s]*$": "a path beginning with '/'",
    r"^[^\s/]+\.service$": "a unit name ending in .service",
}
_BOUND_WORDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
}
_TYPE_WORDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string (quote it)",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "path_type": "must be a path",
    "string_too_short": "must not be empty",
}


def faults(error: ValidationError, known_keys: Callable[[list[Any]], list[str]]) -> Iterable[Fault]:
    """Each of pydantic's faults. `known_keys` names the keys that are allowed at a place."""
    for fault in error.errors(include_url=False):
        kind, context = fault["type"], fault.get("ctx", {})
        location = [part for part in fault["loc"] if part != "[key]"]
        key = _key(location)
        value = "(not shown)" if "env" in location else shown(fault["input"])
        if kind == "missing":
            yield key, "(missing)", "is required"
        elif kind == "extra_forbidden":
            yield key, value, f"unknown key; known here: {', '.join(known_keys(location[:-1]))}"
        elif kind == "string_pattern_mismatch":
            yield key, value, "must be " + _PATTERN_WORDS.get(str(context.get("pattern")), str(fault["msg"]))
        elif kind == "literal_error":
            yield key, value, f"must be {context['expected']}"
        elif kind in _BOUND_WORDS:
            words, name = _BOUND_WORDS[kind]
            yield key, value, f"must be {words} {context[name]}"
        elif kind == "too_short":
            yield key, value, "must have at least one entry"
        else:
            yield key, value, _TYPE_WORDS.get(kind, fault["msg"]) + _shape_hint(location)


def _shape_hint(location: list[Any]) -> str:
    hints = {("listen",): " {host: ADDRESS, port: NUMBER}", ("bounds",): " of bounds", ("idle_workload",): " {driver: …}"}
    return hints.get(tuple(location), "")


def _key(location: Iterable[Any]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(whole file)"
