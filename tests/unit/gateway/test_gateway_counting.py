"""Protects what the guard's evidence is: a request counts from its pick on, whatever its client does. A canary that is
silent, whose pods fail, whose streams end with an error or that refuses what the stable accepts is seen; requests that a
client has forced to a revision prove nothing."""

from __future__ import annotations

import pytest
from support.virtual.gateway import CANARY, STABLE, VirtualGateway

from pagefleet_contract.sketch import bucket_of
from pagefleet_contract.strata import LOWER_ENDS, STRATA, stratum
from pagefleet_gateway.measuring.slices import End
from pagefleet_gateway.picking.pick import Pick

Slices = list[dict[str, object]]
TO_CANARY = {"weights": ((CANARY, 100),)}
FORCED = {"weights": ((STABLE, 100),), "canary_headers": (("x-canary", "1"),)}


def pieces(gateway: VirtualGateway, now: float, revision: str = CANARY) -> Slices:
    document = gateway.document(now)["slices"]
    assert isinstance(document, list)
    return [piece for piece in document if piece["revision"] == revision]


def summed(gateway: VirtualGateway, name: str, now: float = 1000.0, revision: str = CANARY) -> int:
    return sum(int(str(piece.get(name, 0))) for piece in pieces(gateway, now, revision))


def ages(gateway: VirtualGateway, name: str, now: float = 1000.0, revision: str = CANARY) -> dict[int, int]:
    result: dict[int, int] = {}
    for piece in pieces(gateway, now, revision):
        histogram = piece.get(name, {})
        assert isinstance(histogram, dict)
        for bucket, count in histogram.items():
            result[int(bucket)] = result.get(int(bucket), 0) + count
    return result


def test_a_silent_canary_shows_while_its_client_waits_and_when_it_leaves() -> None:
    gateway = VirtualGateway(**TO_CANARY)
    request, _ = gateway.send(0.5)
    for tick in range(1, 30):
        gateway.windows.tick(2.0 * tick)
    waiting = [list(piece["waiting"]) for piece in pieces(gateway, 58.0)]  # type: ignore[call-overload]
    assert waiting == [[str(bucket_of(2.0 * tick - 0.5))] for tick in range(1, 30)], "every slice shows its age"
    gateway.leave(request, 60.5)
    assert ages(gateway, "leftWaiting") == {bucket_of(60.0): 1}
    assert summed(gateway, "requests") == summed(gateway, "errors") == 0
    assert "waiting" not in pieces(gateway, 1000.0)[-1]


def test_a_first_token_counts_when_it_passes_and_not_again_at_the_end() -> None:
    gateway = VirtualGateway(**TO_CANARY)
    request, _ = gateway.send(0.0)
    gateway.first_token(request, 45.0, 45.0)
    gateway.first_token(request, 46.0, 46.0)
    assert ages(gateway, "ttft", 47.9) == {bucket_of(45.0): 1}
    gateway.end(request, 50.0, ttft_us=44e6)
    assert ages(gateway, "ttft") == {bucket_of(45.0): 1}
    assert summed(gateway, "requests") == 1
    gateway.first_token("unknown", 1.0, 51.0)


def test_a_client_that_leaves_after_the_first_token_keeps_its_ttft_in_the_count() -> None:
    gateway = VirtualGateway(**TO_CANARY)
    told, _ = gateway.send(0.0)
    gateway.first_token(told, 45.0, 45.0)
    gateway.leave(told, 46.0)
    untold, _ = gateway.send(50.0)
    gateway.end(untold, 96.0, code=200, flags="DC", ttft_us=45e6)
    assert ages(gateway, "ttft") == {bucket_of(45.0): 2}
    assert ages(gateway, "leftRunning") == {bucket_of(46.0): 2}
    assert summed(gateway, "requests") == 0


def test_without_a_message_the_end_counts_the_first_token() -> None:
    gateway = VirtualGateway(**TO_CANARY)
    request, _ = gateway.send(0.0)
    gateway.end(request, 1.0, ttft_us=0.25e6)
    assert ages(gateway, "ttft") == {bucket_of(0.25): 1}


