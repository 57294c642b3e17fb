#!/usr/bin/env python3
"""The cards of the simulated NVML: lays out the state folder that nvml_sim.c reads, and breaks cards on purpose.

Standard library only: tests import it, simulated hosts have it as the command `gpu-sim`, drills call that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_DIR = "/run/gpu-sim"


@dataclass(frozen=True)
class Card:
    """One card as it is built in. `minor` and `bus` default by its place among the cards."""

    uuid: str
    memory_mib: int = 12288
    name: str = "Simulated GPU"
    minor: int | None = None
    bus: str | None = None
    extra: dict[str, str] = field(default_factory=dict)  # cc_major, temperature, … : any further file of nvml_sim.c


class Cards:
    """The state folder; every method takes effect at the next NVML call of any process."""

    def __init__(self, directory: str | Path | None = None) -> None:
        self.directory = Path(directory or os.environ.get("GPU_SIM_DIR") or DEFAULT_DIR)

    def lay_out(self, cards: Sequence[Card]) -> None:
        """Makes the folder hold exactly these cards, healthy and unused; their order is NVML's index order."""
        for part in ("cards", "miner"):
            shutil.rmtree(self.directory / part, ignore_errors=True)
            (self.directory / part).mkdir(parents=True)
        for place, card in enumerate(cards):
            folder = self.directory / "cards" / f"{place:02d}"
            (folder / "procs").mkdir(parents=True)
            facts = {
                "uuid": card.uuid,
                "memory_mib": card.memory_mib,
                "name": card.name,
                "minor": place if card.minor is None else card.minor,
                "bus": card.bus or f"00000000:{place + 1:02X}:00.0",
                **card.extra,
            }
            for file, value in facts.items():
                (folder / file).write_text(f"{value}\n")

    def uuids(self) -> list[str]:
        """Every card that was laid out, lost ones included, in index order."""
        return [(folder / "uuid").read_text().strip() for folder in sorted((self.directory / "cards").iterdir())]

    def folder(self, uuid: str) -> Path:
        """The card's folder. Raises KeyError for an unknown UUID."""
        for folder in sorted((self.directory / "cards").iterdir()):
            if (folder / "uuid").read_text().strip() == uuid:
                return folder
        raise KeyError(f"no card {uuid} in {self.directory}")

    def set_mode(self, uuid: str, mode: str) -> None:
        """Mode is one of ok, lost, gone, hang, error, busy_mib=N; nvml_sim.c tells what each does."""
        _write(self.folder(uuid) / "mode", mode)

    def lose(self, uuid: str) -> None:
        """The driver still lists the card, and every call on it answers "GPU is lost"."""
        self.set_mode(uuid, "lost")

    def pull(self, uuid: str) -> None:
        """The card is no longer enumerated: the indices of those behind it shift."""
        self.set_mode(uuid, "gone")

    def hang(self, uuid: str) -> None:
        """Every call on the card blocks for ever."""
        self.set_mode(uuid, "hang")

    def fail(self, uuid: str) -> None:
        """Every call on the card answers "Unknown Error"."""
        self.set_mode(uuid, "error")

    def restore(self, uuid: str) -> None:
        """The card works again."""
        for file in ("mode", "held", "held_until"):
            (self.folder(uuid) / file).unlink(missing_ok=True)

    def hold(self, uuid: str, mib: int) -> None:
        """Takes memory that no process owns; 0 gives it back."""
        _write(self.folder(uuid) / "held", str(mib))

    def set_init(self, code: int | str) -> None:
        """What nvmlInit answers: 0, an NVML error number (9 driver not loaded, 18 version mismatch), or "hang"."""
        _write(self.directory / "init", str(code))

    def set_miner_faults(self, uuid: str, faults: str) -> None:
        """What the stand-in miner of that card does wrong, as its own docstring lists; "" for nothing."""
        self.folder(uuid)
        _write(self.directory / "miner" / uuid, faults)

    def claim(self, uuid: str, mib: int, pid: int | None = None) -> Path:
        """Lets a process use memory of the card; returns the file to remove. It stops counting when the process ends."""
        file = self.folder(uuid) / "procs" / str(pid or os.getpid())
        _write(file, str(mib))
        return file

    def processes(self, uuid: str) -> dict[int, int]:
        """MiB by pid as written, ended processes included."""
        return {int(file.name): int(file.read_text()) for file in (self.folder(uuid) / "procs").iterdir() if file.name.isdigit()}

    def used_mib(self, uuid: str) -> int:
        """What the state folder says is taken, ended processes not counted."""
        held = self.folder(uuid) / "held"
        alive = sum(mib for pid, mib in self.processes(uuid).items() if Path(f"/proc/{pid}").exists())
        return alive + (int(held.read_text()) if held.exists() else 0)


def _write(file: Path, text: str) -> None:
    """Whole or not at all: NVML calls of other processes read at any moment. Any account may write it again."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(f"{text}\n")
    fresh.chmod(0o666)
    fresh.replace(file)


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu-sim", description=__doc__)
    parser.add_argument("--dir", help="state folder (default: $GPU_SIM_DIR, else /run/gpu-sim)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="cards as JSON")
    lay_out = verbs.add_parser("lay-out", help="replace all cards")
    lay_out.add_argument("card", nargs="+", metavar="UUID=MIB")
    for verb, text in {
        "pull": "no longer enumerated, indices shift",
        "lose": "listed, every call answers 'GPU is lost'",
        "hang": "every call on it blocks",
        "fail": "every call on it errors",
        "restore": "works again",
    }.items():
        verbs.add_parser(verb, help=text).add_argument("uuid")
    hold = verbs.add_parser("hold", help="memory that no process owns; 0 gives it back")
    hold.add_argument("uuid")
    hold.add_argument("mib", type=int)
    miner = verbs.add_parser("miner", help="what the card's stand-in miner does wrong (its docstring lists the words); none = nothing")
    miner.add_argument("uuid")
    miner.add_argument("faults", nargs="*")
    verbs.add_parser("init", help="what nvmlInit answers: 0, an error number, hang").add_argument("code")
    options = parser.parse_args(None if arguments is None else list(arguments))
    cards = Cards(options.dir)
    try:
        if options.verb == "list":
            rows = [{"uuid": uuid, "used_mib": cards.used_mib(uuid), "processes": cards.processes(uuid)} for uuid in cards.uuids()]
            print(json.dumps(rows, indent=2))
        elif options.verb == "lay-out":
            cards.lay_out([Card(uuid, int(mib or 12288)) for uuid, _, mib in (text.partition("=") for text in options.card)])
        elif options.verb == "hold":
            cards.hold(options.uuid, options.mib)
        elif options.verb == "miner":
            cards.set_miner_faults(options.uuid, " ".join(options.faults))
        elif options.verb == "init":
            cards.set_init(options.code)
        else:
            getattr(cards, options.verb)(options.uuid)
    except KeyError as unknown:
        print(f"gpu-sim: {unknown.args[0]}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
