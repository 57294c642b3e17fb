"""Alerts: queued on disk, sent by a thread of its own through bounded children. One that cannot be sent blocks and loses nothing.

An alert may arrive twice after a kill, and is dropped only when the queue is full of newer ones.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_watchdog import bounded
from gpu_watchdog.actions import Alert
from gpu_watchdog.store import write_durably

_LOG = logging.getLogger(__name__)
_KEPT = 64
_RETRY_S = (5.0, 600.0)


@dataclass(frozen=True)
class Channel:
    """Where alerts go. `argv` gets the alert as JSON on its standard input and may use {title}, {message}, {kind} and {host}."""

    name: str
    argv: tuple[str, ...]


def channels(webhook_file: Path | None, command: Sequence[str]) -> tuple[Channel, ...]:
    found = []
    if webhook_file is not None:
        found.append(Channel("webhook", (sys.executable, "-P", "-m", "gpu_watchdog.webhook", str(webhook_file))))
    if command:
        found.append(Channel("command", tuple(command)))
    return tuple(found)


class Alerts:
    def __init__(self, folder: Path, host: str, targets: Sequence[Channel], bound_s: float) -> None:
        self._folder = folder
        self._host = host
        self._targets = {target.name: target for target in targets}
        self._bound_s = bound_s
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._stop = False
        self._number = 0
        self._thread = threading.Thread(target=self._send_all, name="alerts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop = True
        self._wake.set()

    def queue(self, alert: Alert) -> None:
        """Keep the alert on disk for each channel. An unwritable disk costs the alert, not the watchdog."""
        self._number += 1
        body = {
            "host": self._host,
            "kind": alert.kind,
            "text": alert.text,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        stamp = f"{time.time_ns():020d}-{self._number:04d}-{alert.kind}"
        for name in self._targets:
            try:
                self._folder.mkdir(mode=0o770, exist_ok=True)
                write_durably(self._folder / f"{stamp}.{name}.json", json.dumps(body) + "\n")
            except OSError as error:
                _LOG.error("alert %s is not kept for %s: %s", alert.kind, name, error)
        for old in self.waiting()[:-_KEPT]:
            with contextlib.suppress(OSError):
                old.unlink()
        self._idle.clear()
        self._wake.set()

    def flush(self, bound_s: float) -> None:
        """Wait until everything queued was tried once, at most `bound_s`: the last chance before a reboot."""
        if self._targets and self.waiting():
            self._idle.wait(bound_s)

    def waiting(self) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
        except OSError:
            return []

    def _send_all(self) -> None:
        pause = _RETRY_S[0]
        while not self._stop:
            self._wake.clear()
            try:
                sent = [self._send(path) for path in self.waiting()]
                done = all(sent)
            except Exception:
                _LOG.exception("sending alerts")
                done = False
            if not self._wake.is_set():
                self._idle.set()
            pause = _RETRY_S[0] if done else min(pause * 2, _RETRY_S[1])
            self._wake.wait(None if done else pause)

    def _send(self, path: Path) -> bool:
        """True when the alert is off the queue."""
        target = self._targets.get(path.name.split(".")[-2])
        try:
            alert = json.loads(path.read_text(encoding="utf-8"))
            words = {"title": f"{alert['host']}: {alert['kind']}", "message": alert["text"], "kind": alert["kind"], "host": alert["host"]}
        except FileNotFoundError:
            return True
        except (OSError, ValueError, KeyError, TypeError):
            words, target = {}, None
        if target is not None:
            argv = [_filled(part, words) for part in target.argv]
            ended = bounded.run(argv, self._bound_s, stdin=json.dumps(alert) + "\n")
            if not ended.ok:
                _LOG.warning("alert %s not sent by %s, will be tried again: %s", alert["kind"], target.name, ended.why())
                return False
            _LOG.info("alert %s sent by %s", alert["kind"], target.name)
        with contextlib.suppress(OSError):
            path.unlink()
        return True


def _filled(part: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        part = part.replace("{" + name + "}", value)
    return part
