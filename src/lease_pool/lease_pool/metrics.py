"""Counters and histograms: what happened since the pool began. Gauges are computed at the scrape (`scrape`)."""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Histogram

from lease_pool.leases import Lease

BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)


class Metrics:
    """No identity (principal, key, address) and nothing of a client's making is ever a label.

    Labels are UUIDs, slots, PCI addresses, configured aliases, phases, outcomes, published paths and statuses.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("gpu_fleet_requests", "Requests by alias and outcome", ["alias", "outcome"], registry=self.registry)
        self._leases = Counter("gpu_fleet_leases", "Ended leases by alias and outcome", ["alias", "outcome"], registry=self.registry)
        self._cancelled = Counter(
            "gpu_fleet_cancelled_loads", "Requests whose client left while its model was loading", ["alias"], registry=self.registry
        )
        self.answers: Tally[tuple[str, int]] = Tally()
        self._phases = Histogram("gpu_fleet_phase_seconds", "Time in each phase", ["phase"], buckets=BUCKETS, registry=self.registry)

    def request_over(self, alias: str, outcome: str, seconds: dict[str, float]) -> None:
        self._requests.labels(alias, outcome).inc()
        for phase in ("queued", "first_byte"):
            if phase in seconds:
                self._phases.labels(phase).observe(seconds[phase])

    def load_cancelled(self, alias: str) -> None:
        self._cancelled.labels(alias).inc()

    def answered(self, endpoint: str, status: int) -> None:
        self.answers[endpoint, status] += 1

    def lease_over(self, lease: Lease) -> None:
        self._leases.labels(lease.alias or "", lease.outcome).inc()
        for phase, value in lease.seconds.items():
            self._phases.labels(phase).observe(value)
