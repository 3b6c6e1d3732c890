"""Judges a canary on requests against the concurrent stable: Regressed, Passed or Inconclusive, with the numbers.

Each signal is judged on its own (`latency`, `errors`, `limits`), and the worst outcome is the guard's. The spec names
the source that measures a signal (`sources`), and every verdict names it too. Missing data is never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from pagefleet_operator.domain.analysis import (
    after_promotion,
    equal_load,
    errors,
    failures,
    latency,
    limits,
    sources,
    throughput,
)
from pagefleet_operator.domain.analysis.accumulate import Accumulator, Scope, SignalTest, accumulate
from pagefleet_operator.domain.analysis.adjusted import memory, whole_answers
from pagefleet_operator.domain.analysis.adjusted.accumulated import AdjustedScope
from pagefleet_operator.domain.analysis.failures import Bound, FailureCounts, Subject
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict, no_measurement, with_source, worst_of
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.spec.schema.guard_signals import ERRORS, Source
from pagefleet_operator.domain.status.failure_record import FailureRecord
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.stage import reading_of
from pagefleet_operator.domain.status.status import BaselineRecord, EvidenceRecord

EPOCH_SECONDS = 3600.0  # evidence begins at whole hours, each with an error level of its own
STREAMED = ("ttft", "tpot")  # the gateways measure them on streams only
MAX_MISSED_SECONDS = 60.0  # so many seconds at the beginning may lack data while it still counts as complete


@dataclass(frozen=True)
class Comparison:
    """The revisions to compare, and the time since which the canary's requests count (None: it has no traffic).

    `mirrored`: the canary gets copies of requests. `after_promotion`: there is no concurrent stable, and `baseline` is
    the record of the previous one. `low_since` is the time since which the canary has been short of free pages.
    `evidence` and `failures` are the stored evidence of the latency and of the signals that count failures. `prices` are None
    where they are not known.
    """

    stable: str
    canary: str
    since: float | None
    now: float
    mirrored: bool = False
    baseline: tuple[BaselineRecord, ...] = ()
    after_promotion: bool = False
    low_since: float | None = None
    evidence: tuple[EvidenceRecord, ...] = ()
    failures: tuple[FailureRecord, ...] = ()
    prices: throughput.Prices | None = None


def assess(observation: Observation, guard: Guard, comparison: Comparison) -> Verdict | None:
    """The guard's verdict; None when the guard is empty or has no requests to judge yet."""
    verdicts: list[Verdict] = []
    if guard.free_pages is not None:
        short = None if comparison.low_since is None else comparison.now - comparison.low_since
        verdicts.append(limits.judge_free_pages(observation, guard.free_pages, comparison.canary, short))
    verdicts += [limits.judge_gate(gate, observation.gates.get(gate.name)) for gate in guard.gates]
    if comparison.since is not None:
        verdicts += _Requests(observation, guard, comparison, comparison.since).verdicts()
    if not verdicts:
        return None
    verdict = worst_of(verdicts)
    if not verdict.evidence and any(entry.by_load for entry in guard.latency):
        return replace(verdict, evidence=comparison.evidence)  # the gateways are silent now
    return verdict


