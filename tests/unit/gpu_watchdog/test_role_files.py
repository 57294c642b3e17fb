"""What the role gpu_watchdog renders, judged from outside: the unit's limits and hardening, the polkit rule, the configuration."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from gpu_watchdog.config import Bounds, load

ROLE = Path(__file__).parents[3] / "roles/gpu_watchdog"


def render(name: str, **changed: Any) -> str:
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False)  # noqa: S701  # no HTML
    environment.filters["to_json"] = lambda value, ensure_ascii=True: json.dumps(value, ensure_ascii=ensure_ascii)
    environment.filters["bool"] = bool
    variables = {
        **yaml.safe_load((ROLE / "defaults/main.yml").read_text()),
        **yaml.safe_load((ROLE / "vars/main.yml").read_text()),
        "ansible_managed": "managed",
        "__gpu_watchdog_deployed": "x",
        "gpu_watchdog_host": "gpu-a",
        "gpu_watchdog_cards": [{"slot": "c0", "uuid": "GPU-1"}, {"slot": "c1", "uuid": "GPU-2"}],
        "__gpu_watchdog_alert_command": [],
        **changed,
    }
    variables["__gpu_watchdog_command"] = "/opt/gpu-fleet/gpu-watchdog/bin/gpu-watchdog"
    return environment.from_string((ROLE / "templates" / name).read_text()).render(variables)


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in render("gpu-watchdog.service.j2").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_every_limit_of_the_unit_is_finite(unit: dict[str, list[str]]) -> None:
    for key in ("StartLimitIntervalSec", "StartLimitBurst", "RestartSec", "WatchdogSec", "TimeoutStartSec", "TimeoutStopSec", "TasksMax"):
        (value,) = unit[key]
        assert re.fullmatch(r"[1-9]\d*", value), f"{key}={value}: neither 0 nor infinity"
    assert "infinity" not in render("gpu-watchdog.service.j2")


def test_the_restart_limit_can_be_reached(unit: dict[str, list[str]]) -> None:
    """Restarts that are spaced wider than the limit's window would go on for ever."""
    assert int(unit["RestartSec"][0]) * int(unit["StartLimitBurst"][0]) < int(unit["StartLimitIntervalSec"][0])


def test_one_round_fits_into_the_time_that_systemd_waits_for_a_sign_of_life(unit: dict[str, list[str]]) -> None:
    """Between two signs of life lies at most one bounded step, and the longest are the last alert, the peers and the probe."""
    bounds = Bounds()
    longest = max(bounds.alert_s + bounds.command_s, 2 * bounds.peers_s + 2, bounds.probe_s, bounds.interval_s) + 2
    assert longest * 2 < int(unit["WatchdogSec"][0])
    assert unit["Type"] == ["notify"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_unit_is_hardened(tmp_path: Path) -> None:
    path = tmp_path / "gpu-watchdog.service"
    path.write_text(render("gpu-watchdog.service.j2").replace("/opt/gpu-fleet/gpu-watchdog/bin/gpu-watchdog", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def allowed(rules: str, user: str, action: str, unit: str = "", verb: str = "") -> bool:
    """Runs the rule in a JavaScript engine if there is one; polkit's own is not a program."""
    script = f"""
    var rule; var polkit = {{Result: {{YES: true, NOT_HANDLED: false}}, addRule: function (f) {{ rule = f; }}}};
    {rules}
    var given = {{unit: {json.dumps(unit)}, verb: {json.dumps(verb)}}};
    console.log(rule({{id: {json.dumps(action)}, lookup: function (key) {{ return given[key]; }}}}, {{user: {json.dumps(user)}}}));
    """
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "true"


UNITS = "org.freedesktop.systemd1.manage-units"


@pytest.mark.skipif(not shutil.which("node"), reason="needs a JavaScript engine")
@pytest.mark.parametrize(
    ("request_", "granted"),
    [
        (("gpu-watchdog", "org.freedesktop.login1.reboot"), True),
        (("gpu-watchdog", "org.freedesktop.login1.power-off"), False),
        (("gpu-watchdog", "org.freedesktop.login1.reboot-ignore-inhibit"), False),
        (("lease-pool", "org.freedesktop.login1.reboot"), False),
        (("gpu-watchdog", UNITS, "reboot.target", "start"), True),
        (("gpu-watchdog", UNITS, "poweroff.target", "start"), False),
        (("gpu-watchdog", UNITS, "gpu-worker@c0.service", "stop"), True),
        (("gpu-watchdog", UNITS, "gpu-worker@c0.service", "start"), False),
        (("gpu-watchdog", UNITS, "gpu-miner@c1.service", "start"), True),
        (("gpu-watchdog", UNITS, "gpu-miner@c1.service", "restart"), True),
        (("gpu-watchdog", UNITS, "gpu-miner@c2.service", "start"), False),
        (("gpu-watchdog", UNITS, "lease-pool.service", "stop"), False),
        (("gpu-watchdog", "org.freedesktop.systemd1.manage-unit-files"), False),
        (("gpu-watchdog", UNITS, "constructor", "start"), False),
    ],
)
def test_the_polkit_rule_grants_a_reboot_and_our_units_and_nothing_else(request_: tuple[str, ...], granted: bool) -> None:
    assert allowed(render("polkit.rules.j2"), *request_) is granted


def test_the_rendered_configuration_is_accepted_with_every_variable_set(tmp_path: Path) -> None:
    file = tmp_path / "watchdog.toml"
    file.write_text(
        render(
            "watchdog.toml.j2",
            gpu_watchdog_peers=[{"name": "gpu-b", "url": "http://100.64.0.2:9100"}],
            gpu_watchdog_dry_run=True,
            gpu_watchdog_bounds={"misses": 3, "cooldown_s": 60.5, "window_s": 600},
            gpu_watchdog_idle_unit="",
            gpu_watchdog_idle_alive=["/bin/x", "{slot}", 'quote " and \\ and ü'],
            gpu_watchdog_webhook_url="https://example.com/secret",
            __gpu_watchdog_alert_command=["apprise", "--title={title}"],
            gpu_watchdog_reboot_command=["busctl", "call"],
            gpu_watchdog_kernel_log_command=["journalctl"],
        )
    )
    config = load(file)
    assert "secret" not in file.read_text()
    assert config.idle_alive[2] == 'quote " and \\ and ü'
    assert (config.bounds.misses, config.bounds.cooldown_s, config.dry_run, config.idle_unit) == (3, 60.5, True, "")
    assert config.peers == (("gpu-b", "http://100.64.0.2:9100"),)


def test_the_defaults_named_in_the_roles_documentation_are_the_defaults() -> None:
    options = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    documented = dict(re.findall(r"(\w+) (\d+)[,.]", " ".join(options["gpu_watchdog_bounds"]["description"])))
    assert {name: str(value) for name, value in vars(Bounds()).items()} == documented
