# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""One screen for the fleet: what each card and each host does, from what the modules answered."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping


def fleet_status(answers: Mapping[str, Mapping[str, Any]]) -> Dict[str, List[Dict[str, Any]]]:
    """Return `{"cards": rows, "hosts": rows}` for two tables.

    `answers` maps each host to `{"pool": pool_info's result, "watchdog": watchdog_info's result}`; a result that is missing or failed is shown as such.
    """
    cards: List[Dict[str, Any]] = []
    hosts: List[Dict[str, Any]] = []
    for host in sorted(answers):
        pool, watchdog = answers[host].get("pool") or {}, answers[host].get("watchdog") or {}
        status = pool.get("status")
        hosts.append(
            {
                "host": host,
                "pool": _pool_words(pool, status),
                "queue": status["queue"] if status else "-",
                "leases": len(pool.get("leases") or []) if status else "-",
                "watchdog": _watchdog_words(watchdog),
            }
        )
        cards += [_card_row(host, card) for card in (status or {}).get("cards", [])]
    return {"cards": cards, "hosts": hosts}


def _pool_words(pool: Mapping[str, Any], status: Any) -> str:
    if pool.get("unreachable"):
        return "host does not answer"
    if not status:
        return f"no answer: {_first_line(pool.get('msg'))}"
    if status["draining"]:
        return f"draining ({status.get('drain_reason') or 'no reason given'})"
    return "in service"


def _watchdog_words(watchdog: Mapping[str, Any]) -> str:
    status = watchdog.get("status")
    if not status:
        return "no answer" if not watchdog.get("msg") else f"no answer: {_first_line(watchdog['msg'])}"
    return f"{status['phase']} (dry run)" if status.get("dry_run") else str(status["phase"])


def _card_row(host: str, card: Mapping[str, Any]) -> Dict[str, Any]:
    lease = card["lease"] or {}
    idle = card.get("idle") or {}
    alive = {True: "works", False: "does not hash", None: "runs" if idle.get("active") else "off"}[
        idle.get("alive") if idle.get("active") else None
    ]
    return {
        "host": host,
        "slot": card["slot"],
        "card": card["uuid"],
        "MiB": card["memory_mib"],
        "state": card["state"],
        "miner": alive,
        "alias": lease.get("alias") or ("(borrowed)" if lease else "-"),
        "since": lease.get("since") or "-",
        "reason": card["reason"] or "",
    }


def _first_line(text: Any) -> str:
    lines = str(text or "no message").splitlines()
    return lines[0] if lines else "no message"
