"""Reads the latencies that a service's guard judges by from engines and Prometheus, as far as the rollout needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagefleet_contract.engine_metrics import HISTOGRAMS, engine_of
from pagefleet_operator.domain.analysis import sources
from pagefleet_operator.domain.analysis.adjusted import whole_answers
from pagefleet_operator.domain.spec.rollout import Guard, Rollout
from pagefleet_operator.domain.spec.schema.guard_signals import Source
from pagefleet_operator.domain.spec.schema.step_kinds import StepKind
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.kube import readings
from pagefleet_operator.kube.client import Document
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics.accounts import Account
from pagefleet_operator.metrics.cumulative import Pod
from pagefleet_operator.metrics.engine_windows import EngineWindows
from pagefleet_operator.metrics.prometheus_windows import PrometheusWindows
from pagefleet_operator.metrics.series import Query


@dataclass(frozen=True)
class Measured:
    """Slices by source, as in Observation; `silence` has the reason of each source without slices."""

    engine: tuple[Slice, ...] | None = None
    prometheus: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    silence: Mapping[str, str] = field(default_factory=dict)


class Measures:
    """The readers of engines and Prometheus."""

    def __init__(self, engines: EngineWindows, prometheus: PrometheusWindows) -> None:
        self._engines, self._prometheus = engines, prometheus

    async def read(
        self, rollout: Rollout, items: Sequence[Document], status: Status, key: ServiceKey, account: Account
    ) -> Measured:
        """The measurements of a service; `items` are its pods. Reading their pages is charged to `account`."""
        namespace, service = key
        revisions = [revision for revision in (status.stable, status.canary) if revision]
        pods = _pods(items, revisions)
        signals = of_engines(rollout)
        queries = of_prometheus(rollout.guard, namespace, service)
        engine, *answers = await asyncio.gather(
            _no_slices() if signals is None else self._engines.read(pods, namespace, service, signals, account),
            *(self._prometheus.read(pods, revisions, query) for query in queries),
        )
        prometheus = {query.own: slices for query, slices in zip(queries, answers, strict=True) if slices is not None}
        silence = {sources.name_of(Source.PROMETHEUS, query.own): self._prometheus.silence(query) for query in queries}
        silence[sources.ENGINE] = self._engines.silence(namespace, service)
        return Measured(engine, prometheus, {name: reason for name, reason in silence.items() if reason})

    def forget(self, namespace: str, service: str) -> None:
        self._engines.forget(namespace, service)
        self._prometheus.forget(namespace, service)


async def _no_slices() -> None:
    return None


def of_engines(rollout: Rollout) -> tuple[str, ...] | None:
    """The histograms to read from the engines' pages; None when the guard needs nothing from engines."""
    guard, mirrored = rollout.guard, any(step.kind is StepKind.MIRROR for step in rollout.steps)
    measured = {
        copies: [sources.measuring_source(entry, copies) for entry in guard.latency] for copies in {False, mirrored}
    }
    signals = {
        entry.signal
        for chosen in measured.values()
        for entry, source in zip(guard.latency, chosen, strict=True)
        if source is Source.ENGINE
    }
    if mirrored and guard.whole_answers:
        signals.add(whole_answers.SIGNAL)  # where copies have no first token
    errors = any(sources.error_source(guard, copies) is Source.ENGINE for copies in measured)
    counted = guard.max_error_rate is not None and errors
    return tuple(name for name in HISTOGRAMS if name in signals) if signals or counted else None


def of_prometheus(guard: Guard, namespace: str, service: str) -> tuple[Query, ...]:
    """The queries to Prometheus: one for each named histogram, and one for the engines' own histograms."""
    entries = [entry for entry in guard.latency if entry.source is Source.PROMETHEUS]
    histograms = dict.fromkeys(entry.histogram for entry in entries)
    if guard.max_error_rate is not None and guard.error_source is Source.PROMETHEUS:
        histograms.setdefault("")
    return tuple(
        Query(namespace, service, tuple(dict.fromkeys(one.signal for one in entries if one.histogram == own)), own)
        for own in histograms
    )


def _pods(items: Sequence[Document], revisions: Sequence[str]) -> list[Pod]:
    """The ready pods of these revisions."""
    return [
        Pod(reading.name, address, revision, engine_of(item))
        for item in items
        if (reading := readings.pod(item)).ready
        and not reading.terminating
        and (address := (item.get("status") or {}).get("podIP"))
        and (revision := readings.revision_of(item)) in revisions
    ]
