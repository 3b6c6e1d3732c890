"""Rules of the sources that can measure a signal of the guard, from the table of signals and the runtimes' metrics."""

from __future__ import annotations

from pagefleet_operator.domain.runtimes.catalog import REGISTRY
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule, given, listed
from pagefleet_operator.domain.spec.schema.guard_signals import ENGINE_ONLY, ENGINE_SIGNALS, GATEWAY_ONLY

METRICS = {name: engine.metrics for name, engine in REGISTRY.items() if engine.metrics is not None}
NAMED_BY_SPEC = [name for name, engine in REGISTRY.items() if engine.metrics is None]
REPORTED = {name: [s for s in ENGINE_SIGNALS if getattr(metrics, s)] for name, metrics in METRICS.items()}
PARTIAL = {name: signals for name, signals in REPORTED.items() if len(signals) < len(ENGINE_SIGNALS)}
UNCOUNTED = [name for name, metrics in METRICS.items() if not metrics.failed]

LATENCY = "!has(self.guard) || !has(self.guard.latency) || self.guard.latency"


def _source(entry: str) -> str:
    """In CEL: the source that measures an entry."""
    return f"(has({entry}.source) ? {entry}.source : {entry}.signal in {listed(ENGINE_ONLY)} ? 'Engine' : 'Gateway')"


def _histogram(entry: str) -> str:
    return f"(has({entry}.histogram) ? {entry}.histogram : '')"


def _entries(condition: str) -> str:
    return f"{LATENCY}.all(l, {condition})"


def _reported() -> str:
    """In CEL: whether the runtime of the spec reports the signal of each entry that the engines measure."""
    named = " || ".join(f"(l.signal == '{name}' && has(self.engine.metrics.{name}))" for name in ENGINE_SIGNALS)
    runtimes = [
        *(f"({RUNTIME} == '{runtime}' && l.signal in {listed(names)})" for runtime, names in PARTIAL.items()),
        f"({RUNTIME} in {listed(NAMED_BY_SPEC)} && has(self.engine.metrics) && ({named}))",
    ]
    return (
        "!has(self.rollout) || !has(self.rollout.guard) || !has(self.rollout.guard.latency) || "
        f"self.rollout.guard.latency.all(l, {_source('l')} == 'Gateway' || has(l.histogram) || "
        f"l.signal in {listed(GATEWAY_ONLY)} || !({RUNTIME} in {listed([*PARTIAL, *NAMED_BY_SPEC])}) || "
        f"{' || '.join(runtimes)})"
    )


def _counted() -> str:
    """In CEL: whether the runtime of the spec counts failures, where the engines are to count them."""
    return (
        "!has(self.rollout) || !has(self.rollout.guard) || !has(self.rollout.guard.errors) || "
        "!has(self.rollout.guard.errors.source) || self.rollout.guard.errors.source == 'Gateway' || "
        f"!({RUNTIME} in {listed([*UNCOUNTED, *NAMED_BY_SPEC])}) || ({RUNTIME} in {listed(NAMED_BY_SPEC)} && "
        "has(self.engine.metrics) && has(self.engine.metrics.finished) && has(self.engine.metrics.failed))"
    )


def _latency(cel: str, message: str) -> Rule:
    return Rule(("rollout",), "spec.rollout.guard.latency", _entries(cel), message)


def _needs(signal: str, path: str) -> Rule:
    """A signal of the guard that cannot be judged without another field."""
    cel = f"!({given(f'rollout.guard.{signal}')}) || ({given(path)})"
    return Rule((), f"spec.rollout.guard.{signal}", cel, f"needs spec.{path}")


GUARD_RULES = (
    _latency(
        f"!has(l.source) || l.source != 'Gateway' || !(l.signal in {listed(ENGINE_ONLY)})",
        f"source Gateway cannot measure {' and '.join(ENGINE_ONLY)}; use Engine or Prometheus, or signal tpot",
    ),
    _latency(
        f"!(l.signal in {listed(GATEWAY_ONLY)}) || !has(l.source) || l.source == 'Gateway' || has(l.histogram)",
        f"{' and '.join(GATEWAY_ONLY)} is measured by source Gateway, or by Prometheus with a histogram; the engines'"
        " measure of it is itl",
    ),
    _latency(
        "!has(l.histogram) || (has(l.source) && l.source == 'Prometheus')", "histogram belongs to source Prometheus"
    ),
    _latency(
        "!has(l.histogram) || l.histogram.contains('$revision')",
        "histogram must name $revision in a matcher, or both revisions would be the same series",
    ),
    _latency(
        "self.guard.latency.all(m, m.signal != l.signal || "
        f"({_source('l')} == {_source('m')} && {_histogram('l')} == {_histogram('m')}))",
        "a signal must have one source and one histogram, however often it comes",
    ),
    Rule(
        (),
        "spec.rollout.guard.latency",
        _reported(),
        "".join(f"runtime {runtime} reports {' and '.join(names)} only, " for runtime, names in PARTIAL.items())
        + "runtime custom what spec.engine.metrics names; use source Gateway, or Prometheus with a histogram",
    ),
    Rule(
        (),
        "spec.rollout.guard.errors.source",
        _counted(),
        f"runtime {', '.join(UNCOUNTED)} does not count failures, runtime custom only with spec.engine.metrics.finished and"
        " failed; use source Gateway",
    ),
    _needs("fallbacks", "traffic.fallback"),
    _needs("cost", "cost.perAcceleratorHour"),
)
