# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Drain and resume as one comparison of what is with what is wanted. Nothing here knows Ansible."""

from __future__ import annotations

import typing as t

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._pool_client import (
    OUT_OF_SERVICE,
    Json,
    PoolClient,
    PoolError,
    busy_with,
    find_card,
    not_back,
    wait_until_empty,
)


def drain_or_resume(
    client: PoolClient, drained: bool, card: t.Optional[str], reason: t.Optional[str], *, wait_s: float, check_mode: bool
) -> Json:
    """Bring the pool or one card into service or out of it; return the module's result. Raises PoolError."""
    status = client.status()
    uuid = find_card(status, card)["uuid"] if card is not None else None
    before = _as_is(status, uuid)
    after = _to_be(before, drained, reason)
    changed = before != after
    waited = 0.0
    if changed and not check_mode:
        if drained:
            client.drain(uuid, reason)
        else:
            client.resume(uuid)
    if not check_mode:
        left = busy_with if drained else not_back
        try:
            status, waited = wait_until_empty(client, lambda s: left(s, uuid), wait_s) if wait_s else (client.status(), 0.0)
        except PoolError as error:
            raise PoolError(f"{'drain' if drained else 'resume'} of {card or 'the pool'}: {error}") from None
    result: Json = {
        "changed": changed,
        "draining": after["draining"] if uuid is None else status["draining"],
        "leases": [c["lease"] for c in status["cards"] if c.get("lease") and uuid in (None, c["uuid"])],
        "waited_s": round(waited, 3),
        "diff": {"before": before, "after": after},
    }
    if uuid is not None:
        found = find_card(status, uuid)
        result["card"] = dict(found, state=after["state"], reason=after["reason"]) if check_mode else found
    return result


def _as_is(status: Json, uuid: t.Optional[str]) -> Json:
    if uuid is None:
        return {"draining": status["draining"], "reason": status.get("drain_reason")}
    card = find_card(status, uuid)
    # A held card that still serves, or is missing, needs no second hold.
    return {"card": uuid, "state": card.get("hold") or card["state"], "reason": card.get("reason")}


def _to_be(before: Json, drained: bool, reason: t.Optional[str]) -> Json:
    """The wanted state in the same shape; equal to `before` when nothing is to be done."""
    if "draining" in before:
        if before["draining"] == drained:
            return before
        return {"draining": drained, "reason": reason if drained else None}
    if drained:
        return before if before["state"] in OUT_OF_SERVICE else {"card": before["card"], "state": "drained", "reason": reason}
    if before["state"] in OUT_OF_SERVICE:
        return {"card": before["card"], "state": "mining", "reason": None}
    return before