def test_the_time_in_the_gateway_s_queue_is_no_latency() -> None:
    gateway = VirtualGateway(**TO_CANARY)
    request, _ = gateway.send(10.0)
    ticket = gateway.ledger.ticket(request)
    assert ticket is not None
    object.__setattr__(ticket, "held_seconds", 4.0)
    gateway.first_token(request, 4.5, 10.5)
    assert ages(gateway, "ttft") == {bucket_of(0.5): 1}


def test_a_failed_attempt_is_an_error_of_its_pod_s_revision_although_another_pod_answers() -> None:
    gateway = VirtualGateway(**TO_CANARY)
    request, pick = gateway.send(0.0)
    assert {pod.revision for pod in pick.choices[:2]} == {CANARY}
    gateway.end(request, 1.0, attempts=2, upstream=pick.choices[1].address, ttft_us=0.5e6)
    assert (summed(gateway, "requests"), summed(gateway, "errors"), summed(gateway, "retried")) == (2, 1, 1)
    assert ages(gateway, "ttft") == {bucket_of(0.5): 1}


def test_a_revision_that_another_had_to_answer_for_has_failed_and_the_other_gets_no_latency() -> None:
    gateway = VirtualGateway(pods=1, weights=((CANARY, 50), (STABLE, 50)), retries=1)
    request, pick = sent_to_canary(gateway)
    assert [pod.revision for pod in pick.choices] == [CANARY, STABLE]
    ended = gateway.end(request, 3.0, attempts=2, upstream=pick.choices[1].address, ttft_us=3e6)
    assert (ended.revision, ended.outcome.end) == (STABLE, End.ELSEWHERE)
    assert (summed(gateway, "requests"), summed(gateway, "errors")) == (1, 1)
    assert not ages(gateway, "ttft") and not ages(gateway, "ttft", revision=STABLE)
    assert ages(gateway, "unmeasuredWaiting") == {bucket_of(3.0): 1}
    assert summed(gateway, "errors", revision=STABLE) == 0


def sent_to_canary(gateway: VirtualGateway) -> tuple[str, Pick]:
    """Send requests at 0 s until one goes to the canary, and end the others."""
    request, pick = gateway.send(0.0)
    while pick.revision != CANARY:
        gateway.end(request, 0.0)
        request, pick = gateway.send(0.0)
    return request, pick


@pytest.mark.parametrize("told", [True, False])
def test_a_client_that_leaves_the_answer_of_another_revision_excuses_none_and_times_none(told: bool) -> None:
    """`told`: a front has reported the first token before the end."""
    gateway = VirtualGateway(pods=1, weights=((CANARY, 50), (STABLE, 50)), retries=1)
    request, pick = sent_to_canary(gateway)
    other = pick.choices[1].address
    if told:
        gateway.first_token(request, 2.0, 2.0, upstream=other)
    ended = gateway.end(request, 3.0, code=200, flags="DC", attempts=2, upstream=other, ttft_us=2e6)
    assert (ended.revision, ended.outcome.end) == (STABLE, End.ELSEWHERE)
    assert not ages(gateway, "ttft") and not ages(gateway, "ttft", revision=STABLE)
    assert ages(gateway, "unmeasuredWaiting") == {bucket_of(3.0): 1}


def test_a_client_that_leaves_before_another_revision_answers_has_left_the_picked_one() -> None:
    gateway = VirtualGateway(pods=1, weights=((CANARY, 50), (STABLE, 50)), retries=1)
    request, pick = sent_to_canary(gateway)
    ended = gateway.end(request, 3.0, code=0, flags="DC", attempts=2, upstream=pick.choices[1].address)
    assert ended.outcome.end is End.LEFT and ages(gateway, "leftWaiting") == {bucket_of(3.0): 1}


