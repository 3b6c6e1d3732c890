"""Protects how verdicts on signals become one: the worst outcome decides, every signal's numbers stay, and the sentence names its source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_operator.domain.analysis.verdict import (
    Outcome,
    Verdict,
    make_verdict,
    no_measurement,
    record_without_latency,
    with_source,
    worst_of,
)
from pagefleet_operator.domain.status.failure_record import FailureRecord
from pagefleet_operator.domain.status.status import EvidenceRecord, SignalRecord


def verdict(outcome: Outcome, name: str) -> Verdict:
    signal = SignalRecord(name, "", outcome.value)
    made = make_verdict(outcome, record_without_latency(name), f"{name} says so", reason=name, signals=(signal,))
    return replace(made, evidence=(EvidenceRecord(name, "new", 0.15, 0.0, 0),), failures=(FailureRecord(signal=name),))


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [
        ("PR", 1), ("RP", 0), ("IP", 0), ("PI", 1), ("IR", 1), ("RI", 0), ("PP", 0), ("II", 0), ("RR", 0), ("PIR", 2),
    ],
)  # fmt: skip
def test_the_worst_outcome_decides_and_everything_else_stays(outcomes: str, worst: int) -> None:
    by_letter = {one.value[0]: one for one in Outcome}
    verdicts = [verdict(by_letter[letter], f"s{number}") for number, letter in enumerate(outcomes)]
    whole = worst_of(verdicts)
    assert (whole.outcome, whole.reason, whole.record) == (
        verdicts[worst].outcome,
        f"s{worst}",
        verdicts[worst].record,
    )
    names = [f"s{number}" for number in range(len(outcomes))]
    assert [one.signal for one in whole.signals] == names
    assert [one.stable for one in whole.evidence] == names
    assert [one.signal for one in whole.failures] == names


def test_a_verdict_writes_its_outcome_its_sentence_and_its_wait_into_the_record() -> None:
    record = record_without_latency("errors", 0.25, 0.05, 40, 7.0)
    made = make_verdict(Outcome.INCONCLUSIVE, record, "wait", 12.0, "ErrorRate")
    assert (made.record.outcome, made.record.message, made.record.expected_seconds) == ("Inconclusive", "wait", 12.0)
    assert (made.record.signal, made.record.statistic, made.record.limit) == ("errors", 0.25, 0.05)
    assert (made.record.samples, made.record.evidence, made.reason) == (40, 7.0, "ErrorRate")
    assert (made.record.bound_seconds, made.record.stable_seconds, made.record.canary_seconds) == (None, None, None)
    assert make_verdict(Outcome.PASSED, record, "").record.expected_seconds is None
    empty = record_without_latency("x")
    assert (empty.outcome, empty.message, empty.statistic, empty.limit, empty.samples, empty.evidence) == (
        "", "", 0.0, 0.0, 0, 0.0,
    )  # fmt: skip


def test_the_source_stands_in_the_sentence_and_with_every_signal() -> None:
    named = with_source(verdict(Outcome.PASSED, "ttft"), "Gateway")
    assert (named.record.source, named.record.message) == ("Gateway", "ttft says so; source Gateway")
    assert [one.source for one in named.signals] == ["Gateway"]


def test_the_words_are_those_that_people_and_programs_read() -> None:
    assert [one.value for one in Outcome] == ["Regressed", "Passed", "Inconclusive"]
    assert Verdict(Outcome.PASSED, record_without_latency("x")).reason == ""


@pytest.mark.parametrize(("signal", "shown"), [("ttft", "ttft"), ("", "all")])
def test_without_a_measurement_nothing_is_concluded(signal: str, shown: str) -> None:
    made = no_measurement(signal, "nobody answers")
    assert (made.outcome, made.reason, made.record.signal) == (Outcome.INCONCLUSIVE, "", signal)
    assert (made.record.message, made.record.outcome) == ("nobody answers", "Inconclusive")
    assert made.signals == (SignalRecord(shown, "", "Inconclusive", message="nobody answers"),)
