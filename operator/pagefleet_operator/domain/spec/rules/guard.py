"""Rules of who may measure a signal of the guard, each in CEL and in Python (see rules.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagefleet_contract.engine_metrics import HISTOGRAMS
from pagefleet_operator.domain.runtimes.catalog import Runtime, runtime_of
from pagefleet_operator.domain.spec.rollout import ENGINE_SIGNALS, Source, source_of
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule

Entry = Mapping[str, Any]
TGI_SIGNALS = ("e2e", "queue")
FAILURES = (Runtime.PAGEFLEET, Runtime.VLLM, Runtime.TGI)  # that count the requests that failed
LATENCY = "!has(self.guard) || !has(self.guard.latency) || self.guard.latency"
SOURCE = "(has(l.source) ? l.source : l.signal in ['itl', 'queue'] ? 'Engine' : 'Gateway')"


def _entries(rollout: Mapping[str, Any]) -> Sequence[Entry]:
    return (rollout.get("guard") or {}).get("latency") or ()


def _source(entry: Entry) -> Source:
    return source_of(entry["signal"], entry.get("source"))


def _measure(entry: Entry) -> tuple[Source, str]:
    return _source(entry), entry.get("histogram", "")


def _of_engines(entry: Entry) -> bool:
    """Whether the engines' own histogram is read, by whatever way."""
    return _source(entry) is not Source.GATEWAY and "histogram" not in entry


def _runtime_tells(spec: Mapping[str, Any]) -> bool:
    asked = {entry["signal"] for entry in _entries(spec.get("rollout") or {}) if _of_engines(entry)} - {"tpot"}
    match runtime_of(spec):
        case Runtime.TGI:
            return asked <= set(TGI_SIGNALS)
        case Runtime.CUSTOM:
            return asked <= set((spec.get("engine") or {}).get("metrics") or ())
        case Runtime.PAGEFLEET | Runtime.VLLM | Runtime.SGLANG:
            return True


def _runtime_counts(spec: Mapping[str, Any]) -> bool:
    errors = ((spec.get("rollout") or {}).get("guard") or {}).get("errors") or {}
    if source_of("errors", errors.get("source")) is Source.GATEWAY or runtime_of(spec) in FAILURES:
        return True
    metrics = (spec.get("engine") or {}).get("metrics") or {}
    return runtime_of(spec) is Runtime.CUSTOM and "finished" in metrics and "failed" in metrics


CUSTOM = " || ".join(f"(l.signal == '{name}' && has(self.engine.metrics.{name}))" for name in HISTOGRAMS)
TOLD = (
    "!has(self.rollout) || !has(self.rollout.guard) || !has(self.rollout.guard.latency) || "
    f"self.rollout.guard.latency.all(l, {SOURCE} == 'Gateway' || has(l.histogram) || l.signal == 'tpot' || "
    f"!({RUNTIME} in ['tgi', 'custom']) || ({RUNTIME} == 'tgi' && l.signal in {list(TGI_SIGNALS)}) || "
    f"({RUNTIME} == 'custom' && has(self.engine.metrics) && ({CUSTOM})))"
)
COUNTED = (
    "!has(self.rollout) || !has(self.rollout.guard) || !has(self.rollout.guard.errors) || "
    "!has(self.rollout.guard.errors.source) || self.rollout.guard.errors.source == 'Gateway' || "
    f"!({RUNTIME} in ['sglang', 'custom']) || ({RUNTIME} == 'custom' && has(self.engine.metrics) && "
    "has(self.engine.metrics.finished) && has(self.engine.metrics.failed))"
)

GUARD_RULES = (
    Rule(
        ("rollout",),
        "spec.rollout.guard.latency",
        f"{LATENCY}.all(l, !has(l.source) || l.source != 'Gateway' || !(l.signal in ['itl', 'queue']))",
        "source Gateway sees no itl and no queue; use Engine or Prometheus, or signal tpot",
        lambda rollout: (
            not any(
                entry["signal"] in ENGINE_SIGNALS and _source(entry) is Source.GATEWAY for entry in _entries(rollout)
            )
        ),
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.latency",
        f"{LATENCY}.all(l, l.signal != 'tpot' || !has(l.source) || l.source == 'Gateway' || has(l.histogram))",
        "tpot is measured by source Gateway, or by Prometheus with a histogram; the engines' measure of it is itl",
        lambda rollout: not any(entry["signal"] == "tpot" and _of_engines(entry) for entry in _entries(rollout)),
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.latency",
        f"{LATENCY}.all(l, !has(l.histogram) || (has(l.source) && l.source == 'Prometheus'))",
        "histogram belongs to source Prometheus",
        lambda rollout: all(
            entry.get("source") == Source.PROMETHEUS for entry in _entries(rollout) if "histogram" in entry
        ),
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.latency",
        f"{LATENCY}.all(l, !has(l.histogram) || l.histogram.contains('$revision'))",
        "histogram must name $revision in a matcher, or both revisions would be the same series",
        lambda rollout: all("$revision" in entry["histogram"] for entry in _entries(rollout) if "histogram" in entry),
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.latency",
        f"{LATENCY}.all(l, self.guard.latency.all(m, m.signal != l.signal || "
        f"({SOURCE} == {SOURCE.replace('l.', 'm.')} && "
        "(has(l.histogram) ? l.histogram : '') == (has(m.histogram) ? m.histogram : ''))))",
        "a signal must have one source and one histogram, however often it comes",
        lambda rollout: all(
            _measure(one) == _measure(other)
            for one in _entries(rollout)
            for other in _entries(rollout)
            if one["signal"] == other["signal"]
        ),
    ),
    Rule(
        (),
        "spec.rollout.guard.latency",
        TOLD,
        "runtime tgi tells e2e and queue only, runtime custom what spec.engine.metrics names; "
        "use source Gateway, or Prometheus with a histogram",
        _runtime_tells,
    ),
    Rule(
        (),
        "spec.rollout.guard.errors.source",
        COUNTED,
        "runtime sglang does not count failures, runtime custom only with spec.engine.metrics.finished and failed; "
        "use source Gateway",
        _runtime_counts,
    ),
)