class _Requests:
    """The judgement of the signals that are measured on requests. Each gets an equal part of the error level."""

    def __init__(self, observation: Observation, guard: Guard, comparison: Comparison, since: float) -> None:
        self._observation, self._guard, self._comparison, self._since = observation, guard, comparison, since
        self._whole_decides = False  # whole answers have to pass in the place of first tokens
        # A promoted revision has no concurrent one whose throughput could be compared, and copies are not measured.
        unpaired = comparison.after_promotion or comparison.mirrored
        self._decrease = None if unpaired else guard.max_throughput_decrease
        self._cost_increase = None if unpaired else guard.max_cost_increase
        others = sum(entry.max_seconds is not None for entry in guard.latency)
        # Copies of requests never fall back.
        self._fallback_rate = None if comparison.mirrored else guard.max_fallback_rate
        limits = guard.max_error_rate, self._fallback_rate, self._decrease, self._cost_increase
        self._signals = len(guard.latency) + others + sum(limit is not None for limit in limits)
        available = sources.available_slices(observation)
        self._slices = {
            name: _SourceSlices(sources.in_order(observation.memo, name, own), since, comparison.now)
            for name, own in available.items()
        }

    def verdicts(self) -> list[Verdict]:
        """In the order of the guard's entries, errors last: of equal outcomes the first one is shown."""
        mirrored = self._comparison.mirrored
        measured = [(entry, sources.measuring_source(entry, mirrored)) for entry in self._latency_entries()]
        tests = [
            self._judged_at_equal_load(entry, source) or self._test(entry, source)
            for entry, source in measured
            if source
        ]
        error_source = sources.error_source(self._guard, mirrored)
        counted = {sources.name_of(error_source)} if self._guard.max_error_rate is not None else set()
        counted |= {sources.GATEWAY} if self._fallback_rate is not None else set()
        bounded = [
            _BoundTest(entry, source, Bound(entry.signal, entry.max_seconds))
            for entry, source in measured
            if source and entry.max_seconds is not None and sources.name_of(source, entry.histogram) in self._slices
        ]
        sums = self._sums([test for test in tests if isinstance(test, _LatencyTest)], bounded, counted)
        verdicts = [test if isinstance(test, Verdict) else self._latency(test, sums) for test in tests]
        bounds = [self._bound(test, sums) for test in bounded]
        # Too few streams for a bound of their first tokens hold nothing up where whole answers decide.
        held = Outcome.INCONCLUSIVE if self._whole_decides else None
        verdicts += [replace(one, outcome=Outcome.PASSED) if one.outcome is held else one for one in bounds]
        if self._decrease is not None:
            verdicts.append(self._judge_tokens(throughput.THROUGHPUT, self._decrease))
        if self._cost_increase is not None:
            verdicts.append(self._judge_tokens(throughput.COST, self._cost_increase))
        if self._fallback_rate is not None:
            verdicts.append(self._fallbacks(self._fallback_rate, sums))
        if self._guard.max_error_rate is not None:
            verdicts.append(self._errors(self._guard.max_error_rate, error_source, sums))
        return verdicts

    def _latency_entries(self) -> tuple[LatencyGuard, ...]:
        """The guard's entries. Copies of requests that have no first token are judged by their whole answers."""
        entries, engine = self._guard.latency, self._slices.get(sources.ENGINE)
        if not (self._comparison.mirrored and self._guard.whole_answers) or engine is None:
            return entries
        if not whole_answers.of_copies(engine.own(self._comparison.stable, 0)):
            return entries
        return whole_answers.entries_for(entries)

    def _test(self, entry: LatencyGuard, source: Source) -> _LatencyTest | Verdict:
        """The test of a latency signal, or the verdict that its source has no measurement."""
        if self._guard.whole_answers and entry.by_load and whole_answers.recorded(self._comparison.baseline):
            entry, self._whole_decides = whole_answers.entry_for(entry), True
        name = sources.name_of(source, entry.histogram)
        if name not in self._slices:
            return self._silent(entry.signal, source, entry.histogram)
        level = self._slices[name].part * self._level(entry.confidence)
        return _LatencyTest(entry, source, name, latency.signal_test(entry, level), level)

    def _judged_at_equal_load(self, entry: LatencyGuard, source: Source) -> Verdict | None:
        """The verdict on the time to first token where the gateways adjust it by load, and None where they do not.

        Where clients do not stream it is the verdict on whole answers.
        """
        comparison, slices = self._comparison, self._observation.slices
        concurrent = not (comparison.mirrored or comparison.after_promotion)
        if not entry.by_load or not concurrent or slices is None:
            return None
        level = self._level(entry.confidence)
        if self._guard.whole_answers and self._whole_stand_in():
            streams = self._at_equal_load(entry, source, level / 2)
            whole = self._at_equal_load(whole_answers.entry_for(entry), source, level / 2)
            verdict = equal_load.decisive(streams, whole)
            self._whole_decides = verdict.record.signal == whole.record.signal
            return verdict
        return self._at_equal_load(entry, source, level) if equal_load.can_judge(slices, comparison.stable) else None

    def _whole_stand_in(self) -> bool:
        """Whether whole answers are judged, too: they have been before, or the stable's clients do not stream."""
        stable, ordered = self._comparison.stable, self._slices[sources.GATEWAY].slices
        before = (one for one in self._comparison.evidence if one.whole)
        if any((one.stable, one.canary) == (stable, self._comparison.canary) for one in before):
            return True
        return whole_answers.stand_in(ordered, stable) and equal_load.can_judge(ordered, stable, whole=True)

    def _at_equal_load(self, entry: LatencyGuard, source: Source, level: float) -> Verdict:
        """The verdict on the load-adjusted times of streams, or on those of whole answers."""
        comparison = self._comparison
        warm_up, increase, whole = self._guard.warmup_requests, entry.max_increase, entry.signal == whole_answers.SIGNAL
        scope = AdjustedScope(comparison.stable, comparison.canary, self._since, warm_up, increase, whole)
        ordered = self._slices[sources.GATEWAY].slices
        pods = reading_of(self._observation.revisions, comparison.canary).ready
        sums, record = memory.accumulate(self._observation.memo, scope, ordered, comparison.evidence, pods)
        verdict = equal_load.judge(equal_load.Judged(sums, entry, level, comparison.now - self._since))
        return with_source(replace(verdict, evidence=(record,)), source)

    def _sums(
        self, tests: Sequence[_LatencyTest], bounded: Sequence[_BoundTest], counted: Set[str]
    ) -> dict[str, Accumulator]:
        """The sums of each source that some signal needs; `counted` are the sources of errors and fallbacks."""
        sums, comparison = {}, self._comparison
        needed = {test.name for test in tests} | {test.name for test in bounded} | counted
        for name in sorted(needed & set(self._slices)):
            own = () if comparison.after_promotion else tuple(test.test for test in tests if test.name == name)
            source = self._slices[name]
            bounds = tuple(dict.fromkeys(test.bound for test in bounded if test.name == name))
            warm_up = self._guard.warmup_requests
            scope = Scope(comparison.stable, comparison.canary, source.begin, warm_up, own, bounds)
            sums[name] = accumulate(self._observation.memo, name, scope, source.slices)
        return sums

    def _latency(self, test: _LatencyTest, sums: Mapping[str, Accumulator]) -> Verdict:
        comparison = self._comparison
        if comparison.after_promotion:
            own = self._slices[test.name].own(comparison.canary, self._guard.warmup_requests)
            verdict = after_promotion.judge(test.guard, comparison.baseline, own, test.level)
        else:
            strata = sums[test.name].strata_of(test.test)
            verdict = latency.judge_concurrent(test.guard, strata, test.level, comparison.now - self._since)
            verdict = self._without_streams(test, verdict)
        return with_source(verdict, test.source)

    def _without_streams(self, test: _LatencyTest, verdict: Verdict) -> Verdict:
        """The verdict with the reason why the gateways measure nothing, where requests have ended and none was a stream."""
        if test.name != sources.GATEWAY or test.guard.signal not in STREAMED or verdict.record.samples:
            return verdict
        ended = sum(piece.requests for piece in self._slices[test.name].own(self._comparison.canary, 0))
        if ended < test.guard.min_requests:
            return verdict
        message = (
            f"{verdict.record.message}: none of the {ended:,} requests that the canary has answered was a stream with a known "
            f"{test.guard.signal}; where clients do not stream, leave spec.rollout.guard.latency out or judge e2e"
        )
        return replace(verdict, record=replace(verdict.record, message=message))

    def _errors(self, max_rate: float, source: Source, sums: Mapping[str, Accumulator]) -> Verdict:
        name = sources.name_of(source)
        if name not in self._slices:
            return self._silent("errors", source)
        periods, level = self._begun(sums[name].periods), self._level(errors.CONFIDENCE)
        subject = self._subject(ERRORS, name, max_rate)
        return with_source(errors.judge(self._comparison.failures, subject, periods, level), source)

    def _fallbacks(self, max_rate: float, sums: Mapping[str, Accumulator]) -> Verdict:
        """The verdict on the requests that another service answered, which only the gateways know."""
        if sources.GATEWAY not in self._slices:
            return self._silent(errors.FALLBACKS, Source.GATEWAY)
        periods, level = self._begun(sums[sources.GATEWAY].periods), self._level(errors.CONFIDENCE)
        subject = self._subject(errors.FALLBACKS, sources.GATEWAY, max_rate)
        verdict = errors.judge_fallbacks(self._comparison.failures, subject, periods, level)
        return with_source(verdict, Source.GATEWAY)

    def _judge_tokens(self, signal: str, limit: float) -> Verdict:
        """The verdict on the throughput or on the cost of a token, which only the gateways measure."""
        source = self._slices.get(sources.GATEWAY)
        if source is None:
            return self._silent(signal, Source.GATEWAY)
        comparison, warm_up = self._comparison, self._guard.warmup_requests
        own = source.own(comparison.canary, warm_up), source.own(comparison.stable, 0)
        level = source.part * self._level(errors.CONFIDENCE)
        if signal == throughput.COST:
            verdict = throughput.judge_cost(*own, comparison.prices, limit, level)
        else:
            verdict = throughput.judge(*own, limit, level)
        return with_source(verdict, Source.GATEWAY)

    def _bound(self, test: _BoundTest, sums: Mapping[str, Accumulator]) -> Verdict:
        """The verdict of an absolute bound."""
        slow, entry = sums[test.name].slow[test.bound], test.guard
        subject = self._subject(f"{test.bound.signal} {test.bound.seconds:g}", test.name, 1 - entry.quantile)
        subject = replace(subject, odds=limits.BOUND_ODDS)
        evidence = failures.gather(self._comparison.failures, subject, self._begun(slow.periods))
        level = self._level(entry.confidence)
        return with_source(limits.judge_bound(entry, evidence, slow.blind, level), test.source)

    def _begun(self, periods: Mapping[int, FailureCounts]) -> Mapping[int, FailureCounts]:
        return failures.until_now(periods, self._comparison.now)

    def _level(self, confidence: float) -> float:
        """The error level of one signal. Those of all signals add up to what the confidence leaves."""
        return (1 - confidence) / self._signals

    def _subject(self, signal: str, name: str, limit: float) -> Subject:
        stable = "" if self._comparison.after_promotion else self._comparison.stable
        return Subject(signal, name, stable, self._since, limit)

    def _silent(self, signal: str, source: Source, histogram: str = "") -> Verdict:
        reason = sources.reason_of_silence(self._observation, source, histogram)
        return with_source(no_measurement(signal, f"{signal}: no measurement to judge by: {reason}"), source)


