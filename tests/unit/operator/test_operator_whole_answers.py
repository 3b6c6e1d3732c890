"""Protects the rollouts of services whose clients do not stream: where the spec names no latency, whole answers are judged in the
place of first tokens, with the same limits and error level. A slower canary is rolled back and an equal one passes. Services that
stream are judged as ever, and a mix that changes neither begins anew nor loses what was found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pagefleet_contract.sketch import bucket_of
from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.adjusted.whole_answers import stand_in
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.spec.schema.rollout import OnInconclusive
from pagefleet_operator.domain.status.observation import LoadCounts, Observation, Slice
from pagefleet_operator.domain.status.status import EvidenceRecord, Status

STABLE, CANARY, STRATUM = "s", "c", "512-1447"
ENTRY = LatencyGuard("ttft", 0.95, 0.15, 0.99, 50)
GUARD = Guard((ENTRY,), None, 5, OnInconclusive.HOLD, 600.0, whole_answers=True)
LEARNED = 400.0  # seconds of the stable revision alone
By = Callable[[float], float]  # something by the time


class Clients:
    """Slices of two seconds: 18 stable requests and two of the canary. `streams` is the share of streams by the time, `factor` the
    canary's slowness; a factor of infinity is a request that never gets an answer."""

    def __init__(self, streams: By, factor: By = lambda _: 1.0, seed: int = 1) -> None:
        self._streams, self._factor, self._random = streams, factor, random.Random(seed)
        self._hanging: list[tuple[float, bool]] = []

    def slices(self, until: float) -> Iterator[Slice]:
        for start in range(round(-LEARNED), round(until), 2):
            yield from self._of(STABLE, float(start), 18, 1.0)
            if start >= 0:
                yield from self._of(CANARY, float(start), 2, self._factor(start))

    def _of(self, revision: str, start: float, count: int, factor: float) -> Iterator[Slice]:
        kinds: dict[bool, dict[int, int]] = {True: {}, False: {}}
        for _ in range(count):
            streams = self._random.random() < self._streams(start)
            if math.isinf(factor):
                self._hanging.append((start, streams))
                continue
            bucket = bucket_of(factor * self._random.lognormvariate(0, 0.3))
            kinds[streams][bucket] = kinds[streams].get(bucket, 0) + 1
        ended = {
            bucket: kinds[True].get(bucket, 0) + kinds[False].get(bucket, 0)
            for bucket in {**kinds[True], **kinds[False]}
        }
        latency = {"ttft": kinds[True], "e2e": ended}
        yield Slice("g", start, 2.0, revision, STRATUM, sum(ended.values()), 0, latency, started=count)
        for streams, measured in kinds.items():
            waiting: dict[int, int] = {}
            for since, kind in self._hanging if revision == CANARY else ():
                if kind == streams:
                    bucket = bucket_of((start + 2 - since) / 0.2)
                    waiting[bucket] = waiting.get(bucket, 0) + 1
            if measured or waiting:
                load = {STRATUM: LoadCounts(measured, waiting, ttft=measured)}
                yield Slice("g", start, 2.0, revision, "", 0, 0, load=load, whole=not streams)


def whole(_: float) -> float:
    return 0.0


class Operator:
    """Decides every four seconds, and stores the evidence."""

    def __init__(self, clients: Clients, own: Guard = GUARD) -> None:
        self._clients, self._guard = clients, own
        self.evidence: tuple[EvidenceRecord, ...] = ()
        self.memo: dict[str, object] = {}

    def play(self, until: float) -> Iterator[tuple[float, Verdict]]:
        pieces: list[Slice] = []
        for piece in self._clients.slices(until):
            if pieces and piece.start > pieces[-1].start >= 0 and piece.start % 4 == 0:
                yield piece.start, self.decide(pieces, piece.start)
            pieces.append(piece)

    def decide(self, pieces: list[Slice], now: float) -> Verdict:
        observation = Observation("team", "chat", "uid", 1, {}, Status(), slices=tuple(pieces), memo=self.memo)
        verdict = guard.assess(observation, self._guard, Comparison(STABLE, CANARY, 0.0, now, evidence=self.evidence))
        assert verdict is not None
        self.evidence = verdict.evidence
        return verdict

    def ended(self, until: float) -> tuple[Outcome, float, Verdict]:
        """The first verdict that is not Inconclusive, or the last one, and when."""
        played = list(self._until_it_ends(until))
        return played[-1][1].outcome, *played[-1]

    def _until_it_ends(self, until: float) -> Iterator[tuple[float, Verdict]]:
        for now, verdict in self.play(until):
            yield now, verdict
            if verdict.outcome is not Outcome.INCONCLUSIVE:
                return


@pytest.mark.parametrize("seed", range(3))
def test_an_equal_canary_whose_clients_never_stream_passes(seed: int) -> None:
    outcome, _, verdict = Operator(Clients(whole, seed=seed)).ended(900.0)
    assert outcome is Outcome.PASSED, verdict.record.message
    assert verdict.record.signal == "e2e p95" and verdict.record.source == "Gateway"


@pytest.mark.parametrize(("factor", "most"), [(100.0, 16.0), (2.0, 60.0), (1.5, 300.0)])
def test_a_slower_canary_whose_clients_never_stream_is_rolled_back(factor: float, most: float) -> None:
    outcome, seconds, verdict = Operator(Clients(whole, lambda _: factor)).ended(900.0)
    assert (outcome, verdict.reason) == (Outcome.REGRESSED, "LatencyRegression")
    assert seconds <= most and "e2e p95" in verdict.record.message


