"""What a judgement says: Regressed, Passed or Inconclusive, with its numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from pagefleet_operator.domain.status.status import SignalRecord, VerdictRecord


class Outcome(StrEnum):
    REGRESSED = "Regressed"
    PASSED = "Passed"
    INCONCLUSIVE = "Inconclusive"


@dataclass(frozen=True)
class Judged:
    """One signal's outcome, or the guard's, which is the worst of them. `reason` is what a rollback is called."""

    outcome: Outcome
    record: VerdictRecord
    reason: str = ""
    signals: tuple[SignalRecord, ...] = ()


def worst(judged: list[Judged]) -> Judged:
    """The guard's outcome, with all signals' numbers."""
    order = (Outcome.REGRESSED, Outcome.INCONCLUSIVE, Outcome.PASSED)
    chosen = min(judged, key=lambda one: order.index(one.outcome))
    return replace(chosen, signals=tuple(signal for one in judged for signal in one.signals))


def told(
    outcome: Outcome,
    record: VerdictRecord,
    message: str,
    wait: float | None = None,
    reason: str = "",
    signals: tuple[SignalRecord, ...] = (),
) -> Judged:
    said = replace(record, outcome=outcome.value, message=message, expected_seconds=wait)
    return Judged(outcome, said, reason, signals)


def blank(
    signal: str, statistic: float = 0.0, limit: float = 0.0, samples: int = 0, value: float = 0.0
) -> VerdictRecord:
    """A record without latencies."""
    return VerdictRecord(
        outcome="", signal=signal, statistic=statistic, limit=limit, bound_seconds=None, stable_seconds=None,
        canary_seconds=None, samples=samples, evidence=value, message="",
    )  # fmt: skip


def measured_by(judged: Judged, source: str) -> Judged:
    """With who measured it, also in the sentence, which decisions and Events repeat."""
    record = replace(judged.record, source=source, message=f"{judged.record.message}; source {source}")
    return replace(judged, record=record, signals=tuple(replace(one, source=source) for one in judged.signals))


def unknown(signal: str, message: str) -> Judged:
    stated = SignalRecord(signal or "all", "", Outcome.INCONCLUSIVE.value, message=message)
    return told(Outcome.INCONCLUSIVE, blank(signal), message, signals=(stated,))
