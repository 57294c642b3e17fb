"""The guard's own settings: guard.json beside keys.json, written by the role `litellm`."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway_guard.approval import Approver
from gateway_guard.grants import DATA_CLASSES


class SettingsError(ValueError):
    """guard.json is not what the role writes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """approvers: who may approve crossings; withhold: the data classes whose tool results and retrieval context stay inside;
    patterns: the operator's own expressions (label → regular expression) that never leave."""

    approvers: Mapping[str, Approver] = field(default_factory=dict)
    withhold: frozenset[str] = frozenset(DATA_CLASSES)
    patterns: Mapping[str, str] = field(default_factory=dict)


def parse(document: Any) -> Settings:
    try:
        approvers = {str(name): _approver(entry) for name, entry in document.get("approvers", {}).items()}
        withhold = frozenset(document.get("withhold", DATA_CLASSES))
        patterns = {str(label): str(pattern) for label, pattern in document.get("patterns", {}).items()}
    except (AttributeError, KeyError, TypeError, binascii.Error) as error:
        raise SettingsError(f"guard.json: {type(error).__name__} at {error}") from error
    if withhold - set(DATA_CLASSES):
        raise SettingsError(f"guard.json: withhold names {sorted(withhold)}, allowed are {', '.join(DATA_CLASSES)}")
    return Settings(approvers, withhold, patterns)


def load(path: Path) -> Settings:
    return parse(json.loads(path.read_text(encoding="utf-8")))


def directory() -> Path:
    """Return the folder of keys.json and guard.json; systemd hands them over as credentials."""
    found = os.environ.get("GATEWAY_GUARD_DIR") or os.environ.get("CREDENTIALS_DIRECTORY")
    if not found:
        raise SettingsError("GATEWAY_GUARD_DIR is not set")
    return Path(found)


def _approver(entry: Mapping[str, Any]) -> Approver:
    raw = base64.b64decode(entry["public_key"], validate=True)
    if len(raw) != 32:
        raise SettingsError("guard.json: an approver's public_key is not 32 bytes in base64")
    principals = entry.get("principals")
    return Approver(raw, None if principals is None else frozenset(principals))