def test_a_canary_that_never_answers_whole_requests_is_convicted_while_clients_wait() -> None:
    outcome, seconds, verdict = Operator(Clients(whole, lambda _: math.inf)).ended(200.0)
    assert outcome is Outcome.REGRESSED and seconds <= 20.0
    assert "for longer without a whole answer" in verdict.record.message


def test_a_curious_stream_now_and_then_holds_nothing_up() -> None:
    outcome, _, verdict = Operator(Clients(lambda _: 0.01)).ended(900.0)
    assert outcome is Outcome.PASSED and verdict.record.signal == "e2e p95"


@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_service_that_streams_is_judged_as_ever(share: float, factor: float) -> None:
    """Verdict for verdict as by a guard that names ttft."""
    clients = [Clients(lambda _: share, lambda _: factor) for _ in range(2)]
    ours, ever = Operator(clients[0]), Operator(clients[1], replace(GUARD, whole_answers=False))
    for (_, one), (_, other) in zip(ours.play(200.0), ever.play(200.0), strict=True):
        assert one == other


def test_a_guard_that_names_ttft_waits_for_streams() -> None:
    outcome, _, verdict = Operator(Clients(whole), replace(GUARD, whole_answers=False)).ended(300.0)
    assert outcome is Outcome.INCONCLUSIVE
    assert "leave spec.rollout.guard.latency out" in verdict.record.message


def test_gateways_before_these_times_are_waited_for() -> None:
    pieces = [piece for piece in Clients(whole).slices(100.0) if not piece.adjusted]
    verdict = Operator(Clients(whole)).decide(pieces, 100.0)
    assert verdict.outcome is Outcome.INCONCLUSIVE and not verdict.evidence


@pytest.mark.parametrize("turn", [40.0, 120.0])
@pytest.mark.parametrize(("before", "after"), [(0.0, 1.0), (1.0, 0.0)])
def test_a_mix_that_changes_ends_in_a_verdict(before: float, after: float, turn: float) -> None:
    mix = lambda start: before if start < turn else after  # noqa: E731
    assert Operator(Clients(mix)).ended(1800.0)[0] is Outcome.PASSED
    worse = lambda start: 2.0 if start >= turn else 1.0  # noqa: E731
    assert any(verdict.outcome is Outcome.REGRESSED for _, verdict in Operator(Clients(mix, worse)).play(turn + 200.0))


def test_what_whole_answers_have_shown_is_not_lost_when_clients_begin_to_stream() -> None:
    """A canary whose whole answers alone are slow, by clients that turn to streams little by little."""
    operator = Operator(Clients(lambda start: 0.0 if start < 20 else 0.7, lambda _: 1.6))
    found = max(verdict.evidence[-1].logs[0] if verdict.evidence else 0.0 for _, verdict in operator.play(18.0))
    records = [one.whole for one in operator.evidence]
    assert records == [False, True] and found != 0.0
    restarted = Operator(Clients(lambda _: 0.7), GUARD)
    restarted.evidence = operator.evidence
    pieces = list(Clients(lambda _: 0.7).slices(24.0))
    kept = restarted.decide(pieces, 24.0)
    assert [one.whole for one in kept.evidence] == [False, True], "both kinds go on"
    assert kept.evidence[1].blocks >= operator.evidence[1].blocks


def test_a_promise_about_first_tokens_holds_up_no_clients_that_do_not_stream() -> None:
    own = replace(GUARD, latency=(replace(ENTRY, max_seconds=1.0),))
    assert Operator(Clients(whole), own).ended(900.0)[0] is Outcome.PASSED


def test_the_stable_s_last_answers_decide_whether_whole_ones_stand_in() -> None:
    def answers(*counts: tuple[int, int]) -> list[Slice]:
        return [
            Slice("g", 2.0 * place, 2.0, STABLE, STRATUM, total, 0, {"ttft": {300: streams}, "e2e": {400: total}})
            for place, (total, streams) in enumerate(counts)
        ]

    assert not stand_in((), STABLE)
    assert not stand_in(answers((49, 0)), STABLE) and stand_in(answers((50, 0)), STABLE)
    assert stand_in(answers((100, 4)), STABLE) and not stand_in(answers((100, 5)), STABLE)
    assert stand_in(answers((1000, 1000), (400, 0)), STABLE), "the last ones"
    assert not stand_in(answers((400, 0)), CANARY)


@pytest.mark.parametrize(
    ("rollout", "stands_in"),
    [
        (None, True),
        ({}, True),
        ({"guard": {"deadline": "6h"}}, True),
        ({"guard": {"errors": {}}}, True),
        ({"guard": {"latency": [{"signal": "ttft"}]}}, False),
        ({"guard": {"latency": []}}, False),
        ({"guard": {}}, False),
    ],
)
def test_whole_answers_stand_in_where_the_spec_names_no_latency(rollout: object, stands_in: bool) -> None:
    raw = {"model": {"source": "hf://a/b"}, "resources": {"cpu": "1", "memory": "1Gi"}}
    spec = parse(raw if rollout is None else raw | {"rollout": rollout})
    assert isinstance(spec, Spec)
    assert spec.rollout.guard.whole_answers is stands_in
