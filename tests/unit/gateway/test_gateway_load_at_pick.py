"""Protects the load-adjusted times: the load of a pod is what was sent there and has no first token yet, and a canary's
requests teach no expectation. Whole answers are compared with whole answers, in an entry of their own. Requests that were forced,
copied or sent elsewhere are not compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.virtual.gateway import CANARY, NAME, NAMESPACE, STABLE, VirtualGateway, numbered

from pagefleet_contract.sketch import bucket_of, total
from pagefleet_contract.strata import load_stratum
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.measuring.access_log import FailedAttempt, record_attempt
from pagefleet_gateway.picking.expected import MAX_SAMPLED_PODS, MIN_MEASUREMENTS, Load, TypicalPrompts
from pagefleet_gateway.picking.ledger import Ticket
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_operator.domain.status.gateway_slices import MAX_PODS
from pagefleet_operator.domain.status.observation import LoadCounts, Slice

ONLY_STABLE, ONLY_CANARY = ((STABLE, 100),), ((CANARY, 100),)
KEY = (NAMESPACE, NAME)


def unlike(number: int, length: int = 400) -> str:
    """A prompt that shares no beginning with another."""
    return f"{number:06}" + "x" * (length - 6)


def service(**options: Any) -> Service:
    return Service(NAMESPACE, NAME, "smol", **options)


def ticket(gateway: VirtualGateway, request: str) -> Ticket:
    opened = gateway.ledger.ticket(request)
    assert opened is not None
    return opened


def teach(gateway: VirtualGateway, begin: float, count: int = MIN_MEASUREMENTS, seconds: float = 0.1) -> float:
    """Answer requests one after the other; return the time afterwards."""
    for _ in range(count):
        request, _ = gateway.send(begin, unlike(gateway.count))
        gateway.first_token(request, seconds, begin + seconds)
        gateway.end(request, begin + seconds + 0.01)
        begin += seconds + 0.02
    return begin


def adjusted(gateway: VirtualGateway, now: float) -> list[Slice]:
    return [piece for piece in gateway.slices(now) if piece.adjusted]


def summed(gateway: VirtualGateway, now: float, revision: str, field: str) -> int:
    counts = [one for piece in adjusted(gateway, now) if piece.revision == revision for one in piece.load.values()]
    return sum(total(getattr(one, field)) for one in counts)


def test_a_pod_s_load_is_its_prompts_without_a_first_token_and_its_running_requests() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE)
    pod = gateway.pods[0]
    requests = [gateway.send(0.1 * number, unlike(number, 4000))[0] for number in range(3)]
    own = ticket(gateway, requests[0]).uncached_tokens
    assert own > 900
    loads = [ticket(gateway, request).at_pick for request in requests]
    # Of the prompts ahead the first is half computed on average.
    work = [own * count for count in (1, 1.5, 2.5)]
    assert [one.load for one in loads if one is not None] == [Load(pytest.approx(tokens), 0.0) for tokens in work]
    assert [one.stratum for one in loads if one is not None] == [
        load_stratum(tokens, queued=tokens > own) for tokens in work
    ]
    gateway.first_token(requests[0], 0.5, 0.5)
    assert gateway.ledger.load_on(pod, 0.5) == Load(2.0 * own, 1.0)
    gateway.leave(requests[1], 0.6)
    assert gateway.ledger.load_on(pod, 0.6) == Load(float(own), 1.0)
    gateway.end(requests[0], 0.7)
    gateway.first_token(requests[2], 0.6, 0.8)
    assert gateway.ledger.load_on(pod, 0.8) == Load(0.0, 1.0)
    gateway.end(requests[2], 0.9)
    assert gateway.ledger.load_on(pod, 0.9) == Load(0.0, 0.0)


def test_a_prompt_without_a_stream_counts_while_it_is_probably_not_computed() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE)
    pod = gateway.pods[0]
    request, _ = gateway.send(0.0, unlike(1, 4000), stream=False)
    assert gateway.ledger.load_on(pod, 0.0) == Load(0.0, 1.0), "nobody knows yet how long a prompt takes"
    gateway.ledger.backlogs.record_first_token(pod, 1000, 1.0)
    tokens = ticket(gateway, request).uncached_tokens
    assert gateway.ledger.load_on(pod, 0.0).tokens == tokens
    assert gateway.ledger.load_on(pod, 0.5).tokens == pytest.approx(tokens - 500)
    gateway.send(0.5, unlike(2, 2000))
    waiting = gateway.ledger.load_on(pod, 0.5).tokens
    assert waiting == pytest.approx(tokens - 500 + ticket(gateway, "r2").uncached_tokens), "the stream counts in whole"
    assert gateway.ledger.load_on(pod, 5.0).tokens == ticket(gateway, "r2").uncached_tokens
    gateway.end(request, 6.0)
    assert gateway.ledger.load_on(pod, 6.0).running == 0


def test_a_copy_is_load_and_is_not_compared() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE, mirror=(CANARY, 100.0))
    teach(gateway, 0.0)
    gateway.ledger.backlogs.record_first_token(gateway.pods[1], 1000, 10.0)
    request, _ = gateway.send(20.0, unlike(99, 4000))
    copied = gateway.ledger.load_on(gateway.pods[1], 20.0)
    assert copied.running == 1 and copied.tokens == pytest.approx(ticket(gateway, request).uncached_tokens, rel=0.2)
    gateway.end(request, 30.0, ttft_us=1e6)
    assert gateway.ledger.load_on(gateway.pods[1], 30.0) == Load(0.0, 0.0)
    assert {piece.revision for piece in adjusted(gateway, 40.0)} == {STABLE}


def test_of_the_prompts_ahead_half_of_the_first_is_computed_and_of_long_ones_more() -> None:
    service_of, typical = service(weights=ONLY_STABLE), TypicalPrompts()
    for tokens in (100.0, 300.0):
        typical.add(KEY, STABLE, 400.0, tokens)
    size_biased = (100.0**2 + 300.0**2) / (100.0 + 300.0)
    assert typical.computed(service_of, STABLE, 2000.0) == pytest.approx(size_biased / 2)
    assert typical.computed(service_of, STABLE, 120.0) == 60.0, "never more than half of all"
    assert typical.computed(service_of, STABLE, 0.0) == 0.0
    assert typical.computed(service_of, CANARY, 2000.0) == pytest.approx(size_biased / 2), "as the reference's"
    assert TypicalPrompts().computed(service_of, STABLE, 500.0) == 250.0


def test_other_gateways_requests_are_load_as_far_as_the_engine_reports_them() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE)
    now = teach(gateway, 0.0)
    typical = ticket(gateway, gateway.send(now, unlike(900))[0]).uncached_tokens
    gateway.end("r51", now)
    page = b"vllm:num_requests_running 6\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"
    gateway.readings.put(gateway.pods[0], page, now)
    own = ticket(gateway, gateway.send(now)[0])
    assert own.at_pick is not None
    assert own.at_pick.load.running == pytest.approx(6)
    assert own.at_pick.load.tokens == pytest.approx(own.uncached_tokens + 2 * typical)
    later = ticket(gateway, gateway.send(now + 60.0)[0])
    assert later.at_pick is not None and later.at_pick.load.running == 0, "the reading is too old"


def test_what_waits_from_other_gateways_is_as_long_as_the_revision_s_own_prompts() -> None:
    """The clients of a canary may send longer prompts. Its queue is then not expected to be over as soon as the stable's."""
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE, canary=CANARY)
    now = teach(gateway, 0.0)
    page = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 3\nvllm:kv_cache_usage_perc 0.5\n"
    for weights, pod, length in ((ONLY_CANARY, gateway.pods[1], 4000), (ONLY_STABLE, gateway.pods[0], 400)):
        gateway.state.put_service(service(weights=weights, canary=CANARY))
        for number in range(60):
            gateway.end(gateway.send(now, unlike(10 * length + number, length))[0], now + 1.0)
            now += 1.1
        gateway.readings.put(pod, page, now)
        own = ticket(gateway, gateway.send(now, unlike(10 * length + 99, length))[0])
        assert own.at_pick is not None
        assert own.at_pick.load.tokens == pytest.approx(4 * own.uncached_tokens, rel=0.1)


