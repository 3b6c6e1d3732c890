"""Protects the fleet from a request that ends engines: after one end it is sent to one pod and no further, after two to none
for a while. A request that was only near is not held back once it was answered, and one that many send keeps its retries."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.measuring.access_log import FailedAttempt, LogLine, complete, parse, record_attempt
from pagefleet_gateway.picking.deaths import (
    ANSWER_VOUCHES_SECONDS,
    DEATHS_TO_REFUSE,
    FIRST_REFUSAL_SECONDS,
    MAX_RECORDS,
    MAX_REFUSAL_SECONDS,
    SUSPECT_SECONDS,
    TOGETHER_SECONDS,
    Deaths,
    content,
)
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.routing import Refusal

KEY = ("team", "chat")
POISON, OTHER = content(KEY, b"poison"), content(KEY, b"other")


def test_a_request_is_known_by_its_service_and_its_body() -> None:
    assert content(KEY, b"") is None
    assert content(KEY, b"poison") == POISON
    assert len({POISON, OTHER, content(("team", "other"), b"poison")}) == 3


def test_two_ends_hold_a_request_back_and_an_answer_clears_it() -> None:
    deaths = Deaths()
    assert (deaths.count(POISON), deaths.wait(POISON, 0.0)) == (0, 0.0)
    deaths.record_death(POISON, "a", 0.0)
    assert (deaths.count(POISON), deaths.wait(POISON, 0.0)) == (1, 0.0)
    deaths.record_death(POISON, "b", 1.0)
    assert (deaths.count(POISON), deaths.wait(POISON, 1.0)) == (2, FIRST_REFUSAL_SECONDS)
    assert (deaths.count(OTHER), deaths.wait(OTHER, 1.0)) == (0, 0.0)
    deaths.record_answer(POISON, 2.0)
    assert (deaths.count(POISON), deaths.wait(POISON, 1.0)) == (0, 0.0)
    deaths.record_death(None, "a", 0.0)
    assert deaths.count(None) == 0 and deaths.wait(None, 0.0) == 0.0


def test_all_that_one_end_cuts_counts_once_and_a_pod_s_next_end_again() -> None:
    deaths = Deaths()
    for now in (0.0, 0.1, 4.0):
        deaths.record_death(POISON, "a", now)
    assert deaths.count(POISON) == 1
    deaths.record_death(POISON, "a", 30.0)  # its engine was started again
    assert deaths.count(POISON) == 2


def test_one_try_passes_after_each_time_and_each_end_doubles_it() -> None:
    deaths, now, waits = Deaths(), 0.0, []
    for _ in range(DEATHS_TO_REFUSE):
        deaths.record_death(POISON, "a", now)
        now += 10
    for _ in range(9):
        until = now + deaths.wait(POISON, now)
        waits.append(until)
        now = until
        assert deaths.wait(POISON, now) == 0.0, "one"
        assert deaths.wait(POISON, now) > 0.0, "and no other beside it"
        now += 10
        deaths.record_death(POISON, "a", now)
        assert deaths.wait(POISON, now) <= MAX_REFUSAL_SECONDS
    lengths = [round(later - earlier) for earlier, later in itertools.pairwise(waits)]
    assert lengths[:3] == [
        2 * FIRST_REFUSAL_SECONDS + 10,
        4 * FIRST_REFUSAL_SECONDS + 10,
        8 * FIRST_REFUSAL_SECONDS + 10,
    ]
    assert lengths[-1] == MAX_REFUSAL_SECONDS + 10


def test_records_are_bounded_in_number_and_time() -> None:
    deaths = Deaths()
    for number in range(MAX_RECORDS + 5):
        deaths.record_death(content(KEY, b"%d" % number), "a", float(number))
    assert deaths.count(content(KEY, b"4")) == 0 and deaths.count(content(KEY, b"5")) == 1
    finish(deaths.sweep(SUSPECT_SECONDS + 6.0))
    assert deaths.count(content(KEY, b"5")) == 0 and deaths.count(content(KEY, b"%d" % MAX_RECORDS)) == 1
    finish(deaths.sweep(1e9))
    assert deaths.count(content(KEY, b"%d" % MAX_RECORDS)) == 0


def test_a_content_that_was_answered_lately_has_one_death_to_spare() -> None:
    deaths = Deaths()
    deaths.record_answer(POISON, 0.0)
    deaths.record_death(POISON, "a", ANSWER_VOUCHES_SECONDS - 1.0)
    deaths.record_death(OTHER, "a", ANSWER_VOUCHES_SECONDS - 1.0)
    assert (deaths.count(POISON), deaths.suspected(POISON), deaths.suspected(OTHER)) == (1, False, True)
    now = ANSWER_VOUCHES_SECONDS + 10.0
    deaths.record_death(POISON, "b", now)
    assert deaths.suspected(POISON) and deaths.wait(POISON, now) == 0.0, "as another content after one death"
    deaths.record_death(POISON, "c", now)
    assert deaths.wait(POISON, now) == FIRST_REFUSAL_SECONDS
    finish(deaths.sweep(now))
    deaths.record_answer(OTHER, now)
    deaths.record_death(OTHER, "c", now + ANSWER_VOUCHES_SECONDS)
    assert deaths.suspected(OTHER), "its answer is too long ago"


def test_what_one_death_cuts_after_an_answer_is_no_other_death() -> None:
    deaths = Deaths()
    deaths.record_death(POISON, "a", 0.0)
    deaths.record_answer(POISON, 1.0)
    deaths.record_death(POISON, "a", 2.0)
    assert not deaths.suspected(POISON) and deaths.count(POISON) == 0
    deaths.record_death(POISON, "a", 60.0)
    assert deaths.count(POISON) == 1


def test_a_body_that_was_in_several_engines_of_a_lost_node_has_seen_one_death() -> None:
    deaths = Deaths()
    for number in range(4):  # four clients had sent it before, each to another pod
        deaths.record_death(POISON, str(number), 10.0 + number, sent=1.0 + number)
    assert (deaths.count(POISON), deaths.suspected(POISON), deaths.wait(POISON, 14.0)) == (1, True, 0.0)
    deaths.record_death(
        POISON, "later", 10.0 + TOGETHER_SECONDS, sent=2.0
    )  # another death, of something else or of the body
    assert deaths.count(POISON) == 2 and deaths.wait(POISON, 15.0) == FIRST_REFUSAL_SECONDS


def test_a_body_that_was_sent_on_and_ends_the_next_engine_is_refused_however_soon() -> None:
    deaths = Deaths()
    deaths.record_death(POISON, "a", 10.0, sent=9.0)
    deaths.record_death(OTHER, "a", 10.0, sent=9.0)
    deaths.record_death(POISON, "b", 10.1, sent=10.0)
    assert deaths.wait(POISON, 10.1) > 50.0 and deaths.wait(OTHER, 10.1) == 0.0


@pytest.mark.parametrize("first", [True, False])
def test_a_retry_to_another_engine_of_a_lost_node_speaks_against_no_body(first: bool) -> None:
    """An engine without the body died too, and the gateway learns of it before or after."""
    deaths = Deaths()
    for known, uid, at, sent in [(OTHER, "c", 10.0, 1.0)] * first + [
        (POISON, "a", 10.0, 1.0),
        (POISON, "b", 10.1, 10.0),
    ]:
        deaths.record_death(known, uid, at, sent)
    if not first:
        assert deaths.count(POISON) == 2
        deaths.record_death(None, "c", 10.2, 1.0)
    assert deaths.count(POISON) == 1 and deaths.wait(POISON, 10.3) == 0.0
    deaths.record_death(POISON, "d", 10.0 + TOGETHER_SECONDS)
    assert deaths.count(POISON) == 2, "other deaths excuse it for these seconds only"
    copied = Deaths()
    copied.record_death(POISON, "a", 10.0, 1.0, copy="m")
    copied.record_death(OTHER, "m", 10.0, 1.0)  # the mirrored copy ended this one
    copied.record_death(POISON, "b", 10.1, 10.0)
    assert copied.count(POISON) == 2


def test_two_deaths_far_apart_are_no_evidence_and_a_refusal_is_remembered_longer() -> None:
    deaths = Deaths()
    deaths.record_death(POISON, "a", 0.0)
    deaths.record_death(POISON, "b", SUSPECT_SECONDS + 1.0)  # without a sweep between
    assert deaths.count(POISON) == 1
    deaths.record_death(POISON, "c", SUSPECT_SECONDS + 10.0)
    finish(deaths.sweep(3 * SUSPECT_SECONDS))
    assert deaths.count(POISON) == 2
    deaths.record_death(OTHER, "a", 0.0)
    finish(deaths.sweep(SUSPECT_SECONDS + 1.0))
    assert deaths.count(OTHER) == 0


def test_answers_are_bounded_in_number_and_time() -> None:
    deaths = Deaths()
    for number in range(MAX_RECORDS + 1):
        deaths.record_answer(content(KEY, b"%d" % number), float(number))
    assert len(deaths._answered) == MAX_RECORDS
    finish(deaths.sweep(MAX_RECORDS + ANSWER_VOUCHES_SECONDS - 1.0))
    assert len(deaths._answered) == 2
    deaths.record_death(content(KEY, b"1"), "a", MAX_RECORDS + 0.0)
    deaths.record_answer(content(KEY, b"1"), MAX_RECORDS + 1.0)
    finish(deaths.sweep(MAX_RECORDS + 7.0))
    assert not deaths._records


class World:
    """Four pods and a mirror, and what Envoy reports."""

    def __init__(self, pods: int = 4) -> None:
        own = [Pod(str(one), f"p{one}", *KEY, "a", f"10.0.0.{one}:8000") for one in range(pods)]
        copies = Pod("m", "pm", *KEY, "m", "10.0.0.99:8000")
        self.state, self.ledger = State(), Ledger()
        self.state.replace_pods([*own, copies])
        self.state.confirm([*own, copies])
        self.state.put_service(Service(*KEY, "smol", (("a", 100),), mirror=("m", 100.0)))
        self.picker = Picker(self.state, self.ledger, random.Random(7))
        self.count = 0

    def ask(self, body: object, now: float = 0.0) -> Pick | Refusal:
        self.count += 1
        request = Request(f"r{self.count}", "POST", "/team/chat/v1/completions", {}, json.dumps(body).encode())
        return self.picker.decide(request, now)

    def cut(self, pick: Pick, attempt: int, now: float = 0.0, flags: str = "UC", error: str | None = None) -> None:
        line = {"id": f"r{self.count}", "attempt": pick.choices[attempt].address, "flags": flags, "error": error}
        parsed = parse(json.dumps(line).encode())
        assert isinstance(parsed, FailedAttempt)
        record_attempt(parsed, self.ledger, now)

    def end(self, pick: Pick, code: int, attempts: int = 1, flags: str = "-", error: str | None = None) -> None:
        line = {
            "id": f"r{self.count}", "start": "1.0", "code": code, "flags": flags, "duration_us": 1, "attempts": attempts,
            "upstream": pick.choices[attempts - 1].address, "error": error,
        }  # fmt: skip
        parsed = parse(json.dumps(line).encode())
        assert isinstance(parsed, LogLine)
        complete(parsed, self.ledger, 0.0)


def picked(answer: Pick | Refusal) -> Pick:
    assert isinstance(answer, Pick), answer
    return answer


BODY = {"model": "smol", "prompt": "poison"}


@pytest.mark.parametrize(("flags", "error"), [("UC", None), ("UPE", None), ("-", "engine_died")])
def test_after_one_end_one_pod_after_two_none(flags: str, error: str | None) -> None:
    world = World()
    first = picked(world.ask(BODY))
    assert (first.retries, len(first.choices), first.mirror is not None) == (2, 3, True)
    world.cut(first, 0, flags=flags, error=error)
    world.end(first, 503, flags="UC")
    second = picked(world.ask(BODY))
    assert (second.retries, len(second.choices), second.mirror) == (0, 1, None)
    other = picked(world.ask({**BODY, "prompt": "else"}))
    assert (other.retries, len(other.choices)) == (2, 3)
    world.end(other, 200)
    again = picked(world.ask(BODY))
    world.cut(again, 0, now=6.0, flags=flags, error=error)
    world.end(again, 503, flags="UC")
    refused = world.ask(BODY, now=7.0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.service) == (422, "request_ends_engines", KEY)
    assert "2 engines of team/chat died" in refused.message and "59 s" in refused.message
    assert len(world.ledger) == 1  # the one that has not ended
    assert isinstance(world.ask({**BODY, "prompt": "else"}, now=7.0), Pick)
    assert picked(world.ask(BODY, now=67.0)).retries == 0


def test_retries_of_one_request_that_all_end_engines_are_enough() -> None:
    world = World()
    pick = picked(world.ask(BODY))
    for attempt in range(3):
        world.cut(pick, attempt)
    world.end(pick, 503, attempts=3, flags="URX,UC")
    assert isinstance(world.ask(BODY), Refusal)


def test_who_was_only_near_goes_on_as_before_once_answered() -> None:
    world = World()
    pick = picked(world.ask(BODY))
    world.cut(pick, 0)
    world.cut(pick, 1)
    world.end(pick, 200, attempts=3)
    assert picked(world.ask(BODY)).retries == 2


def test_many_requests_with_one_body_keep_their_retries_after_one_death() -> None:
    world = World()
    world.end(picked(world.ask(BODY)), 200)
    waiting = picked(world.ask(BODY))
    world.cut(waiting, 0)
    others = [picked(world.ask(BODY)) for _ in range(3)]
    assert [(pick.retries, len(pick.choices)) for pick in others] == [(2, 3)] * 3
    world.cut(others[-1], 0)
    assert picked(world.ask(BODY)).retries == 0, "two engines died since its last answer"


def test_a_new_body_that_many_send_is_answered_after_a_node_with_several_of_its_engines_was_lost() -> None:
    world, taken = World(pods=6), []
    while len({pick.choices[0].uid for _, pick in taken}) < 3:
        pick = picked(world.ask(BODY, now=1.0))
        taken.append((world.count, pick))
    for number, pick in taken:
        world.count = number
        world.cut(pick, 0, now=10.0)
        world.end(pick, 503)
    world.count = 1000
    assert isinstance(world.ask(BODY, now=10.5), Pick)


def test_a_pod_whose_engine_died_is_ejected_before_the_retry_has_ended() -> None:
    world = World()
    first = picked(world.ask(BODY))
    world.cut(first, 0)
    dead = first.choices[0]
    assert world.ledger.ejected(dead, 0.1)
    for number in range(20):
        assert picked(world.ask({**BODY, "prompt": f"other {number}"}, 0.1)).choices[0] != dead
    ended = World()
    pick = picked(ended.ask(BODY))
    ended.cut(pick, 0, now=-60.0)
    ended.end(pick, 200, attempts=2)  # a minute later: the pod is back, and the same death does not count again
    assert not ended.ledger.outliers.count(0.0)


@pytest.mark.parametrize(
    ("code", "flags", "error"),
    [
        (200, "UPE", None),
        (200, "DC", None),
        (200, "-", "engine_died"),
        (429, "-", None),
        (503, "UF", None),
        (0, "DC", None),
    ],
)
def test_only_a_whole_answer_clears_a_request(code: int, flags: str, error: str | None) -> None:
    world = World()
    pick = picked(world.ask(BODY))
    world.cut(pick, 0)
    world.end(pick, code, flags=flags, error=error)
    assert picked(world.ask(BODY)).retries == 0


@pytest.mark.parametrize(
    ("flags", "error"), [("UF", None), ("-", None), ("UT", None), ("-", "not_ready"), ("DC", None)]
)
def test_what_is_no_engine_s_end_is_none(flags: str, error: str | None) -> None:
    world = World()
    pick = picked(world.ask(BODY))
    world.cut(pick, 0, flags=flags, error=error)
    world.cut(Pick("a", (Pod("x", "x", *KEY, "a", "10.9.9.9:1"),), None, 0), 0)  # none of its pods
    world.end(pick, 503)
    assert picked(world.ask(BODY)).retries == 2
    record_attempt(FailedAttempt("unknown", "10.0.0.1:8000", frozenset({"UC"}), ""), world.ledger, 0.0)
