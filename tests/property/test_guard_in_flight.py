"""Protects the guard's evidence from clients and from silence, through the shipped counting and the shipped reader, in
virtual time: a canary that does not answer is convicted while its clients still wait, or after they have left. Nothing that
clients do (leave, retry in a storm, read slowly, force headers) makes one of two identical revisions look worse. PAGEFLEET_SEEDS says how many
services (8 in the night)."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.virtual.gateway import CANARY, STABLE, Clients, Traffic, VirtualGateway

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.analysis.waits import InFlight, Waits, decided
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.status.gateway_slices import slices
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.status import Status

Draw = Callable[[random.Random], float]
DEFAULT = Guard((LatencyGuard("ttft", 0.95, 0.15, 0.99, 200),), 0.01, 5, "hold", 600.0)
RATE = 5.0  # requests/s, as in the demo
SEEDS = range(int(os.environ.get("PAGEFLEET_SEEDS", "2")))


def usual(source: random.Random) -> float:
    return 0.2 * source.lognormvariate(0, 0.4)


def slow(source: random.Random) -> float:
    """As long as clients wait for, in a service whose answers take seconds."""
    return 2.0 * source.lognormvariate(0, 0.8)


def world(
    seed: int, share: int, draws: tuple[Draw, Draw], clients: Clients | None = None, **service: object
) -> Traffic:
    gateway = VirtualGateway(seed, weights=((STABLE, 100 - share), (CANARY, share)), **service)
    return Traffic(gateway, {STABLE: draws[0], CANARY: draws[1]}, RATE, seed, clients)


def assess(pieces: list[Slice], now: float, memo: dict[str, object], chosen: Guard = DEFAULT) -> Verdict:
    observation = Observation("team", "chat", "uid", 1, {}, Status(), slices=tuple(pieces), memo=memo)
    verdict = guard.assess(observation, chosen, Comparison(STABLE, CANARY, since=0.0, now=now))
    assert verdict is not None
    return verdict


def verdicts(traffic: Traffic, until: float, chosen: Guard = DEFAULT) -> list[tuple[float, Verdict]]:
    """The guard's verdicts, asked every five seconds, until the first conviction."""
    pieces, memo, newest, shown = list[Slice](), dict[str, object](), -1.0, list[tuple[float, Verdict]]()
    while traffic.now < until:
        traffic.run(traffic.now + 5.0)
        new = [piece for piece in slices(traffic.gateway.document(traffic.now, newest)) if piece.start > newest]
        pieces += new
        newest = max((piece.start for piece in new), default=newest)
        shown.append((traffic.now, assess(pieces, traffic.now, memo, chosen)))
        if shown[-1][1].outcome is Outcome.REGRESSED:
            break
    return shown


@pytest.mark.parametrize("limit", [None, 10.0, 60.0])
@pytest.mark.parametrize(("share", "seconds"), [(10, 150.0), (20, 90.0), (50, 80.0)])
def test_a_canary_a_hundred_times_slower_is_convicted_while_its_clients_wait(
    limit: float | None, share: int, seconds: float
) -> None:
    """Its answers take 20 s and more: were only requests counted that have ended, the demo's share of 20 % took 235 s."""
    for seed in range(3):
        clients = Clients(leave_after=lambda _: limit)
        now, verdict = verdicts(world(seed, share, (usual, lambda r: 100 * usual(r)), clients), 300.0)[-1]
        assert verdict.reason == "LatencyRegression"
        assert now <= seconds, f"{now:.0f} s"


def test_a_canary_that_never_answers_anybody_is_convicted_although_no_request_of_it_ever_ends_well() -> None:
    traffic = world(1, 20, (usual, lambda _: math.inf), Clients(leave_after=lambda _: 10.0))
    now, verdict = verdicts(traffic, 300.0)[-1]
    assert (verdict.reason, now <= 90.0) == ("LatencyRegression", True)
    assert "have waited for longer without a first token" in verdict.record.message
    assert not any(
        piece.latency.get("ttft") for piece in slices(traffic.gateway.document(now)) if piece.revision == CANARY
    )


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_canary_that_hangs_for_some_requests_is_convicted(share: float) -> None:
    """Their clients time out after half a minute, and every other request is answered as usual."""

    def hangs(source: random.Random) -> float:
        return math.inf if source.random() < share else usual(source)

    now, verdict = verdicts(world(2, 50, (usual, hangs), Clients(leave_after=lambda _: 30.0)), 900.0)[-1]
    assert verdict.reason == "LatencyRegression", f"after {now:.0f} s: {verdict.record.message}"


def leaves(*choices: float | None) -> Callable[[random.Random], float | None]:
    return lambda source: source.choice(choices)


