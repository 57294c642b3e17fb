"""Prometheus text. Counters and histograms are kept; every gauge is computed from the real state at the scrape, so none can drift (ray#38118)."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lease_pool.leases import Lease
from lease_pool.types import CardState

if TYPE_CHECKING:
    from lease_pool.core import PoolCore

BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)


class Metrics:
    """No identity (principal, key, address) and nothing of a client's making is ever a label.

    Labels are UUIDs, slots, PCI addresses, configured aliases, phases, outcomes, published paths and statuses.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("gpu_fleet_requests", "Requests by alias and outcome", ["alias", "outcome"], registry=self._registry)
        self._leases = Counter("gpu_fleet_leases", "Ended leases by alias and outcome", ["alias", "outcome"], registry=self._registry)
        self._cancelled = Counter(
            "gpu_fleet_cancelled_loads", "Requests whose client left while its model was loading", ["alias"], registry=self._registry
        )
        self._answers: Tally[tuple[str, int]] = Tally()
        self._phases = Histogram("gpu_fleet_phase_seconds", "Time in each phase", ["phase"], buckets=BUCKETS, registry=self._registry)

    def request_over(self, alias: str, outcome: str, seconds: dict[str, float]) -> None:
        self._requests.labels(alias, outcome).inc()
        for phase in ("queued", "first_byte"):
            if phase in seconds:
                self._phases.labels(phase).observe(seconds[phase])

    def load_cancelled(self, alias: str) -> None:
        self._cancelled.labels(alias).inc()

    def answered(self, endpoint: str, status: int) -> None:
        self._answers[endpoint, status] += 1

    def lease_over(self, lease: Lease) -> None:
        self._leases.labels(lease.alias or "", lease.outcome).inc()
        for phase, value in lease.seconds.items():
            self._phases.labels(phase).observe(value)

    def text(self, core: PoolCore) -> bytes:
        registry = CollectorRegistry()
        registry.register(_Snapshot(core, self._answers))
        return generate_latest(self._registry) + generate_latest(registry)


class _Snapshot:
    def __init__(self, core: PoolCore, answers: Tally[tuple[str, int]]) -> None:
        self._core = core
        self._answers = answers

    def collect(self) -> Iterable[Metric]:
        core = self._core
        answers = CounterMetricFamily(
            "gpu_fleet_http_requests", "Requests by path and status (none: the client left first)", labels=["endpoint", "status"]
        )
        for (endpoint, status), count in self._answers.items():
            answers.add_metric([endpoint, str(status) if status else "none"], count)
        yield answers
        labels = ["uuid", "slot", "pci"]
        state = GaugeMetricFamily("gpu_fleet_card_state", "1 for the state the card is in", labels=[*labels, "state"])
        memory = GaugeMetricFamily("gpu_fleet_card_memory_mib", "The card's memory", labels=labels)
        off = CounterMetricFamily("gpu_fleet_idle_workload_off_seconds", "Seconds without the idle workload", labels=labels)
        alive = GaugeMetricFamily("gpu_fleet_idle_workload_alive", "1 while the idle workload works, as last seen", labels=labels)
        for card in core.cards.values():
            values = [card.uuid, card.slot, card.pci or ""]
            for name in CardState:
                state.add_metric([*values, str(name)], float(card.state is name))
            memory.add_metric(values, card.memory_mib)
            off.add_metric(values, card.off_seconds())
            if card.idle.alive is not None:
                alive.add_metric(values, float(card.idle.alive and card.state is CardState.MINING))
        yield from (state, memory, off, alive)
        active = GaugeMetricFamily("gpu_fleet_leases_active", "Leases alive now", labels=["alias"])
        for alias, count in Tally(lease.alias or "" for lease in core.live_leases).items():
            active.add_metric([alias], count)
        yield active
        queue = GaugeMetricFamily("gpu_fleet_queue", "Requests waiting for a card", labels=["model"])
        waiting = Tally(waiter.want.model or "" for waiter in core.waiting)
        for model in core.config.models:
            queue.add_metric([model], waiting[model])
        yield queue
        yield GaugeMetricFamily("gpu_fleet_draining", "1 while the pool takes no new leases", value=float(core.draining))
        yield CounterMetricFamily("gpu_fleet_journal_lost", "Journal entries that could not be written", value=core.journal.lost)
