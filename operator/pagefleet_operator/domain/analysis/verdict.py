"""The verdict on a canary or on one of its signals: Regressed, Passed or Inconclusive, with its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.status.failure_record import FailureRecord
from pagefleet_operator.domain.status.status import EvidenceRecord, SignalRecord, VerdictRecord

SUSPICIOUS = 10.0  # evidence (an e-value) from which a canary that is not convicted does not pass either


class Outcome(StrEnum):
    """The three outcomes; Inconclusive asks for more requests, or for a measurement."""

    REGRESSED = "Regressed"
    PASSED = "Passed"
    INCONCLUSIVE = "Inconclusive"


@dataclass(frozen=True)
class Verdict:
    """The outcome of one signal, or of the whole guard. `reason` is the name that a rollback would get from it.

    `evidence` and `failures` are what the next decisions continue with, on latency and on failures.
    """

    outcome: Outcome
    record: VerdictRecord
    reason: str = ""
    signals: tuple[SignalRecord, ...] = ()
    evidence: tuple[EvidenceRecord, ...] = ()
    failures: tuple[FailureRecord, ...] = ()


def worst_of(verdicts: list[Verdict]) -> Verdict:
    """The guard's verdict: the worst outcome, with all signals' numbers and evidence."""
    order = (Outcome.REGRESSED, Outcome.INCONCLUSIVE, Outcome.PASSED)
    worst = min(verdicts, key=lambda verdict: order.index(verdict.outcome))
    failures = tuple(record for verdict in verdicts for record in verdict.failures)
    return replace(
        worst,
        signals=tuple(signal for verdict in verdicts for signal in verdict.signals),
        evidence=tuple(record for verdict in verdicts for record in verdict.evidence),
        failures=failures,
    )


def make_verdict(
    outcome: Outcome,
    record: VerdictRecord,
    message: str,
    wait: float | None = None,
    reason: str = "",
    signals: tuple[SignalRecord, ...] = (),
) -> Verdict:
    """`wait` is the expected time to a verdict in seconds, None when it is not known."""
    written = replace(record, outcome=outcome.value, message=message, expected_seconds=wait)
    return Verdict(outcome, written, reason, signals)


def record_without_latency(
    signal: str, statistic: float = 0.0, limit: float = 0.0, samples: int = 0, evidence: float = 0.0
) -> VerdictRecord:
    """A record whose latencies, outcome and message are empty."""
    return VerdictRecord(
        outcome="", signal=signal, statistic=statistic, limit=limit, bound_seconds=None, stable_seconds=None,
        canary_seconds=None, samples=samples, evidence=evidence, message="",
    )  # fmt: skip


def with_source(verdict: Verdict, source: str) -> Verdict:
    """Add the measuring source, also to the sentence, which decisions and Events repeat."""
    record = replace(verdict.record, source=source, message=f"{verdict.record.message}; source {source}")
    return replace(verdict, record=record, signals=tuple(replace(one, source=source) for one in verdict.signals))


def no_measurement(signal: str, message: str) -> Verdict:
    """Inconclusive, because there is nothing to judge by."""
    shown = SignalRecord(signal or "all", "", Outcome.INCONCLUSIVE.value, message=message)
    return make_verdict(Outcome.INCONCLUSIVE, record_without_latency(signal), message, signals=(shown,))
