"""Asks engines and Prometheus for the latencies that a service's guard is judged by, as far as its rollout needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagefleet_contract.engine_metrics import HISTOGRAMS, engine_of
from pagefleet_operator.domain.analysis import sources
from pagefleet_operator.domain.spec.rollout import Guard, Rollout, Source
from pagefleet_operator.domain.spec.schema.step_kinds import StepKind
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.kube import readings
from pagefleet_operator.kube.client import Document
from pagefleet_operator.metrics.cumulative import Pod
from pagefleet_operator.metrics.engine_windows import EngineWindows
from pagefleet_operator.metrics.prometheus_windows import PrometheusWindows
from pagefleet_operator.metrics.series import Wanted


@dataclass(frozen=True)
class Measured:
    """Slices by source, as in Observation; `silence` says why one has none."""

    engine: tuple[Slice, ...] | None = None
    prometheus: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    silence: Mapping[str, str] = field(default_factory=dict)


class Measures:
    def __init__(self, engines: EngineWindows, prometheus: PrometheusWindows) -> None:
        self._engines, self._prometheus = engines, prometheus

    async def read(
        self, rollout: Rollout, items: Sequence[Document], status: Status, namespace: str, service: str
    ) -> Measured:
        """`items` are the service's pods."""
        revisions = [revision for revision in (status.stable, status.canary) if revision]
        pods = _pods(items, revisions)
        signals = of_engines(rollout)
        asked = of_prometheus(rollout.guard, namespace, service)
        engine, *kept = await asyncio.gather(
            self._engine(pods, namespace, service, signals),
            *(self._prometheus.read(pods, revisions, wanted) for wanted in asked),
        )
        prometheus = {wanted.own: slices for wanted, slices in zip(asked, kept, strict=True) if slices is not None}
        silence = {sources.name_of(Source.PROMETHEUS, wanted.own): self._prometheus.silence(wanted) for wanted in asked}
        silence[sources.ENGINE] = self._engines.silence(namespace, service)
        return Measured(engine, prometheus, {name: why for name, why in silence.items() if why})

    def forget(self, namespace: str, service: str) -> None:
        self._engines.forget(namespace, service)
        self._prometheus.forget(namespace, service)

    async def _engine(
        self, pods: Sequence[Pod], namespace: str, service: str, signals: tuple[str, ...] | None
    ) -> tuple[Slice, ...] | None:
        return None if signals is None else await self._engines.read(pods, namespace, service, signals)


def of_engines(rollout: Rollout) -> tuple[str, ...] | None:
    """The histograms that the engines' pages are read for; None when nothing of theirs is asked for."""
    guard, mirrored = rollout.guard, any(step.kind is StepKind.MIRROR for step in rollout.steps)
    measured = {
        copies: [sources.measuring_source(entry, copies) for entry in guard.latency] for copies in {False, mirrored}
    }
    signals = {
        entry.signal
        for found in measured.values()
        for entry, source in zip(guard.latency, found, strict=True)
        if source is Source.ENGINE
    }
    errors = any(sources.error_source(guard, copies) is Source.ENGINE for copies in measured)
    counted = guard.max_error_rate is not None and errors
    return tuple(name for name in HISTOGRAMS if name in signals) if signals or counted else None


def of_prometheus(guard: Guard, namespace: str, service: str) -> tuple[Wanted, ...]:
    """What Prometheus is asked for: one thing for each histogram, and one for the engines' own."""
    entries = [entry for entry in guard.latency if entry.source is Source.PROMETHEUS]
    histograms = dict.fromkeys(entry.histogram for entry in entries)
    if guard.max_error_rate is not None and guard.error_source is Source.PROMETHEUS:
        histograms.setdefault("")
    return tuple(
        Wanted(namespace, service, tuple(dict.fromkeys(one.signal for one in entries if one.histogram == own)), own)
        for own in histograms
    )


def _pods(items: Sequence[Document], revisions: Sequence[str]) -> list[Pod]:
    """The ready ones of these revisions."""
    return [
        Pod(reading.name, address, revision, engine_of(item))
        for item in items
        if (reading := readings.pod(item)).ready
        and not reading.terminating
        and (address := (item.get("status") or {}).get("podIP"))
        and (revision := readings.revision_of(item)) in revisions
    ]
