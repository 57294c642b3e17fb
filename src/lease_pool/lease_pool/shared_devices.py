"""The start steps of a miner that works on all idle cards (driver `shared`), without the pool.

`select` (root) lists the slots that are free to mine: their card was found, nobody holds them down, no worker is wanted or runs there.
`run` (the miner's account) takes the occupant lock of each listed slot, leaves out those it cannot get, and becomes the miner with the
locks held: they are released when its last process is gone. No card left: exit 0.

python -m lease_pool.shared_devices select|run --config F [-- MINER…]
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lease_pool import launch
from lease_pool.prepare_cards import DROP_IN

if TYPE_CHECKING:
    from lease_pool.config import PoolConfig

_PREPARED = Path("/run/systemd/system")


def selected(config: PoolConfig, prepared: Path = _PREPARED) -> list[dict[str, str]]:
    """The slots that may mine now, each with its UUID and lock."""
    chosen = []
    for card in config.cards:
        wanted = launch.spec_path(config.runtime_dir, card.slot), launch.away_path(config.runtime_dir, card.slot)
        held = launch.hold_path(config.state_dir, card.slot).exists() or any(path.exists() for path in wanted)
        if not held and (prepared / f"gpu-worker@{card.slot}.service.d" / DROP_IN).exists():
            lock = launch.lock_path(config.locks_dir, card.slot)
            chosen.append({"slot": card.slot, "uuid": card.uuid, "lock": str(lock)})
    return chosen


def run(slots: list[dict[str, str]], argv: list[str]) -> int:
    """Become the miner on those of the slots whose lock is free. Returns only when there is none (0) or the miner cannot be run (1)."""
    uuids = []
    for slot in slots:
        descriptor = os.open(slot["lock"], os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        os.set_inheritable(descriptor, True)
        uuids.append(slot["uuid"])
    if not uuids:
        print("no idle card: nothing to mine on", flush=True)
        return 0
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    devices = ",".join(str(index) for index in range(len(uuids)))
    try:
        os.execvpe(argv[0], [a.replace("{devices}", devices) for a in argv], environment)  # noqa: S606
    except OSError as error:
        print(f"cannot run {argv[0]}: {error.strerror}", file=sys.stderr)
        return 1


def main(arguments: list[str]) -> int:
    from lease_pool.config import ConfigError, load  # noqa: PLC0415

    listing = Path(os.environ.get("RUNTIME_DIRECTORY", "/run/gpu-miner")) / "slots.json"
    if arguments[:1] == ["run"] and arguments[1:2] == ["--"] and len(arguments) > 2:
        return run(json.loads(listing.read_text(encoding="utf-8")), arguments[2:])
    if len(arguments) == 3 and arguments[:2] == ["select", "--config"]:
        try:
            config = load(arguments[2])
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
        listing.write_text(json.dumps(selected(config)), encoding="utf-8")
        listing.chmod(0o644)
        return 0
    print("usage: python -m lease_pool.shared_devices select --config F | run -- MINER…", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
