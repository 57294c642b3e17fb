"""The verbs for people and playbooks."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lease_pool import __version__
from lease_pool.cli import DEFAULT_CONFIG
from lease_pool.client import Client, ClientError

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
POLL_S = 0.2


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    level = os.environ.get("GPU_FLEET_LOG_LEVEL") or "info"
    if level.lower() not in LEVELS:
        print(f"environment: GPU_FLEET_LOG_LEVEL: {level!r}: must be one of {', '.join(LEVELS)}", file=sys.stderr)
        return 2
    logging.basicConfig(level=LEVELS[level.lower()], format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    verb: Callable[[argparse.Namespace], int] = options.verb
    try:
        return verb(options)
    except ClientError as error:
        print(f"lease-pool: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader of our output left; Python would complain at exit
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lease-pool", description="Leases the GPUs of one host to model servers.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add(name: str, verb: Callable[[argparse.Namespace], int], help_: str, *, client: bool = True) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=help_, allow_abbrev=False)
        sub.set_defaults(verb=verb)
        if client:
            where = sub.add_mutually_exclusive_group()
            where.add_argument("--config", default=None, metavar="F", help=f"pool configuration (default {DEFAULT_CONFIG})")
            where.add_argument("--socket", default=None, metavar="PATH", help="the pool's admin socket")
        return sub

    serve = add("serve", _serve, "run the pool", client=False)
    serve.add_argument("--config", default=DEFAULT_CONFIG, metavar="F")
    add("status", _status, "cards, leases, queue").add_argument("--json", action="store_true")
    drain = add("drain", _drain, "take the pool or a card out of service")
    drain.add_argument("--reason", default=None, help="kept on disk and shown in status")
    resume = add("resume", _resume, "put the pool or a card back into service; lifts a quarantine")
    for sub in (drain, resume):
        sub.add_argument("--card", default=None, metavar="UUID")
        sub.add_argument("--wait", type=_seconds, default=None, metavar="S", help="wait until it is done, at most S seconds")
    add("reconcile", _reconcile, "compare what should be with what is, now")
    release = add("release", _release, "end a card's lease now")
    release.add_argument("card", metavar="UUID")
    quarantine = add("quarantine", _quarantine, "take a card out of service as broken")
    quarantine.add_argument("card", metavar="UUID")
    quarantine.add_argument("--reason", default="by an operator")
    events = add("events", _events, "the journal")
    events.add_argument("--json", action="store_true")
    events.add_argument("--since", type=_since, default="0", metavar="T", help="RFC 3339, or 0 for all that is kept")
    events.add_argument("--follow", action="store_true")
    run = add("run", _run, "borrow cards for a command")
    run.add_argument("--memory-mib", type=_count, default=None, metavar="N")
    run.add_argument("--cards", type=_count, default=1, metavar="N")
    run.add_argument("command", nargs="+", metavar="CMD")
    add("check", _check, "check a configuration file", client=False).add_argument("file")
    add("schema", _schema, "the configuration's JSON schema", client=False)
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _since(text: str) -> str:
    from lease_pool.journal import parse_since  # noqa: PLC0415  asyncio, which no other verb needs

    try:
        parse_since(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be 0 or an RFC 3339 time") from None
    return text


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _client(options: argparse.Namespace) -> Client:
    if options.socket is not None:
        return Client(Path(options.socket))
    from lease_pool.config import ConfigError, load  # noqa: PLC0415  pydantic is slow to import

    try:
        return Client(load(options.config or DEFAULT_CONFIG).admin_socket)
    except ConfigError as error:
        print(*error.faults, sep="\n", file=sys.stderr)
        raise SystemExit(2) from None


def _serve(options: argparse.Namespace) -> int:
    from lease_pool.service import serve  # noqa: PLC0415

    return serve(options.config)


def _check(options: argparse.Namespace) -> int:
    from lease_pool.config import ConfigError, load  # noqa: PLC0415

    try:
        load(options.file)
    except ConfigError as error:
        print(*error.faults, sep="\n", file=sys.stderr)
        return 2
    return 0


def _schema(options: argparse.Namespace) -> int:
    from lease_pool.config import schema  # noqa: PLC0415

    print(json.dumps(schema(), indent=2))
    return 0


def _status(options: argparse.Namespace) -> int:
    status = _client(options).ask("GET", "/status")
    if options.json:
        print(json.dumps(status))
        return 0
    print(f"lease-pool {status['version']}: {'draining' if status['draining'] else 'in service'}, {status['queue']} waiting")
    for card in status["cards"]:
        lease = card["lease"]
        used = f"  {lease['alias'] or 'run'} ({lease['requests']} requests, since {lease['since']})" if lease else ""
        reason = f"  {card['reason']}" if card["reason"] else ""
        print(f"{card['slot']:8} {card['state']:12} {card['memory_mib']:>7} MiB  {card['uuid']}{used}{reason}")
    return 0


def _drain(options: argparse.Namespace) -> int:
    client = _client(options)
    client.ask("POST", "/drain", {"card": options.card, "reason": options.reason})
    out = ("drained", "quarantined", "missing")
    return _wait(client, options, lambda card: card["state"] in out or (not options.card and _ours_is_over(card)))


def _ours_is_over(card: dict[str, Any]) -> bool:
    """No worker or loan of this pool is left on the card; whoever else holds it is not waited for."""
    lease = card["lease"]
    return card["state"] == "mining" or (lease is not None and lease["id"] is None)


def _resume(options: argparse.Namespace) -> int:
    client = _client(options)
    client.ask("POST", "/resume", {"card": options.card})
    return _wait(client, options, lambda card: card["state"] not in ("drained", "quarantined", "returning", "freeing") or not options.card)


def _wait(client: Client, options: argparse.Namespace, done: Callable[[dict[str, Any]], bool]) -> int:
    if options.wait is None:
        return 0
    deadline = time.monotonic() + options.wait
    while True:
        cards = [card for card in client.ask("GET", "/status")["cards"] if options.card in (None, card["uuid"])]
        late = [card for card in cards if not done(card)]
        if not late:
            return 0
        if time.monotonic() >= deadline:
            for card in late:
                print(
                    f"lease-pool: after {options.wait:g} s card {card['uuid']} ({card['slot']}) is still {card['state']}", file=sys.stderr
                )
            return 1
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))


def _reconcile(options: argparse.Namespace) -> int:
    for finding in _client(options).ask("POST", "/reconcile", timeout_s=None)["findings"]:
        print(finding)
    return 0


def _release(options: argparse.Namespace) -> int:
    _client(options).ask("POST", f"/release/{quote(options.card, safe='')}")
    return 0


def _quarantine(options: argparse.Namespace) -> int:
    _client(options).ask("POST", f"/quarantine/{quote(options.card, safe='')}", {"reason": options.reason})
    return 0


def _events(options: argparse.Namespace) -> int:
    path = f"/events?since={quote(options.since, safe='')}" + ("&follow=1" if options.follow else "")
    with contextlib.suppress(KeyboardInterrupt):
        for line in _client(options).lines(path):
            print(line if options.json else _readable(json.loads(line)), flush=True)
    return 0


def _readable(event: dict[str, Any]) -> str:
    words = [event["time"], event["event"]]
    words += [str(event[key]) for key in ("slot", "card", "alias", "outcome") if event.get(key)]
    words += [f"{name}={value:.3f}s" for name, value in event["seconds"].items() if value is not None]
    return "  ".join(words) + (f"  ({event['reason']})" if event.get("reason") else "")


def _run(options: argparse.Namespace) -> int:
    from lease_pool.run import run  # noqa: PLC0415

    return run(_client(options), options.command, options.memory_mib, options.cards)