@pytest.mark.parametrize("text", [b"NaN", b"+Inf", b"-5", b"1e300"])
def test_an_impossible_reading_is_no_load(text: bytes) -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE)
    now = teach(gateway, 0.0)
    for page in (b"vllm:num_requests_running %s\nvllm:num_requests_waiting 1\n", b"vllm:num_requests_waiting %s\n"):
        gateway.readings.put(gateway.pods[0], page % text, now)
        expected = ticket(gateway, gateway.send(now)[0]).expected
        assert expected is not None and 0.001 <= expected < 10.0


def test_nothing_is_compared_before_the_reference_is_known() -> None:
    gateway = VirtualGateway()
    now = 0.0
    request, _ = gateway.send(now)
    assert ticket(gateway, request).expected is None and ticket(gateway, request).load
    gateway.first_token(request, 0.1, 0.1)
    assert not adjusted(gateway, 10.0)


@pytest.mark.parametrize("share", [10, 50, 90])
def test_a_canary_teaches_nothing(share: int) -> None:
    """It takes ten times as long. Were its times learned, the expectation would follow them, and the canary be hidden."""
    gateway = VirtualGateway(pods=1, weights=((STABLE, 100 - share), (CANARY, share)), canary=CANARY)
    now = 0.0
    for number in range(1500):
        request, pick = gateway.send(now, unlike(number))
        seconds = 0.1 if pick.revision == STABLE else 1.0
        gateway.first_token(request, seconds, now + seconds)
        gateway.end(request, now + seconds + 0.01)
        now += seconds + 0.02
    assert ticket(gateway, gateway.send(now, unlike(9000))[0]).expected == pytest.approx(0.1, rel=0.05)
    pieces = adjusted(gateway, now + 10.0)
    for name, ratio in ((STABLE, 1.0), (CANARY, 10.0)):
        buckets = {bucket for piece in pieces if piece.revision == name for bucket in add(piece, "relative")}
        assert buckets and min(buckets) >= bucket_of(0.93 * ratio) and max(buckets) <= bucket_of(1.07 * ratio)
    assert all(not piece.pods for piece in pieces if piece.revision == CANARY)


