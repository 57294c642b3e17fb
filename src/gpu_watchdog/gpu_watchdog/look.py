"""One look at the host: driver, kernel log, systemd, pool, packages, maintenance and, on the way to a reboot, the rest of the fleet."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpu_watchdog import bounded, kernel_log, maintenance, packages, web
from gpu_watchdog.config import Config
from gpu_watchdog.observation import Observation, Peer, Pool, Probe, Sight, Slot
from gpu_watchdog.pool import PoolClient
from gpu_watchdog.sight import probe_name, sights
from gpu_watchdog.state import Now, State
from gpu_watchdog.units import Systemd

_DOWN = frozenset({"inactive", "failed", "none"})


class Eyes:
    """Observes; changes nothing. `alive` is called between the bounded steps, so that systemd knows that we are not stuck."""

    def __init__(self, config: Config, alive: Callable[[], None]) -> None:
        self._config = config
        self._alive = alive
        self._systemd = Systemd(config.systemctl, config.bounds.command_s)
        self._pool = PoolClient(config.admin_socket, config.bounds.pool_s)
        self._stuck: subprocess.Popen[bytes] | None = None

    def look(self, state: State, now: Now, boot_id: str, announced: bool, reboot_error: str | None) -> Observation:
        config = self._config
        probe, detail, raw = self._probe()
        self._alive()
        heard, cursor = self._hear(state, boot_id)
        self._alive()
        tracks = {kernel_log.address(track.pci): track.uuid for track in state.tracks if track.pci}
        declared = {uuid for _slot, uuid in config.cards}
        owners = {**tracks, **dict(heard.named)}
        signals = {owners[pci] for pci in heard.fallen if owners.get(pci) in declared}
        signals |= {track.uuid for track in state.tracks if track.signal and state.boot_id == boot_id}
        cards: dict[str, Sight] = {}
        if probe is Probe.OK:
            known = (
                state if state.boot_id == boot_id else replace(state, tracks=tuple(replace(track, index=None) for track in state.tracks))
            )
            cards = sights(raw, [uuid for _slot, uuid in config.cards], known, dict.fromkeys(signals, "fallen off the bus"))
        unit_states = self._systemd.states([config.pool_unit, *self._units()])
        self._alive()
        pool_unit = None if unit_states is None else unit_states[config.pool_unit]
        pool, leases = self._ask_pool(unit_states)
        slots = None if unit_states is None else self._slots(unit_states, pool_unit)
        self._alive()
        return Observation(
            probe=probe,
            probe_detail=detail,
            cards=cards,
            signals=frozenset(signals),
            pool_unit=pool_unit,
            pool=pool,
            leases=leases,
            packages_busy=packages.busy(),
            maintenance=maintenance.active(config.state_dir, now, boot_id),
            intent_announced=announced or pool_unit in _DOWN,  # a host whose pool is down counts as down to its peers anyway
            peers=self._ask_peers() if state.intent_since is not None else None,
            reboot_error=reboot_error,
            slots=slots,
            kernel_cursor=cursor,
            kernel_tail=heard.tail,
        )

    def _probe(self) -> tuple[Probe, str, dict[str, Any]]:
        """Ask the driver in a child. The child holds a lock while it lives, so that a restarted watchdog starts no second one."""
        if self._stuck is not None and self._stuck.poll() is None:
            return Probe.STUCK, f"process {self._stuck.pid} still blocks in the driver", {}
        self._stuck = None
        uuids = [uuid for _slot, uuid in self._config.cards]
        lock = os.open(self._config.runtime_dir / "probe.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return Probe.STUCK, "a probe of an earlier run still blocks in the driver", {}
            ended = bounded.run(
                [sys.executable, "-P", "-m", "gpu_watchdog.nvml_probe", *uuids], self._config.bounds.probe_s, keep_fds=(lock,)
            )
        finally:
            os.close(lock)
        if ended.code is None:
            self._stuck = ended.left
            return Probe.HUNG, f"no answer within {self._config.bounds.probe_s:g} s, {ended.why()}", {}
        try:
            raw = json.loads(ended.out) if ended.ok else None
            if isinstance(raw, dict):
                return *probe_name(raw), raw
        except (ValueError, KeyError, TypeError):
            pass
        return Probe.ERROR, f"the probe failed: {ended.why()}", {}

    def _hear(self, state: State, boot_id: str) -> tuple[kernel_log.Heard, str]:
        same = state.boot_id == boot_id
        cursor, tail = (state.kernel_cursor, state.kernel_tail) if same else ("", "")
        after = [f"--after-cursor={cursor}"] if cursor else []
        ended = bounded.run([*self._config.kernel_log, *after], self._config.bounds.command_s)
        lines, last = kernel_log.read_entries(ended.out, boot_id)
        return kernel_log.scan(tail, lines), last or cursor

    def _units(self) -> list[str]:
        templates = [template for template in (self._config.worker_unit, self._config.idle_unit) if template]
        return [template.format(slot=slot) for slot, _uuid in self._config.cards for template in templates]

    def _ask_pool(self, unit_states: dict[str, str] | None) -> tuple[Pool | None, int | None]:
        """The pool's word and the number of leases; while the pool is down, workers that still run count as leases."""
        if unit_states is None:
            return None, None
        if unit_states[self._config.pool_unit] in _DOWN:
            workers = [self._config.worker_unit.format(slot=slot) for slot, _uuid in self._config.cards]
            return None, sum(unit_states[unit] not in _DOWN for unit in workers)
        try:
            return self._pool.status()
        except web.WebError:
            return None, None

    def _slots(self, unit_states: dict[str, str], pool_unit: str | None) -> dict[str, Slot] | None:
        if pool_unit not in {"inactive", "failed"}:
            return None
        config = self._config
        found = {}
        for slot, uuid in config.cards:
            idle = unit_states[config.idle_unit.format(slot=slot)] if config.idle_unit else "none"
            worker = unit_states[config.worker_unit.format(slot=slot)]
            found[slot] = Slot(
                worker="inactive" if worker == "none" else worker,
                idle=idle,
                spec_left=any((config.launch_dir / f"{slot}{suffix}").exists() for suffix in (".json", ".key")),
                held=(config.hold_dir / slot).exists(),
                hashing=self._hashing(slot, uuid) if idle == "active" else None,
            )
        return found

    def _hashing(self, slot: str, uuid: str) -> bool | None:
        if not self._config.idle_alive:
            return None
        argv = [part.replace("{slot}", slot).replace("{uuid}", uuid) for part in self._config.idle_alive]
        ended = bounded.run(argv, self._config.bounds.command_s)
        self._alive()
        return ended.ok

    def _ask_peers(self) -> dict[str, Peer]:
        names = [name for name, _url in self._config.peers]
        if not names:
            return {}
        wanted = {"peers": dict(self._config.peers), "bound_s": self._config.bounds.peers_s}
        ended = bounded.run(
            [sys.executable, "-P", "-m", "gpu_watchdog.peers"], 2 * self._config.bounds.peers_s + 2, stdin=json.dumps(wanted)
        )
        self._alive()
        try:
            answers = json.loads(ended.out) if ended.ok else {}
            return {name: Peer(answers.get(name, Peer.DOWN)) for name in names}
        except (ValueError, AttributeError):
            return dict.fromkeys(names, Peer.DOWN)
