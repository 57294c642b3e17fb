"""`status`: one screen that says what is seen, what would happen next and what holds it back. Reads files only, decides nothing."""

from __future__ import annotations

import datetime
from typing import Any

from gpu_watchdog.actions import Refuse
from gpu_watchdog.config import Config
from gpu_watchdog.decide import confirmed, standing_holds
from gpu_watchdog.last import Last
from gpu_watchdog.observation import GONE, Card, Sight
from gpu_watchdog.state import Now, Phase, State

_NEXT = {
    Phase.HEALTHY: "nothing; a card that is gone {misses} times in a row ({signal} with the kernel's word) starts the ladder",
    Phase.SUSPECT: "count on: confirmed after {misses} misses in a row ({signal} with the kernel's word)",
    Phase.CONFIRMED: "announce the intent, ask the fleet, then drain",
    Phase.DRAINING: "reboot when no lease is active, or go back after {drain:.0f} s",
    Phase.REBOOTING: "lock out if the reboot does not happen within {reboot:.0f} s",
    Phase.VERIFYING: "healthy when every card is back, locked out after {verify:.0f} s",
    Phase.LOCKED_OUT: "nothing until `gpu-watchdog ack --reason …`",
}


def report(
    config: Config, state: State, last: Last | None, now: Now, boot_id: str, *, alerts_waiting: int, maintenance: str | None
) -> dict[str, Any]:
    """The facts of the screen, as `status --json` and the module watchdog_info show them. Times are RFC 3339 UTC, durations seconds."""
    policy, bounds = config.policy(), config.bounds
    current = last is not None and last.boot_id == boot_id
    seen = last.seen if last is not None and current else None
    holds: list[Refuse] = []
    if last is not None and seen is not None:
        holds = [action for action in last.actions if isinstance(action, Refuse)] or list(standing_holds(policy, state, seen))
    passed = max(0.0, now.boot_s - state.boot_s) if state.boot_id == boot_id else 0.0
    elapsed = state.elapsed_s + passed
    cooldown = 0.0 if state.last_reboot is None else max(0.0, bounds.cooldown_s - (elapsed - state.last_reboot))
    following = _NEXT[state.phase].format(
        misses=bounds.misses, signal=bounds.misses_with_signal, drain=bounds.drain_s, reboot=bounds.reboot_s, verify=bounds.verify_s
    )
    cards = []
    for slot, uuid in config.cards:
        sight = seen.cards.get(uuid, Sight(Card.UNKNOWN)) if seen else Sight(Card.UNKNOWN)
        track = state.track(uuid)
        pci = sight.pci or track.pci
        cards.append(
            {
                "slot": slot,
                "uuid": uuid,
                "pci": pci,
                "seen": str(sight.card),
                "detail": sight.detail,
                "misses": track.misses,
                "signal": track.signal,
            }
        )
    return {
        "host": config.host,
        "phase": str(state.phase),
        "phase_s": round(elapsed - state.since, 1),
        "locked_reason": state.locked_reason or None,
        "dry_run": config.dry_run,
        "observed_at": _rfc3339(last.at_wall) if last else None,
        "observed_s": round(max(0.0, now.wall - last.at_wall), 1) if last else None,
        "probe": str(seen.probe) if seen else None,
        "probe_detail": seen.probe_detail if seen else "",
        "cards": cards,
        "pool_unit": seen.pool_unit if seen else None,
        "leases": seen.leases if seen else None,
        "peers": {name: str(peer) for name, peer in seen.peers.items()} if seen and seen.peers is not None else None,
        "maintenance": maintenance,
        "reboots_in_window": len(state.reboots),
        "max_reboots": bounds.max_reboots,
        "cooldown_left_s": round(cooldown, 1),
        "alerts_waiting": alerts_waiting,
        "next": following,
        "holds": [{"code": hold.code, "reason": hold.reason} for hold in holds],
        "confirmed": [policy.slot(track.uuid) for track in confirmed(policy, state)],
    }


def text(facts: dict[str, Any]) -> str:
    """The same facts for people."""
    lines = [f"{facts['host']}: {facts['phase']} for {facts['phase_s']:.0f} s" + (" (dry run)" if facts["dry_run"] else "")]
    if facts["locked_reason"]:
        lines.append(f"  because {facts['locked_reason']}")
    age = facts["observed_s"]
    if facts["probe"] is None:
        lines.append("driver   not asked in this boot yet; is gpu-watchdog.service running?")
    else:
        lines.append(f"driver   {facts['probe']}, seen {age:.0f} s ago" + (f": {facts['probe_detail']}" if facts["probe_detail"] else ""))
    for card in facts["cards"]:
        extra = [f"missed {card['misses']} in a row"] if card["misses"] else []
        extra += ["kernel log: fallen off the bus"] if card["signal"] else []
        extra += [card["detail"]] if card["detail"] else []
        mark = "!" if card["seen"] in {str(item) for item in GONE} else " "
        lines.append(
            f"card {mark}  {card['slot']:4} {card['uuid']} {card['pci'] or '-'}  {card['seen']}" + "".join(f"; {item}" for item in extra)
        )
    leases = "unknown" if facts["leases"] is None else facts["leases"]
    lines.append(f"pool     unit {facts['pool_unit'] or 'unknown'}, leases {leases}")
    if facts["peers"] is not None:
        lines.append("fleet    " + (", ".join(f"{name} {peer}" for name, peer in facts["peers"].items()) or "no other hosts"))
    lines.append(
        f"reboots  {facts['reboots_in_window']} of {facts['max_reboots']} in the window, cooldown {facts['cooldown_left_s']:.0f} s left"
    )
    lines.append(f"alerts   {facts['alerts_waiting']} waiting to be sent")
    if facts["maintenance"]:
        lines.append(f"maintenance: {facts['maintenance']}")
    lines.append(f"next     {facts['next']}")
    lines += [f"held by  {hold['code']}: {hold['reason']}" for hold in facts["holds"]] or ["held by  nothing"]
    return "\n".join(lines)


def _rfc3339(wall: float) -> str:
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
