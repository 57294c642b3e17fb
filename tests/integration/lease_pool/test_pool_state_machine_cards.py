"""The same storm on simulated cards that fall off, come back, and keep memory that nobody uses."""

from __future__ import annotations

import os

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from tests.integration.lease_pool.test_pool_state_machine import MODELS, PoolMachine, machine
from tests.support.nvml_sim import library
from tests.support.nvml_sim.cards import Card, Cards
from tests.support.pool_rig import ROOT, PoolRig, model

UUIDS = ("GPU-0", "GPU-1")
SIZES = (10000, 5000)
# Each worker uses memory of its card; what its process held is free again when it is gone.
CLAIMING = MODELS | {"good": model("--claim", "800"), "forks": model("--mode", "grandchild", "--claim", "800")}


class SimulatedRig(PoolRig):
    """Its cards are the simulated driver's, over every restart."""

    def spawn(self, env: dict[str, str] | None = None) -> None:
        folder = library.build(ROOT / "build" / "nvml_sim").parent
        path = os.environ.get("LD_LIBRARY_PATH", "")
        driver = {"GPU_SIM_DIR": str(self.folder / "sim"), "LD_LIBRARY_PATH": f"{folder}:{path}" if path else str(folder)}
        super().spawn(driver | (env or {}))


class CardMachine(PoolMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cards: Cards = None  # type: ignore[assignment]
        self.lost: set[str] = set()

    @initialize(window=st.sampled_from([0, 0.3]))
    def begin(self, window: float) -> None:
        bounds = {"free_s": 2, "ready_s": 1.5, "stop_s": 0.4, "queue_s": 6, "drain_s": 1, "queue": 6}
        self.rig = SimulatedRig(2, CLAIMING, memory=list(SIZES), bounds=bounds, window_s=window, card_source="nvml")
        self.cards = Cards(self.rig.folder / "sim")
        self.cards.lay_out(
            [Card(uuid, size, bus=f"00000000:0{n + 1}:00.0") for n, (uuid, size) in enumerate(zip(UUIDS, SIZES, strict=True))]
        )
        self.do(self.rig.start())
        self.watcher = self.loop.create_task(self._watch())

    @precondition(lambda self: not self.lost)  # a pool that starts with no card at all fails loudly, which is another test's
    @rule(uuid=st.sampled_from(UUIDS), noticed=st.booleans())
    def a_card_falls_off(self, uuid: str, noticed: bool) -> None:
        self.lost.add(uuid)
        self.cards.lose(uuid)
        if noticed:
            self.do(self.rig.admin("POST", "/reconcile", {}))

    @precondition(lambda self: self.lost)
    @rule(noticed=st.booleans())
    def a_card_comes_back(self, noticed: bool) -> None:
        self.cards.restore(self.lost.pop())
        if noticed:
            self.do(self.rig.admin("POST", "/reconcile", {}))

    @rule(uuid=st.sampled_from(UUIDS), mib=st.sampled_from([0, 0, 4500]))
    def memory_is_kept(self, uuid: str, mib: int) -> None:
        if uuid not in self.lost:
            self.cards.hold(uuid, mib)

    async def _settle(self) -> None:
        while self.lost:
            self.cards.restore(self.lost.pop())
        for uuid in UUIDS:
            self.cards.hold(uuid, 0)
        await self.rig.admin("POST", "/reconcile", {})
        await super()._settle()


@pytest.mark.timeout(300)
def test_random_losses_of_cards_and_memory_never_break_an_invariant() -> None:
    run_state_machine_as_test(CardMachine, settings=machine(2, 12))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_random_losses_of_cards_and_memory_never_break_an_invariant() -> None:
    run_state_machine_as_test(CardMachine, settings=machine(20, 40))