def test_a_new_stable_revision_is_measured_by_what_is_known() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE)
    now = teach(gateway, 0.0)
    gateway.state.put_service(service(weights=ONLY_CANARY))
    request, _ = gateway.send(now, unlike(5000))
    assert ticket(gateway, request).expected == pytest.approx(0.1, rel=0.05)
    gateway.end(request, now + 0.1)
    now = teach(gateway, now + 1.0, 4000, seconds=0.3)
    request, _ = gateway.send(now, unlike(6000))
    assert ticket(gateway, request).expected == pytest.approx(0.3, rel=0.1), "it is the reference now, and teaches"


def test_a_retried_request_teaches_nothing_and_is_no_pod_s() -> None:
    gateway = VirtualGateway(weights=ONLY_STABLE)
    now = teach(gateway, 0.0)
    before = sum(total(one) for piece in adjusted(gateway, now + 4) for one in piece.pods.values())
    for number in range(200):
        request, pick = gateway.send(now, unlike(7000 + number))
        if number % 3 == 0:  # the second choice reports the token
            gateway.first_token(request, 5.0, now + 5.0, upstream=pick.choices[1].address)
            gateway.end(request, now + 6.0)
        elif number % 3 == 1:  # the pod failed, and answered the second attempt
            failed = FailedAttempt(request, pick.choices[0].address, frozenset({"UC"}), "")
            record_attempt(failed, gateway.ledger, now)
            gateway.first_token(request, 5.0, now + 5.0)
            gateway.end(request, now + 6.0)
        else:  # only the log line reports it
            gateway.end(request, now + 6.0, ttft_us=5e6, attempts=2, upstream=pick.choices[1].address)
        now += 7.0
    assert ticket(gateway, gateway.send(now, unlike(8000))[0]).expected == pytest.approx(0.1, rel=0.05)
    assert summed(gateway, now + 4, STABLE, "relative") == 200, "clients have waited, whichever pod it was"
    after = sum(total(one) for piece in adjusted(gateway, now + 4) for one in piece.pods.values())
    assert after == before


