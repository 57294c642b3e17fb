"""`lease-pool run` and the occupant lock: it runs with the locks of all its cards, or asks again."""

from __future__ import annotations

import fcntl
import io
import json
from pathlib import Path
from typing import Any, cast

import pytest
from lease_pool.client import Client, ClientError

from lease_pool import run as run_module


class Lender:
    """Lends these lists of locks one after the other, then refuses."""

    def __init__(self, *loans: list[Path]) -> None:
        self._loans = iter(loans)
        self.answers: list[io.BytesIO] = []

    def open(self, path: str, body: dict[str, Any]) -> io.BytesIO:
        assert (path, body["cards"]) == ("/borrow", 1)
        locks = next(self._loans, None)
        if locks is None:
            raise ClientError("429: no card became free")
        cards = [{"slot": lock.stem, "uuid": f"GPU-{lock.stem}", "lock": str(lock)} for lock in locks]
        self.answers.append(io.BytesIO(json.dumps({"cards": cards}).encode() + b"\n"))
        return self.answers[-1]


@pytest.fixture(autouse=True)
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The cards of each command that was run, whose locks nobody else could have had."""
    found: list[list[str]] = []

    def run(self: Any) -> int:
        assert not any(free(Path(card["lock"])) for card in self._cards)
        found.append([card["slot"] for card in self._cards])
        return 5

    monkeypatch.setattr(run_module, "LOCK_S", 0.05)
    monkeypatch.setattr(run_module._Borrower, "run", run)
    return found


def free(lock: Path) -> bool:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def ask(lender: Lender) -> int:
    return run_module.run(cast("Client", lender), ["true"], None, 1)


def test_a_card_that_another_pool_took_first_is_given_back_and_another_asked_for(tmp_path: Path, ran: list[list[str]]) -> None:
    lender = Lender([tmp_path / "c0.use", tmp_path / "c1.use"], [tmp_path / "c2.use"])
    with (tmp_path / "c1.use").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert ask(lender) == 5
        assert free(tmp_path / "c0.use"), "the lock of the other card was not given back"
    assert ran == [["c2"]]
    assert [answer.closed for answer in lender.answers] == [True, False]


def test_the_pool_s_refusal_ends_the_asking(tmp_path: Path, ran: list[list[str]]) -> None:
    with (tmp_path / "c0.use").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ClientError, match="no card became free"):
            ask(Lender([tmp_path / "c0.use"]))
    assert ran == []
