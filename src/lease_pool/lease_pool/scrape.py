"""Prometheus text: counters as kept; every gauge is computed from the real state at the scrape, so none can drift (ray#38118)."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lease_pool.state import State
from lease_pool.types import CardState


def text(state: State) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Snapshot(state))
    return generate_latest(state.metrics.registry) + generate_latest(registry)


class _Snapshot:
    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        pool = self._state
        answers = CounterMetricFamily(
            "gpu_fleet_http_requests", "Requests by path and status (none: the client left first)", labels=["endpoint", "status"]
        )
        for (endpoint, status), count in pool.metrics.answers.items():
            answers.add_metric([endpoint, str(status) if status else "none"], count)
        yield answers
        labels = ["uuid", "slot", "pci"]
        state = GaugeMetricFamily("gpu_fleet_card_state", "1 for the state the card is in", labels=[*labels, "state"])
        memory = GaugeMetricFamily("gpu_fleet_card_memory_mib", "The card's memory", labels=labels)
        off = CounterMetricFamily("gpu_fleet_idle_workload_off_seconds", "Seconds without the idle workload", labels=labels)
        alive = GaugeMetricFamily("gpu_fleet_idle_workload_alive", "1 while the idle workload works, as last seen", labels=labels)
        for card in pool.cards.values():
            values = [card.uuid, card.slot, card.pci or ""]
            for name in CardState:
                state.add_metric([*values, str(name)], float(card.state is name))
            memory.add_metric(values, card.memory_mib)
            off.add_metric(values, card.off_seconds())
            if card.idle.alive is not None:
                alive.add_metric(values, float(card.idle.alive and card.state is CardState.MINING))
        yield from (state, memory, off, alive)
        active = GaugeMetricFamily("gpu_fleet_leases_active", "Leases alive now", labels=["alias"])
        for alias, count in Tally(lease.alias or "" for lease in pool.leases.values()).items():
            active.add_metric([alias], count)
        yield active
        queue = GaugeMetricFamily("gpu_fleet_queue", "Requests waiting for a card", labels=["model"])
        waiting = Tally(waiter.want.model or "" for waiter in pool.queue)
        for model in pool.config.models:
            queue.add_metric([model], waiting[model])
        yield queue
        yield GaugeMetricFamily("gpu_fleet_draining", "1 while the pool takes no new leases", value=float(pool.draining))
        yield CounterMetricFamily("gpu_fleet_journal_lost", "Journal entries that could not be written", value=pool.journal.lost)