@pytest.mark.parametrize(
    ("fields", "end", "counts"),
    [
        ({}, End.ANSWERED, {"requests": 1}),
        ({"code": 500}, End.FAILED, {"requests": 1, "errors": 1}),
        ({"flags": "UPE"}, End.FAILED, {"requests": 1, "errors": 1}),
        ({"code": 504, "flags": "UT"}, End.FAILED, {"requests": 1, "errors": 1, "timeouts": 1}),
        ({"flags": "SI"}, End.FAILED, {"requests": 1, "errors": 1, "timeouts": 1}),
        ({"error": "engine_died"}, End.FAILED, {"requests": 1, "errors": 1}),
        ({"error": "engine_died", "flags": "DC"}, End.FAILED, {"requests": 1, "errors": 1}),
        ({"code": 400}, End.REFUSED, {"clientErrors": 1}),
        ({"code": 429}, End.REFUSED, {"clientErrors": 1}),
        ({"code": 0, "flags": "DC"}, End.LEFT, {}),
        ({"flags": "DR"}, End.LEFT, {}),
    ],
)
def test_what_a_log_line_counts_as(fields: dict[str, object], end: End, counts: dict[str, int]) -> None:
    gateway = VirtualGateway(**TO_CANARY)
    request, _ = gateway.send(0.0)
    assert gateway.end(request, 1.0, **fields).outcome.end is end
    names = ("requests", "errors", "retried", "clientErrors", "timeouts", "fallbacks", "forced")
    assert {name: count for name in names if (count := summed(gateway, name))} == counts
    assert summed(gateway, "started") == 1


def test_requests_forced_by_a_header_are_counted_apart() -> None:
    gateway = VirtualGateway(**FORCED)
    for number in range(5):
        request, pick = gateway.send(float(number), x_canary="1")
        assert pick.revision == CANARY
        gateway.first_token(request, 0.2, number + 0.2)
        gateway.end(request, number + 0.5, code=500 if number < 2 else 200)
    waiting, _ = gateway.send(6.0, x_canary="1")
    gateway.windows.tick(100.0)
    assert (summed(gateway, "forced"), summed(gateway, "forcedErrors")) == (5, 2)
    for name in ("started", "requests", "errors"):
        assert summed(gateway, name) == 0
    for name in ("ttft", "e2e", "waiting", "running"):
        assert not ages(gateway, name)
    gateway.leave(waiting, 100.5)
    assert not ages(gateway, "leftWaiting", 1000.0)


def test_an_answer_for_another_service_is_counted_as_a_fallback_too() -> None:
    gateway = VirtualGateway(**TO_CANARY)
    request, _ = gateway.send(0.0)
    ticket = gateway.ledger.ticket(request)
    assert ticket is not None
    object.__setattr__(ticket, "fallback", True)
    gateway.end(request, 1.0)
    assert (summed(gateway, "requests"), summed(gateway, "fallbacks")) == (1, 1)


def test_an_answer_that_does_not_stream_waits_for_no_first_token() -> None:
    gateway = VirtualGateway(**TO_CANARY)
    request, _ = gateway.send(0.0, stream=False)
    gateway.windows.tick(3.0)
    assert ages(gateway, "running", 3.0) == {bucket_of(3.0): 1}
    assert not ages(gateway, "waiting", 3.0)
    gateway.first_token(request, 3.4, 3.4)  # Envoy reports the first byte of every answer
    gateway.end(request, 3.5)
    assert (ages(gateway, "ttft"), ages(gateway, "e2e")) == ({}, {bucket_of(3.5): 1})


def test_prompts_of_four_times_the_work_are_in_another_stratum_and_the_number_of_strata_is_bounded() -> None:
    for tokens in range(64, 60_000, 7):
        assert stratum(tokens) != stratum(4 * tokens)
    assert [stratum(low) for low in LOWER_ENDS] == list(STRATA) and len(set(STRATA)) == 9
    assert [stratum(low - 1) for low in LOWER_ENDS[1:]] == list(STRATA[:-1])
    assert stratum(-1) == stratum(0) and stratum(1e18) == STRATA[-1]
    assert not {"s", "m", "l", ""} & set(STRATA), "the names of older gateways mean something else"


def test_a_cached_prefix_is_no_work() -> None:
    gateway = VirtualGateway(pods=1, **TO_CANARY)
    long = "y" * 16_384
    first, _ = gateway.send(0.0, long)
    again, _ = gateway.send(0.1, long)
    strata = [ticket.stratum for name in (first, again) if (ticket := gateway.ledger.ticket(name))]
    assert strata == [stratum(4096), stratum(0)]