def test_a_request_shows_while_it_waits_and_when_it_ends_without_a_token() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE)
    begin = 2.0 * (int(teach(gateway, 0.0)) // 2 + 1)
    requests = [gateway.send(begin, unlike(900 + number))[0] for number in range(3)]
    expected = [ticket(gateway, request).expected or 0.0 for request in requests]
    for step in range(1, 5):
        gateway.windows.tick(begin + 2.0 * step)
    gateway.leave(requests[0], begin + 8.5)
    gateway.end(requests[1], begin + 8.5, code=503)
    gateway.end(requests[2], begin + 8.5, ttft_us=8e6)
    pieces = [piece for piece in adjusted(gateway, begin + 20.0) if piece.start >= begin]
    assert [piece.start for piece in pieces] == [begin + 2.0 * step for step in range(5)]
    for step, piece in enumerate(pieces[:4], start=1):
        waiting = sorted(bucket for one in piece.load.values() for bucket in one.waiting)
        assert waiting == sorted({bucket_of(2.0 * step / value) for value in expected})
        assert all(not one.relative and not one.unmeasured for one in piece.load.values())
    last = LoadCounts(*(add(pieces[4], field) for field in ("relative", "waiting", "unmeasured", "ttft")))
    assert last.relative == {bucket_of(8.0 / expected[2]): 1} and last.ttft == {bucket_of(8.0): 1}
    assert total(last.unmeasured) == 2 and set(last.unmeasured) == {bucket_of(8.5 / value) for value in expected[:2]}
    assert not last.waiting


def add(piece: Slice, field: str) -> dict[int, int]:
    result: dict[int, int] = {}
    for one in piece.load.values():
        for bucket, count in getattr(one, field).items():
            result[bucket] = result.get(bucket, 0) + count
    return result


def test_a_lost_request_ends_without_a_measurement() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE)
    now = teach(gateway, 0.0)
    request, _ = gateway.send(now, unlike(900))
    gateway.now = ticket(gateway, request).deadline + 1.0
    finish(gateway.counting.sweep(gateway.state))
    assert summed(gateway, gateway.now + 4.0, STABLE, "unmeasured") == 1


def test_a_forced_request_is_not_compared() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE, canary_headers=(("x-canary", "1"),))
    now = teach(gateway, 0.0)
    forced, pick = gateway.send(now, unlike(900), x_canary="1")
    assert pick.revision == CANARY
    assert ticket(gateway, forced).at_pick is None
    gateway.end(forced, now + 1.0, ttft_us=1e6)
    assert not adjusted(gateway, now + 10.0)
    assert gateway.ledger.load_on(gateway.pods[0], now) == Load(0.0, 0.0)


def test_a_fallback_s_request_is_not_compared() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE)
    now = teach(gateway, 0.0)
    asleep = Service(NAMESPACE, "asleep", fallback=NAME, weights=(("z", 100),))
    gateway.state.put_service(asleep)
    body = b'{"prompt": "hello", "stream": true}'
    pick = gateway.picker.decide(Request("other", "POST", "/team/asleep/v1/completions", {}, body), now)
    assert isinstance(pick, Pick) and pick.fallback == f"{NAMESPACE}/{NAME}"
    opened = ticket(gateway, "other")
    assert opened.fallback and opened.service.name == NAME and opened.at_pick is None


def test_the_same_few_pods_are_measured_one_by_one_by_every_gateway() -> None:
    """Among the pods of the reference revision; a pod's name travels, and the operator has room for all of them."""
    names = numbered(STABLE, 30)
    known = []
    for seed in (1, 2):
        gateway = VirtualGateway(
            seed, pods={STABLE: names if seed == 1 else names[::-1], CANARY: ["one"]}, canary=CANARY
        )
        now = 0.0
        for _ in range(30):
            now = teach(gateway, now, 40)
        pieces = adjusted(gateway, now + 4.0)
        known.append({name for piece in pieces for name in piece.pods})
        counted = sum(total(one) for piece in pieces for one in piece.pods.values())
        assert 0 < counted < summed(gateway, now + 4.0, STABLE, "relative")
    assert known[0] == known[1] and len(known[0]) == MAX_SAMPLED_PODS <= MAX_PODS and known[0] < set(names)


def test_a_service_that_is_gone_is_forgotten() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE)
    now = teach(gateway, 0.0)
    finish(gateway.picker.sweep(now))
    assert ticket(gateway, gateway.send(now, unlike(900))[0]).expected is not None
    known = gateway.state.snapshot.services[KEY]
    gateway.state.remove_service(KEY)
    finish(gateway.picker.sweep(now))
    gateway.state.put_service(replace(known, retries=1))
    assert ticket(gateway, gateway.send(now, unlike(901))[0]).expected is None
