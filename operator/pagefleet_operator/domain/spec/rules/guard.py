"""Rules of the sources that can measure a signal of the guard."""

from __future__ import annotations

from pagefleet_contract.engine_metrics import HISTOGRAMS
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule

TGI_SIGNALS = ("e2e", "queue")
LATENCY = "!has(self.guard) || !has(self.guard.latency) || self.guard.latency"
SOURCE = "(has(l.source) ? l.source : l.signal in ['itl', 'queue'] ? 'Engine' : 'Gateway')"


CUSTOM = " || ".join(f"(l.signal == '{name}' && has(self.engine.metrics.{name}))" for name in HISTOGRAMS)
REPORTED = (
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
        "source Gateway cannot measure itl and queue; use Engine or Prometheus, or signal tpot",
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.latency",
        f"{LATENCY}.all(l, l.signal != 'tpot' || !has(l.source) || l.source == 'Gateway' || has(l.histogram))",
        "tpot is measured by source Gateway, or by Prometheus with a histogram; the engines' measure of it is itl",
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.latency",
        f"{LATENCY}.all(l, !has(l.histogram) || (has(l.source) && l.source == 'Prometheus'))",
        "histogram belongs to source Prometheus",
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.latency",
        f"{LATENCY}.all(l, !has(l.histogram) || l.histogram.contains('$revision'))",
        "histogram must name $revision in a matcher, or both revisions would be the same series",
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.latency",
        f"{LATENCY}.all(l, self.guard.latency.all(m, m.signal != l.signal || "
        f"({SOURCE} == {SOURCE.replace('l.', 'm.')} && "
        "(has(l.histogram) ? l.histogram : '') == (has(m.histogram) ? m.histogram : ''))))",
        "a signal must have one source and one histogram, however often it comes",
    ),
    Rule(
        (),
        "spec.rollout.guard.latency",
        REPORTED,
        "runtime tgi reports e2e and queue only, runtime custom what spec.engine.metrics names; "
        "use source Gateway, or Prometheus with a histogram",
    ),
    Rule(
        (),
        "spec.rollout.guard.errors.source",
        COUNTED,
        "runtime sglang does not count failures, runtime custom only with spec.engine.metrics.finished and failed; "
        "use source Gateway",
    ),
)
