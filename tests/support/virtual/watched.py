"""A cluster in virtual time whose revisions are watched after their promotion: decisions share a memo, as those of one operator do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.virtual.cluster import Cluster

from pagefleet_contract.sketch import bucket_of
from pagefleet_operator.domain.status.observation import LoadCounts, Observation
from pagefleet_operator.domain.status.status import Status


class Watched(Cluster):
    """`reported` are the reasons of the Events so far."""

    def __init__(self) -> None:
        super().__init__(seed=3)
        self.reported: list[str] = []
        self.memo: dict[str, object] = {}

    def timed(self, count: int, seconds: float) -> LoadCounts:
        """So many requests of about `seconds`, where the gateway expects a tenth of a second at their load."""
        times: dict[int, int] = {}
        for _ in range(count):
            bucket = bucket_of(seconds * self.source.lognormvariate(0, 0.3))
            times[bucket] = times.get(bucket, 0) + 1
        relative = {bucket + bucket_of(1.0) - bucket_of(0.1): number for bucket, number in times.items()}
        return LoadCounts(relative, {}, {}, times)

    def tick(self, engines: bool = True) -> Status:
        """Let ten seconds of traffic pass, then decide."""
        for _ in range(4):
            self.wait(engines)
        return super().tick(engines)

    def observe(self) -> Observation:
        return replace(super().observe(), memo=self.memo)

    def apply(self, plan: Any) -> None:
        super().apply(plan)
        self.reported += [event.reason for event in plan.events]
