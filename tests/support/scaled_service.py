"""One InferenceService decided again and again in virtual time, for tests of what stands around the sizing rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.sample_service import sample

from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.scaling.load import totals
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.gateway_api import GatewayApiReading
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad
from pagefleet_operator.domain.status.status import Status

NOW = 1_800_000_000.0


class Service:
    """One service decided again and again; pods are ready at once."""

    def __init__(self, **spec: Any) -> None:
        self.spec: dict[str, Any] = sample()["spec"]
        self.spec |= spec
        self.status, self.now = Status(), NOW
        self.load: ServiceLoad | None = ServiceLoad(2.0, arrivals=(0.0,) * 360)
        self.running, self.waiting, self.refused, self.load_error = 0, 0, "", ""
        self.plan: Plan | None = None
        self.gateway_api: GatewayApiReading | None = None
        self.history: dict[str, tuple[Sample, ...]] = {}

    def observe(self) -> Observation:
        revisions = {}
        for record in self.status.revisions:
            pods = tuple(
                PodReading(
                    f"{record.hash}-{i}", True, False, self.now - 60, self.now - 50, load_age=1.0,
                    load=EngineLoad(self.running, self.waiting, kv_pages_total=100, kv_pages_free=100, tokens=0.0),
                )
                for i in range(record.desired)
            )  # fmt: skip
            if self.load_error:  # the first pod's page cannot be read
                pods = (replace(pods[0], load=None, load_age=None, load_error=self.load_error), *pods[1:])
            past = self.history.get(record.hash, ())
            reading = RevisionReading(record.hash, record.desired, pods, past, refused=self.refused)
            revisions[record.hash] = reading
            self.history[record.hash] = (*past, totals(reading, self.now).latest)
        made = Observation("ns", "chat", "uid", 1, self.spec, self.status, revisions, (), load=self.load)
        return replace(made, gateway_api=self.gateway_api)

    def run(self, times: int = 1, seconds: float = 10.0) -> Plan:
        for _ in range(times):
            self.now += seconds
            self.plan = decide(self.observe(), self.now)
            self.status = self.plan.status
        assert self.plan is not None
        return self.plan

    def replicas(self) -> dict[str, int]:
        return {record.hash: record.desired for record in self.status.revisions if record.desired}

    def condition(self, kind: str) -> tuple[str, str, str]:
        return next((c.status, c.reason, c.message) for c in self.status.conditions if c.type == kind)
