"""Runs a module's `main()` in this process, as Ansible does on a host, and returns what it printed."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args


class ModuleFailed(AssertionError):
    """The module called fail_json; `result` is what it printed."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(result["msg"])
        self.result = result


def run_module(capsys: pytest.CaptureFixture[str], name: str, *, check: bool = False, **params: Any) -> dict[str, Any]:
    """The result of `agentic.gpu_fleet.<name>` with these options, diff on. Raises ModuleFailed."""
    main = importlib.import_module(f"ansible_collections.agentic.gpu_fleet.plugins.modules.{name}").main
    capsys.readouterr()
    with patch_module_args({**params, "_ansible_check_mode": check, "_ansible_diff": True}), pytest.raises(SystemExit):
        main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    if result.get("failed"):
        raise ModuleFailed(result)
    return result