CLIENTS = {
    "leave after 1 s": Clients(leave_after=leaves(1.0)),
    "leave after 10 s": Clients(leave_after=leaves(10.0)),
    "some leave after 1 s, some after 10 s, some never": Clients(leave_after=leaves(1.0, 10.0, None)),
    "leave at any time": Clients(leave_after=lambda source: source.expovariate(0.5)),
    "retry in a storm": Clients(leave_after=leaves(1.0, 10.0), retries=4),
    "read slowly": Clients(reading=lambda source: source.choice([0.1, 60.0])),
    "force heavy requests on the canary in storms": Clients(
        leave_after=leaves(0.5, None),
        headers=lambda source: {"x_canary": "1"} if source.random() < 0.7 else {},
        burden=20.0,
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("share", [20, 50])
def test_nothing_that_clients_do_convicts_one_of_two_identical_revisions(name: str, share: int) -> None:
    strict = replace(DEFAULT, latency=(*DEFAULT.latency, LatencyGuard("e2e", 0.95, 0.15, 0.99, 200)))
    options = {"canary_headers": (("x-canary", "1"),)}
    ended = [verdicts(world(seed, share, (slow, slow), CLIENTS[name], **options), 300.0, strict) for seed in SEEDS]
    assert not [run[-1][1].record.message for run in ended if run[-1][1].outcome is Outcome.REGRESSED]


def totals(pieces: list[Slice], revision: str, signal: str, bound: float) -> tuple[float, float]:
    """How many requests of a revision are decided about at a bound, and how many are slower, over the whole time."""
    count = hits = 0.0
    for stratum in sorted({piece.stratum for piece in pieces}):
        in_flight = InFlight()
        for piece in (piece for piece in pieces if (piece.revision, piece.stratum) == (revision, stratum)):
            begin = in_flight.total()
            in_flight.update(piece, signal)
            waits = Waits(begin, in_flight.total(), piece.unmeasured.get(signal, {}))
            more, slower = decided(piece.latency.get(signal, {}), waits, bound)
            count, hits = count + more, hits + slower
    return count, hits


@pytest.mark.parametrize("name", CLIENTS)
def test_the_share_of_slow_requests_of_two_identical_revisions_is_the_same_whatever_clients_do(name: str) -> None:
    """And it is the true one: that of the engine's answers, if every client had waited."""
    runs = [world(seed, 30, (slow, slow), CLIENTS[name], canary_headers=(("x-canary", "1"),)) for seed in SEEDS]
    for traffic in runs:
        traffic.run(400.0)
    read = [list(slices(traffic.gateway.document(traffic.now))) for traffic in runs]
    for bound in (0.9, 5.0):
        sums = {one: [totals(pieces, one, "ttft", bound) for pieces in read] for one in (STABLE, CANARY)}
        count = {one: sum(requests for requests, _ in both) for one, both in sums.items()}
        hits = {one: sum(slower for _, slower in both) for one, both in sums.items()}
        if name == "leave after 1 s" and bound > 1.0:
            assert hits == {STABLE: 0.0, CANARY: 0.0}, "nobody has waited for so long"
            continue
        shares = {revision: hits[revision] / count[revision] for revision in count}
        deviation = math.sqrt(sum(shares[one] * (1 - shares[one]) / count[one] for one in shares))
        assert abs(shares[STABLE] - shares[CANARY]) < 4 * deviation + 1e-9, shares
        if name in ("leave after 10 s", "read slowly"):
            true = 0.5 * math.erfc(math.log(bound / 2.0) / (0.8 * math.sqrt(2)))
            assert abs(shares[STABLE] - true) < 0.04, (shares, true)


def test_a_request_is_slow_once_however_long_it_waits_and_however_it_ends() -> None:
    """Its age passes the bound in one slice; what comes later, the first token too, is no second one."""
    for seed in range(10):
        traffic = world(seed, 50, (slow, slow), Clients(leave_after=leaves(1.5, 30.0, None)))
        traffic.run(120.0)
        traffic.stop()
        traffic.run(400.0)
        pieces = traffic.gateway.slices(traffic.now)
        bound = (0.5, 2.0, 8.0)[seed % 3]
        once = {revision: totals(pieces, revision, "ttft", bound) for revision in (STABLE, CANARY)}
        limit = sketch.bucket_of(bound)
        for revision, (count, hits) in once.items():
            felt = [
                (sketch.bucket_of(seconds), answered) for name, seconds, answered in traffic.felt if name == revision
            ]
            assert hits == sum(bucket > limit for bucket, _ in felt)
            assert count == hits + sum(bucket <= limit and answered for bucket, answered in felt)


def test_a_first_token_that_passed_before_the_bound_is_not_slow_although_the_answer_goes_on() -> None:
    gateway = VirtualGateway(weights=((CANARY, 100),))
    request, _ = gateway.send(0.5)
    gateway.first_token(request, 0.2, 0.7)
    gateway.windows.tick(200.0)
    assert totals(gateway.slices(200.0), CANARY, "ttft", 1.0) == (1.0, 0.0)
    assert totals(gateway.slices(200.0), CANARY, "e2e", 1.0) == (1.0, 1.0), "as a whole answer it is slow already"
