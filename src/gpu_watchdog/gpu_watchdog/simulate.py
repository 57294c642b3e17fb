"""`simulate`: replay a file of observations through the decision and print each one with its reason. Touches nothing of the host.

The file has one JSON object a line: `{"dt": seconds since the line before, "boot": "b1", "jump": seconds the wall clock jumped, "ack":
true, …}` and any field of an observation; cards by slot or UUID, as a name (`{"c0": "vanished"}`). What a line leaves out is all well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from gpu_watchdog.actions import Alert, Note, Reboot, Refuse
from gpu_watchdog.config import Config
from gpu_watchdog.decide import acknowledge, decide
from gpu_watchdog.last import from_json
from gpu_watchdog.reconcile import reconcile
from gpu_watchdog.state import Now, State


class BadLine(Exception):
    """A line that is no observation; the message names it."""


def replay(config: Config, lines: Iterable[str]) -> Iterator[str]:
    """One line of text for each decision and, indented, for each action."""
    policy, upkeep = config.policy(), config.upkeep()
    by_slot = dict(config.cards)
    state = State()
    wall, boot_s, boot_id = 1_700_000_000.0, config.bounds.min_uptime_s, "boot-1"
    announced = False
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            raw: dict[str, Any] = json.loads(line)
            dt = float(raw.pop("dt", config.bounds.interval_s))
            boot = str(raw.pop("boot", boot_id))
            wall += dt + float(raw.pop("jump", 0))
            boot_s = dt if boot != boot_id else boot_s + dt
            boot_id = boot
            if raw.pop("ack", False):
                state = acknowledge(state)
            raw["cards"] = dict.fromkeys(by_slot.values(), "ok") | {
                by_slot.get(name, name): seen for name, seen in raw.get("cards", {}).items()
            }
            raw["signals"] = [by_slot.get(name, name) for name in raw.get("signals", ())]
            raw.setdefault("intent_announced", announced)
            raw.setdefault("peers", {})
            seen = from_json(raw)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadLine(f"line {number}: {error}") from error
        before = state.phase
        state, actions = decide(policy, state, seen, Now(wall, boot_s), boot_id)
        state, upkeep_actions = reconcile(upkeep, state, seen)
        announced = state.intent == "intending"
        arrow = f"{before} -> {state.phase}" if before is not state.phase else str(state.phase)
        yield f"line {number} boot {boot_id} up {boot_s:.0f} s: {arrow}"
        for action in (*upkeep_actions, *actions):
            match action:
                case Refuse(code, reason):
                    yield f"    not rebooting: {code}: {reason}"
                case Alert(kind, text):
                    yield f"    alert {kind}: {text}"
                case Note(text):
                    yield f"    {text}"
                case Reboot():
                    yield "    REBOOT"
                case _:
                    details = ", ".join(f"{key}={value}" for key, value in vars(action).items())
                    yield f"    {type(action).__name__}({details})"
