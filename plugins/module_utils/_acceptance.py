# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What acceptance asks of a fleet, as pure functions: which trips to make, and what was wrong with each.

A *trip* is one request through one host's gateway. The playbook makes the trips and takes a snapshot of every host after each; these
functions only judge. A snapshot of a host is
`{"status": GET /status, "events": [journal objects since acceptance began], "units": {unit: {"pid": int, "active": str}}}`.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Set

Snapshot = Mapping[str, Any]
Trip = Mapping[str, Any]

# One alias a kind is enough for the checks that every host must pass; jobs that answer fastest come first.
_PREFERRED = ("t4-router", "t4-classify", "t4-extract")


def plan_trips(aliases: Mapping[str, str], hosts: Mapping[str, Sequence[str]]) -> List[Dict[str, Any]]:
    """Return the trips of one acceptance run.

    `aliases` maps each local alias to its kind (chat, vision, embedding, …); `hosts` maps each host to the aliases that it can serve itself.
    Every host's gateway is asked for a chat answer, a stream, an embedding and a node alias; every other alias is asked for once in the fleet.
    """
    chat = [a for a in _PREFERRED if aliases.get(a) == "chat"] + sorted(
        a for a, k in aliases.items() if k == "chat" and a not in _PREFERRED
    )
    embedding = sorted(a for a, k in aliases.items() if k == "embedding")
    trips: List[Dict[str, Any]] = []
    asked: Set[str] = set()
    for host in sorted(hosts):
        wanted = [(chat[:1], "chat"), (chat[:1], "stream"), (embedding[:1], "embedding")]
        trips += [_trip(host, alias, probe, None) for names, probe in wanted for alias in names]
        asked.update(alias for names, _probe in wanted for alias in names)
        own = [a for a in chat if a in hosts[host]]
        trips += [_trip(host, f"{host}/{alias}", "chat", host) for alias in own[:1]]
    order = sorted(hosts)
    for number, alias in enumerate(sorted(set(aliases) - asked)):
        if aliases[alias] in ("chat", "vision", "embedding"):
            trips.append(_trip(order[number % len(order)], alias, aliases[alias], None))
    return trips