@dataclass(frozen=True)
class _LatencyTest:
    """A latency signal of the guard with its source, the source's name, and the error level of its test."""

    guard: LatencyGuard
    source: Source
    name: str
    test: SignalTest
    level: float


@dataclass(frozen=True)
class _BoundTest:
    """An absolute bound of a latency signal, with its source."""

    guard: LatencyGuard
    source: Source
    bound: Bound

    @property
    def name(self) -> str:
        return sources.name_of(self.source, self.guard.histogram)


class _SourceSlices:
    """One source's slices, which are in the order of time. Those from `begin` on are judged, at `part` of a signal's error level.

    While all slices since `since` are there, all of them are judged; later those since the first whole hour that is
    complete. The parts 1 / ((k + 1)(k + 2)) of the beginnings k = 0, 1, 2, ... add up to 1, so that all hours of a long
    rollout together keep the level.
    """

    def __init__(self, slices: Sequence[Slice], since: float, now: float) -> None:
        self.slices = slices
        # A slice that claims to begin after `now` says nothing about how long slices have been kept.
        oldest = min(now, next((piece.start for piece in self.slices if piece.possible), since))
        hours = 0 if oldest <= since + MAX_MISSED_SECONDS else math.ceil((oldest - since) / EPOCH_SECONDS)
        if hours and since + hours * EPOCH_SECONDS > now:
            hours -= 1  # less than an hour is retained: judge that part of it
        self.begin = since + hours * EPOCH_SECONDS
        self.part = 1 / ((hours + 1) * (hours + 2))

    def own(self, revision: str, warmup_requests: int) -> list[Slice]:
        """A revision's slices after those in which its first requests ended."""
        requests, own = 0, []
        for piece in self.slices:
            if piece.revision == revision and piece.start >= self.begin and piece.possible and not piece.adjusted:
                if requests >= warmup_requests:
                    own.append(piece)
                requests += piece.requests
        return own
