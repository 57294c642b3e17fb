"""The command `gpu-watchdog`. Exit: 0 done, 1 failed, 2 bad usage or configuration."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

from gpu_watchdog import clocks, maintenance, screen
from gpu_watchdog.config import Config, ConfigError, load
from gpu_watchdog.decide import acknowledge
from gpu_watchdog.last import read_last
from gpu_watchdog.service import AlreadyRunning, Service
from gpu_watchdog.simulate import BadLine, replay
from gpu_watchdog.state import CorruptState, Phase, State
from gpu_watchdog.store import Store, write_durably

_DEFAULT = Path("/etc/gpu-fleet/watchdog.toml")
_LEVELS = ("debug", "info", "warning", "error")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-watchdog", description="Reboots a host that lost a card: once, and only when that is safe.")
    verbs = parser.add_subparsers(dest="verb", required=True)

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.add_argument("--config", type=Path, default=_DEFAULT, metavar="F", help=f"default {_DEFAULT}")
        return added

    verb("run", "Watch, until SIGTERM.")
    check = verb("check", "Check the configuration; one line a fault.")
    check.add_argument("file", type=Path, nargs="?", metavar="FILE", help="the file to check, instead of --config")
    status = verb("status", "What is seen, what comes next, and what holds it back.")
    status.add_argument("--json", action="store_true", help="for programs")
    ack = verb("ack", "A person has looked: leave the lock-out. Logged.")
    ack.add_argument("--reason", required=True, help="what was done about it")
    ack.add_argument("--json", action="store_true", help="for programs")
    simulate = verb("simulate", "Replay a file of observations and print each decision with its reason.")
    simulate.add_argument("observations", type=Path, metavar="OBSERVATIONS", help="JSON lines; - reads standard input")
    flag = verb("maintenance", "Hold back every reboot and reconciliation for a while.")
    what = flag.add_mutually_exclusive_group(required=True)
    what.add_argument("--for", dest="length", metavar="TIME", help="such as 30m or 2h, at most 7d")
    what.add_argument("--clear", action="store_true", help="end it now")
    flag.add_argument("--reason", help="why; needed with --for")
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    level = os.environ.get("GPU_FLEET_LOG_LEVEL", "info").lower()
    if level not in _LEVELS:
        print(f"GPU_FLEET_LOG_LEVEL: {level!r}: expected one of {', '.join(_LEVELS)}", file=sys.stderr)
        return 2
    logging.basicConfig(level=level.upper(), format="%(levelname)s %(message)s", stream=sys.stderr)
    if args.verb == "maintenance" and args.length and not (args.reason or "").strip():
        parser.error("maintenance --for needs --reason")
    if args.verb == "ack" and not args.reason.strip():
        parser.error("ack needs a --reason that says something")
    file = getattr(args, "file", None) or args.config
    try:
        config = load(file)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{file}: {error.strerror}", file=sys.stderr)
        return 2
    try:
        return _run(args, config)
    except (OSError, AlreadyRunning, CorruptState, BadLine) as error:
        print(f"gpu-watchdog {args.verb}: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace, config: Config) -> int:
    match args.verb:
        case "run":
            Service(config).run()
        case "status":
            return _status(config, args.json)
        case "ack":
            return _ack(config, args.reason.strip(), args.json)
        case "simulate":
            source = sys.stdin.read() if str(args.observations) == "-" else args.observations.read_text(encoding="utf-8")
            for line in replay(config, source.splitlines()):
                print(line)
        case "maintenance":
            return _maintenance(config, args.length, args.reason)
    return 0


def _status(config: Config, as_json: bool) -> int:
    try:
        state = Store(config.state_dir).load()
    except CorruptState as error:
        state = replace(State(), phase=Phase.LOCKED_OUT, locked_reason=f"the state file is corrupt: {error}")
    now, boot_id = clocks.now(), clocks.boot_id()
    folder = config.state_dir / "watchdog-alerts"
    waiting = len(list(folder.glob("[!.]*.json"))) if folder.is_dir() else 0
    flag = maintenance.active(config.state_dir, now, boot_id)
    facts = screen.report(config, state, read_last(config.runtime_dir), now, boot_id, alerts_waiting=waiting, maintenance=flag)
    print(json.dumps(facts) if as_json else screen.text(facts))
    return 0


def _ack(config: Config, reason: str, as_json: bool) -> int:
    store = Store(config.state_dir)
    with store.locked():
        try:
            state = store.load()
        except CorruptState as error:
            aside = store.set_aside()
            logging.getLogger(__name__).warning("%s; kept as %s", error, aside)
            state = replace(State(), phase=Phase.LOCKED_OUT, locked_reason="the state file was corrupt")
        was = str(state.phase)
        changed = state.phase is Phase.LOCKED_OUT
        if changed:
            _record(config, was, state.locked_reason, reason)
            store.save(acknowledge(state))
    if changed:
        logging.getLogger(__name__).warning("acknowledged: was locked out (%s): %s", state.locked_reason, reason)
    if as_json:
        print(
            json.dumps(
                {"changed": changed, "phase": "healthy" if changed else was, "was": was, "locked_reason": state.locked_reason or None}
            )
        )
    else:
        print("acknowledged, healthy" if changed else f"nothing to acknowledge: {was}")
    return 0


def _record(config: Config, was: str, locked: str, reason: str) -> None:
    """Who let the automation go on, and why: kept beside the state, the newest last."""
    path = config.state_dir / "watchdog-acks.jsonl"
    entry = {
        "wall": round(clocks.now().wall),
        "user": os.environ.get("SUDO_USER") or os.getuid(),
        "was": was,
        "locked": locked,
        "reason": reason,
    }
    kept = path.read_text(encoding="utf-8").splitlines()[-99:] if path.exists() else []
    write_durably(path, "\n".join([*kept, json.dumps(entry)]) + "\n")


def _maintenance(config: Config, length: str | None, reason: str | None) -> int:
    if length is None:
        print("maintenance ended" if maintenance.clear(config.state_dir) else "no maintenance was on")
        return 0
    try:
        seconds = maintenance.duration(length)
    except ValueError as error:
        print(f"gpu-watchdog maintenance --for: {error}", file=sys.stderr)
        return 2
    maintenance.put(config.state_dir, seconds, (reason or "").strip(), clocks.now(), clocks.boot_id())
    print(f"maintenance for {seconds:.0f} s: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