def plan_from_catalog(catalog: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return the trips for a catalog (docs/catalog.md): its aliases with a local model, and the hosts that its placement gives each."""
    local = {name: alias for name, alias in catalog["aliases"].items() if alias["model"] is not None}
    hosts = {host: [name for name, alias in local.items() if host in catalog["placement"][alias["model"]]] for host in catalog["hosts"]}
    return plan_trips({name: alias["kind"] for name, alias in local.items()}, hosts)


def _trip(host: str, alias: str, probe: str, pinned: str | None) -> Dict[str, Any]:
    return {"host": host, "alias": alias, "probe": probe, "pinned": pinned}


def trip_faults(trip: Trip, answer: Mapping[str, Any], before: Mapping[str, Snapshot], after: Mapping[str, Snapshot]) -> List[str]:
    """Return what was wrong with one trip, each a sentence; empty when the card was borrowed, used and given back as it must be.

    `before` and `after` are the snapshots of all hosts, `after` taken once the fleet had settled or its bound had passed.
    """
    where = f"{trip['host']} {trip['alias']} ({trip['probe']})"
    faults = [f"{where}: {fault}" for fault in _answer_faults(trip, answer)]
    leases = [(host, event) for host in after for event in _new_events(before[host], after[host]) if event["event"] == "lease"]
    if len(leases) != 1:
        faults.append(
            f"{where}: exactly one lease was expected in the fleet, {len(leases)} ended: {[event['card'] for _host, event in leases]}"
        )
        served = None
    else:
        host, event = leases[0]
        served = (host, event["card"])
        if answer.get("card") not in (None, "", event["card"]):
            faults.append(f"{where}: the answer names card {answer['card']}, the journal of {host} card {event['card']}")
        if event.get("outcome") != "ok":
            faults.append(f"{where}: card {event['card']}: the lease ended with outcome {event.get('outcome')}, expected ok")
        if trip["pinned"] and host != trip["pinned"]:
            faults.append(f"{where}: served by {host}, the node alias pins {trip['pinned']}")
    return faults + [f"{where}: {fault}" for fault in card_faults(before, after, served)]


def quiet_faults(what: str, before: Mapping[str, Snapshot], after: Mapping[str, Snapshot]) -> List[str]:
    """Return what was wrong with probes that must count as nothing: no lease, no interruption of any card."""
    faults = [
        f"{what}: {host}: card {event['card']}: event {event['event']}, none was expected"
        for host in after
        for event in _new_events(before[host], after[host])
        if event.get("lease")
    ]
    return faults + [f"{what}: {fault}" for fault in card_faults(before, after, None)]


def card_faults(before: Mapping[str, Snapshot], after: Mapping[str, Snapshot], served: tuple[str, str] | None) -> List[str]:
    """Return every card that is not at home again, or whose idle workload was interrupted without being the one that `served`."""
    faults: List[str] = []
    for host, snapshot in after.items():
        status_before = {card["uuid"]: card for card in before[host]["status"]["cards"]}
        for card in snapshot["status"]["cards"]:
            name = f"{host}: card {card['uuid']}"
            was = status_before.get(card["uuid"], {}).get("state")
            if card["lease"] is not None:
                faults.append(f"{name}: still has lease {card['lease']['id']}")
            if was == "mining" and card["state"] != "mining":
                faults.append(f"{name}: is {card['state']} ({card['reason'] or 'no reason given'}), it was mining")
            worker = snapshot["units"].get(f"gpu-worker@{card['slot']}.service", {})
            if worker.get("active") not in ("inactive", None):
                faults.append(f"{name}: its worker unit is {worker['active']}")
            if was == "mining" and card["state"] == "mining":
                faults += [f"{name}: {fault}" for fault in _miner_faults(card, before[host], snapshot, served == (host, card["uuid"]))]
    return faults


def _miner_faults(card: Mapping[str, Any], before: Snapshot, after: Snapshot, served: bool) -> List[str]:
    unit = f"gpu-miner@{card['slot']}.service"
    old, new = before["units"].get(unit), after["units"].get(unit)
    if old is None or new is None:
        return []
    if new["active"] != "active":
        return [f"its miner's unit is {new['active']}"]
    if (card.get("idle") or {}).get("alive") is False:
        return ["its miner runs and does not hash"]
    if served and new["pid"] == old["pid"]:
        return [f"its miner kept PID {old['pid']} while the card served"]
    if not served and new["pid"] != old["pid"]:
        return [f"its miner was restarted (PID {old['pid']} -> {new['pid']}) though the card served nobody"]
    return []


def _answer_faults(trip: Trip, answer: Mapping[str, Any]) -> List[str]:
    if answer.get("status") != 200:
        return [
            f"HTTP {answer.get('status') or 'no answer'}: {(answer.get('error') or {}).get('message') or answer.get('msg') or 'no message'}"
        ]
    if trip["probe"] == "embedding":
        return [] if (answer.get("dimensions") or 0) > 0 else ["the answer has no vector"]
    if not (answer.get("answer") or "").strip():
        return ["the answer has no text"]
    if trip["probe"] == "stream" and (answer.get("chunks") or 0) < 2:
        return [f"the stream came in {answer.get('chunks')} chunk(s), expected several"]
    return []


def _new_events(before: Snapshot, after: Snapshot) -> List[Mapping[str, Any]]:
    """The journal is append-only: what is new is what comes after the events that were there."""
    return list(after["events"][len(before["events"]) :])


def trip_row(trip: Trip, answer: Mapping[str, Any], before: Mapping[str, Snapshot], after: Mapping[str, Snapshot]) -> Dict[str, Any]:
    """Return one line of the table that people read: who asked what, the answer, the card, the load time, the interruptions."""
    ended = [(host, event) for host in after for event in _new_events(before[host], after[host]) if event["event"] == "lease"]
    host, event = ended[0] if ended else ("-", {})
    seconds = event.get("seconds") or {}
    others = sum(len(card_faults({h: before[h]}, {h: after[h]}, (host, event.get("card", "")))) for h in after)
    return {
        "gateway": trip["host"],
        "alias": trip["alias"],
        "probe": trip["probe"],
        "answer": _short(answer.get("answer") or f"{answer.get('dimensions') or 0} dimensions"),
        "served by": f"{host} {event.get('slot', '-')}",
        "card": event.get("card", "-"),
        "load s": _figure(seconds.get("loading")),
        "mining off s": _figure(seconds.get("idle_workload_off")),
        "other cards": "untouched" if not others else f"{others} fault(s)",
    }


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 28 else line[:27] + "…"


def _figure(value: Any) -> str:
    return "-" if value is None else f"{float(value):.2f}"


def report(by_host: Mapping[str, Sequence[Mapping[str, Any]]]) -> Dict[str, Any]:
    """Judge a whole run: `{host: steps}`, the same steps in the same order on every host.

    A step is `{"what": name}` (nothing may be leased) or `{"trip": …, "answer": …}`, each with that host's `"snapshot"` after it.
    The first step is the starting point.
    """
    faults: List[str] = []
    rows: List[Dict[str, Any]] = []
    steps = next(iter(by_host.values()), [])
    snapshots = [{host: own[n]["snapshot"] for host, own in by_host.items()} for n in range(len(steps))]
    for number, step in enumerate(steps[1:], start=1):
        before, after = snapshots[number - 1], snapshots[number]
        if step.get("trip"):
            faults += trip_faults(step["trip"], step["answer"], before, after)
            rows.append(trip_row(step["trip"], step["answer"], before, after))
        else:
            faults += quiet_faults(step["what"], before, after)
    return {"faults": faults, "rows": rows}
