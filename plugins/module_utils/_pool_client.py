# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""The admin socket of a host's lease pool (DESIGN.md 4.4): its endpoints as functions. Nothing here knows Ansible."""

from __future__ import annotations

import http.client
import json
import os
import time
import typing as t
from urllib.parse import quote

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._http import UnixHTTPConnection, error_message

Json = t.Dict[str, t.Any]

# States in which a card is out of service until somebody resumes it.
OUT_OF_SERVICE = ("drained", "quarantined")
# States in which nothing of ours happens on a card.
AT_REST = ("mining", "missing", *OUT_OF_SERVICE)


class PoolError(Exception):
    """The pool could not be asked, or refused; the message names the socket, the request and what came back."""


class PoolClient:
    """One request a connection: the pool may be restarted between two of them."""

    def __init__(self, socket_path: str, timeout: float) -> None:
        self._socket = socket_path
        self._timeout = timeout

    def status(self) -> Json:
        """`GET /status`."""
        answer = self._json("GET", "/status")
        if not isinstance(answer, dict) or not isinstance(answer.get("cards"), list):
            raise PoolError(f"GET /status on {self._socket}: no list of cards in the answer")
        return answer

    def leases(self) -> t.List[Json]:
        """`GET /leases` as a list, whether the pool wraps it or not."""
        answer = self._json("GET", "/leases")
        return t.cast(t.List[Json], answer["leases"] if isinstance(answer, dict) else answer)

    def events(self, since: str) -> t.List[Json]:
        """`GET /events?since=`: RFC 3339, or `0` for all that are kept."""
        lines = self._request("GET", f"/events?since={quote(since, safe='')}").splitlines()
        try:
            return [json.loads(line) for line in lines if line.strip()]
        except ValueError:
            raise PoolError(f"GET /events on {self._socket}: the answer is not JSON lines") from None

    def drain(self, card: t.Optional[str], reason: t.Optional[str]) -> None:
        self._request("POST", "/drain", {k: v for k, v in (("card", card), ("reason", reason)) if v is not None})

    def resume(self, card: t.Optional[str]) -> None:
        self._request("POST", "/resume", {} if card is None else {"card": card})

    def _json(self, method: str, path: str) -> t.Any:
        body = self._request(method, path)
        try:
            return json.loads(body)
        except ValueError:
            raise PoolError(f"{method} {path} on {self._socket}: the answer is not JSON") from None

    def _request(self, method: str, path: str, body: t.Optional[Json] = None) -> bytes:
        connection = UnixHTTPConnection(self._socket, self._timeout)
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, {} if body is None else {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise PoolError(f"{method} {path} on {self._socket}: {_why(error, self._socket, self._timeout)}") from None
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise PoolError(f"{method} {path} on {self._socket}: expected 2xx, got {response.status}: {error_message(data)}")
        return data


def _why(error: Exception, path: str, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(error, FileNotFoundError):
        return "the socket does not exist; the pool is not running"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens on the socket; the pool is not running"
    if isinstance(error, PermissionError):
        return f"permission denied for uid {os.geteuid()}; use become, or an account of the socket's group"
    return str(error) or type(error).__name__


def find_card(status: Json, card: str) -> Json:
    """The card with that UUID or slot; raises PoolError naming the cards there are."""
    for found in status["cards"]:
        if card in (found["uuid"], found["slot"]):
            return t.cast(Json, found)
    known = ", ".join(f"{c['slot']} {c['uuid']}" for c in status["cards"]) or "none"
    raise PoolError(f"card {card} is not one of this pool's cards ({known})")


def busy_with(status: Json, card: t.Optional[str]) -> t.List[str]:
    """What a drain still waits for, one sentence part each; empty when it is over."""
    cards = status["cards"] if card is None else [find_card(status, card)]
    waiting = []
    for one in cards:
        lease = one.get("lease")
        if lease:
            waiting.append(
                f"{one['slot']} {one['uuid']} has lease {lease.get('id')} of {lease.get('model') or 'a borrower'} since {lease.get('since')}"
            )
        elif one["state"] not in AT_REST or (card is not None and one["state"] == "mining"):
            waiting.append(f"{one['slot']} {one['uuid']} is {one['state']}")
    if card is None and not status["draining"]:
        waiting.append("the pool is not draining")
    return waiting


def not_back(status: Json, card: t.Optional[str]) -> t.List[str]:
    """What a resume still waits for, one sentence part each; empty when it is over."""
    if card is None:
        return ["the pool is draining"] if status["draining"] else []
    one = find_card(status, card)
    if one["state"] in (*OUT_OF_SERVICE, "returning", "missing"):
        return [f"{one['slot']} {one['uuid']} is {one['state']}" + (f" ({one['reason']})" if one.get("reason") else "")]
    return []


def wait_until_empty(
    client: PoolClient, left: t.Callable[[Json], t.List[str]], bound_s: float, poll_s: float = 0.2
) -> t.Tuple[Json, float]:
    """Ask for the status until `left` returns nothing; return the last status and the seconds waited. Raises PoolError with what is left."""
    began = time.monotonic()
    while True:
        status = client.status()
        waiting = left(status)
        waited = time.monotonic() - began
        if not waiting:
            return status, waited
        if waited >= bound_s:
            raise PoolError(f"not finished after {bound_s:g} s: " + "; ".join(waiting))
        time.sleep(min(poll_s, max(bound_s - waited, 0.01)))
