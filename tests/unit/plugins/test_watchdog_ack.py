from __future__ import annotations

import pytest

from tests.support.run_module import ModuleFailed, run_module
from tests.unit.plugins.test_watchdog_info import watchdog  # noqa: F401  # a fixture


@pytest.fixture
def locked(watchdog, tmp_path):  # noqa: F811
    (tmp_path / "watchdog.json").write_text("not a state")
    return watchdog


def test_check_mode_predicts_and_changes_nothing(locked, capsys, tmp_path) -> None:
    result = run_module(capsys, "watchdog_ack", check=True, reason="new riser", **locked)
    assert result["changed"] is True
    assert result["diff"] == {"before": {"phase": "locked_out"}, "after": {"phase": "healthy"}}
    assert (tmp_path / "watchdog.json").read_text() == "not a state"


def test_an_ack_leads_out_is_kept_with_its_reason_and_a_second_one_changes_nothing(locked, capsys, tmp_path) -> None:
    result = run_module(capsys, "watchdog_ack", reason="new riser", **locked)
    assert (result["changed"], result["was"], result["phase"]) == (True, "locked_out", "healthy")
    assert "corrupt" in result["locked_reason"]
    assert "new riser" in (tmp_path / "watchdog-acks.jsonl").read_text()
    again = run_module(capsys, "watchdog_ack", reason="new riser", **locked)
    assert (again["changed"], again["was"]) == (False, "healthy")
    assert run_module(capsys, "watchdog_ack", check=True, reason="new riser", **locked)["changed"] is False


@pytest.mark.parametrize("reason", ["", "  "])
def test_an_empty_reason_is_refused(locked, capsys, reason) -> None:
    with pytest.raises(ModuleFailed, match="expected what was done about the host"):
        run_module(capsys, "watchdog_ack", reason=reason, **locked)
