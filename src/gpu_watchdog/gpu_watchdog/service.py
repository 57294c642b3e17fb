"""The thin shell: look, decide under the lock, save, act, say so. Nothing that counts is kept in memory between two rounds."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType

from gpu_watchdog import bounded, clocks, web
from gpu_watchdog.actions import (
    Action,
    Alert,
    DrainPool,
    Intent,
    Note,
    Quarantine,
    Reboot,
    Refuse,
    RemoveSpec,
    RestartUnit,
    ResumeCard,
    ResumePool,
    StartUnit,
    StopUnit,
)
from gpu_watchdog.alerts import Alerts, channels
from gpu_watchdog.config import Config
from gpu_watchdog.decide import OURS, decide
from gpu_watchdog.last import Last, write_last
from gpu_watchdog.look import Eyes
from gpu_watchdog.notify import notify
from gpu_watchdog.pool import PoolClient
from gpu_watchdog.reconcile import reconcile
from gpu_watchdog.state import CorruptState, Phase, State
from gpu_watchdog.store import Store
from gpu_watchdog.units import Systemd

_LOG = logging.getLogger(__name__)


class AlreadyRunning(Exception):
    """Another watchdog serves this host."""


class Service:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._policy = config.policy()
        self._upkeep = config.upkeep()
        self._store = Store(config.state_dir)
        self._eyes = Eyes(config, self._alive)
        self._pool = PoolClient(config.admin_socket, config.bounds.pool_s)
        self._systemd = Systemd(config.systemctl, config.bounds.command_s)
        targets = channels(config.webhook_file, config.alert_command)
        self._alerts = Alerts(config.state_dir / "watchdog-alerts", config.host, targets, config.bounds.alert_s)
        self._stop = threading.Event()
        self._announced = False
        self._reboot_error: str | None = None
        self._refused: tuple[str, ...] = ()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises AlreadyRunning."""
        self._config.runtime_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._only_one():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)
            self._alerts.start()
            notify("READY=1")
            _LOG.info("watching %s", ", ".join(f"{slot} {uuid}" for slot, uuid in self._config.cards))
            while not self._stop.is_set():
                try:
                    self.round()
                except OSError:
                    # The state could not be read or written. Nothing was decided, so nothing is done; the next round tries again.
                    _LOG.exception("this round failed")
                self._alive()
                self._stop.wait(self._config.bounds.interval_s)
            notify("STOPPING=1")
            self._alerts.stop()

    def round(self) -> None:
        """One look and what follows from it."""
        boot_id = clocks.boot_id()
        with self._store.locked():
            state = self._load()
        seen = self._eyes.look(state, clocks.now(), boot_id, self._announced, self._reboot_error)
        now = clocks.now()
        with self._store.locked():
            before = self._load()
            decision = decide(self._policy, before, seen, now, boot_id)
            upkeep = reconcile(self._upkeep, decision.state, seen)
            state, actions = upkeep.state, (*upkeep.actions, *decision.actions)
            for action in actions:
                # Queued first: killed here, the same alert is queued again; the other way round it would be lost.
                if isinstance(action, Alert):
                    self._alerts.queue(action)
            self._store.save(state)
        if before.phase is not state.phase:
            _LOG.warning("%s -> %s", before.phase, state.phase)
        write_last(self._config.runtime_dir, Last(now.wall, boot_id, seen, actions))
        self._log_refusals(actions)
        self._reboot_error = None
        if not any(isinstance(action, Intent) for action in actions):
            self._announced = False
        for action in actions:
            self._alive()
            self._do(action)
        notify(f"STATUS={state.phase}: {self._refused[0] if self._refused else seen.probe}")

    def _load(self) -> State:
        """A state that cannot be trusted locks this host out, and is replaced at once so that this survives anything."""
        try:
            return self._store.load()
        except CorruptState as error:
            reason = f"the state file is corrupt: {error}"
            _LOG.error("%s", reason)
            locked = replace(State(), phase=Phase.LOCKED_OUT, locked_reason=reason)
            self._alerts.queue(Alert("locked_out", f"locked out until `gpu-watchdog ack`: {reason}"))
            with contextlib.suppress(FileNotFoundError):
                self._store.set_aside()
            self._store.save(locked)
            return locked

    def _do(self, action: Action) -> None:
        try:
            match action:
                case Note(text):
                    _LOG.info("%s", text)
                case Alert(kind, text):
                    _LOG.warning("alert %s: %s", kind, text)
                case Refuse():
                    pass  # logged together, when they change
                case Reboot():
                    self._reboot()
                case StopUnit() | StartUnit() | RestartUnit() | RemoveSpec():
                    self._keep_up(action)
                case _:
                    self._tell_pool(action)
        except web.WebError as error:
            _LOG.warning("%s: %s", type(action).__name__, error)
        except OSError as error:
            _LOG.error("%s: %s", type(action).__name__, error)

    def _tell_pool(self, action: Quarantine | ResumeCard | DrainPool | ResumePool | Intent) -> None:
        bounds = self._config.bounds
        match action:
            case Quarantine(uuid, reason):
                self._pool.quarantine(uuid, reason)
            case ResumeCard(uuid):
                self._pool.resume(uuid)
            case DrainPool():
                self._pool.drain(OURS)
            case ResumePool():
                self._pool.resume()
            case Intent(reboot):
                self._announced = False
                lasts = 3 * bounds.interval_s + 60 if reboot == "intending" else bounds.reboot_s + bounds.verify_s
                self._pool.intent(reboot, clocks.now().wall + lasts)
                self._announced = reboot == "intending"

    def _keep_up(self, action: StopUnit | StartUnit | RestartUnit | RemoveSpec) -> None:
        match action:
            case StopUnit(unit):
                self._order("stop", unit)
            case StartUnit(unit):
                self._order("start", unit)
            case RestartUnit(unit):
                self._order("restart", unit)
            case RemoveSpec(slot):
                for suffix in (".json", ".key"):
                    (self._config.launch_dir / f"{slot}{suffix}").unlink(missing_ok=True)

    def _order(self, verb: str, unit: str) -> None:
        why = self._systemd.order(verb, unit)
        if why:
            _LOG.error("%s %s: %s", verb, unit, why)

    def _reboot(self) -> None:
        """The state is on disk; give the alert its bound to leave, then reboot. What goes wrong is the next round's observation."""
        self._alerts.flush(self._config.bounds.alert_s)
        self._alive()
        _LOG.warning("rebooting")
        ended = bounded.run(self._config.reboot, self._config.bounds.command_s)
        self._reboot_error = None if ended.ok else ended.why()

    def _log_refusals(self, actions: tuple[Action, ...]) -> None:
        refusals = [action for action in actions if isinstance(action, Refuse)]
        codes = tuple(refusal.code for refusal in refusals)
        if codes != self._refused:
            for refusal in refusals:
                _LOG.warning("not rebooting: %s: %s", refusal.code, refusal.reason)
        self._refused = codes

    def _alive(self) -> None:
        notify("WATCHDOG=1")

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop.set()

    @contextlib.contextmanager
    def _only_one(self) -> Iterator[None]:
        descriptor = os.open(self._config.runtime_dir / "instance.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise AlreadyRunning(f"{self._config.runtime_dir}: another watchdog is running") from error
        finally:
            os.close(descriptor)
