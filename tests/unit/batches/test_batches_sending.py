"""Protects when a line is sent: more at a time while the gateway takes them and fewer at once when it does not, clients in turns,
and which answers mean "again" and which are the line's end."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest

from pagefleet_batches.jobs.batch import Usage
from pagefleet_batches.jobs.lines import Line
from pagefleet_batches.sending.answers import MAX_TRIES, Again, Answer, Over, Why, judge
from pagefleet_batches.sending.concurrency import Concurrency
from pagefleet_batches.sending.gateway import _retry_after
from pagefleet_batches.sending.lanes import MOST_AGAIN, Lane, Pending, Source
from pagefleet_batches.storage.journal import Row


def source(client: str, count: int, name: str = "") -> Source:
    return Source(
        name or client, client, (Line(number, f"{client}{number}", "m", b"{}") for number in range(1, count + 1))
    )


def taken(lane: Lane, now: float, count: int) -> list[str]:
    names = []
    for _ in range(count):
        chosen = lane.next(now)
        if chosen is None:
            break
        names.append(chosen[1].line.custom_id)
    return names


def wide(*sources: Source) -> Lane:
    return Lane(Concurrency(100, limit=100.0), list(sources))


def test_the_limit_doubles_each_round_until_the_first_refusal_and_grows_by_one_after_it() -> None:
    limit = Concurrency(1000)
    for expected in (1, 2, 4, 8, 16):
        assert int(limit.limit) == expected
        for _ in range(expected):
            limit.succeed(int(limit.limit))
    limit.refuse(sent_at=10.0, retry_after=1.0, now=10.5)
    assert limit.limit == 16 and not limit.room(0, 11.4) and limit.room(15, 11.5) and not limit.room(16, 11.5)
    for _ in range(17):
        limit.succeed(int(limit.limit))
    assert int(limit.limit) == 17


def test_refusals_of_one_round_halve_the_limit_once_and_never_below_one() -> None:
    limit = Concurrency(64, limit=64.0)
    for _ in range(64):
        limit.refuse(sent_at=1.0, retry_after=1.0, now=2.0)
    assert limit.limit == 32
    for now in range(10, 30):
        limit.refuse(sent_at=float(now), retry_after=1.0, now=float(now))
    assert limit.limit == 1 and limit.room(0, 40.0) and not limit.room(1, 40.0)


def test_a_limit_that_is_not_used_does_not_grow_and_none_grows_beyond_the_most() -> None:
    limit = Concurrency(4, limit=4.0)
    limit.succeed(2)
    assert limit.limit == 4
    limit.succeed(4)
    assert limit.limit == 4


def test_clients_take_turns_and_a_clients_batches_come_one_after_the_other() -> None:
    lane = wide(source("a", 3, "a1"), source("a", 3, "a2"), source("b", 2))
    assert taken(lane, 0.0, 20) == ["a1", "b1", "a2", "b2", "a3", "a1", "a2", "a3"]
    assert lane.next(0.0) is None and lane.in_flight == 8


def test_a_client_over_its_quota_waits_and_others_do_not() -> None:
    a, b = source("a", 2), source("b", 3)
    lane = wide(a, b)
    chosen = lane.next(0.0)
    assert chosen is not None and chosen[0] is a
    lane.repeat(a, chosen[1], Again(Why.QUOTA, 7.0), 0.0, 0.0)
    lane.left(a)
    assert taken(lane, 6.9, 20) == ["b1", "b2", "b3"]
    assert lane.wait_seconds(6.9) == pytest.approx(0.1)
    assert taken(lane, 7.0, 20) == ["a1", "a2"]  # the line that was refused first


def test_a_refusal_stops_the_lane_for_the_time_that_it_names() -> None:
    a = source("a", 5)
    lane = Lane(Concurrency(100, limit=4.0), [a])
    sent = [lane.next(0.0) for _ in range(4)]
    assert lane.next(0.0) is None and lane.wait_seconds(0.0) is None  # only an answer makes room
    for chosen in sent:
        assert chosen is not None
        lane.repeat(a, chosen[1], Again(Why.BUSY, 3.0), 0.0, 1.0)
        lane.left(a)
    assert lane.wait_seconds(1.0) == 3.0 and lane.next(3.9) is None
    assert taken(lane, 4.0, 20) == ["a1", "a2"] and not a.done


def test_a_source_is_done_when_each_line_was_answered() -> None:
    a = source("a", 1)
    lane = wide(a)
    chosen = lane.next(0.0)
    assert chosen is not None and lane.next(0.0) is None and a.read and not a.done
    lane.repeat(a, chosen[1], Again(Why.FAILED, 2.0), 0.0, 0.0)
    lane.left(a)
    assert not a.done and lane.next(1.9) is None and lane.wait_seconds(0.5) == 1.5
    chosen = lane.next(2.0)
    assert chosen is not None and chosen[1] == Pending(2.0, 1, chosen[1].line, 1) and chosen[1].tries == 1
    lane.left(a)
    assert a.done and lane.wait_seconds(2.0) is None


def test_lines_that_a_server_fails_are_not_all_in_memory_until_their_next_try() -> None:
    a = source("a", 2000)
    lane, sent = Lane(Concurrency(100, limit=4.0), [a]), 0
    while (chosen := lane.next(0.0)) is not None:
        sent += 1
        lane.repeat(a, chosen[1], Again(Why.FAILED, 300.0), 0.0, 0.0)
        lane.left(a)
    assert sent == len(a.again) == MOST_AGAIN and lane.wait_seconds(0.0) == 300.0 and not a.done
    ended = 0
    while (chosen := lane.next(300.0)) is not None:
        ended += 1
        lane.left(a)
    assert ended == 2000 and a.done


def error(code: str) -> bytes:
    return json.dumps({"error": {"message": "no", "code": code}}).encode()


@pytest.mark.parametrize(
    ("answer", "own_key", "expected"),
    [
        (Answer(429, error("no_idle_capacity"), 1.0), True, Again(Why.BUSY, 1.0)),
        (Answer(429, b"busy"), True, Again(Why.BUSY, 1.0)),
        (Answer(503, error("no_ready_pod"), 5.0), True, Again(Why.BUSY, 5.0)),
        (Answer(0), True, Again(Why.BUSY, 1.0)),
        (Answer(503, b"", 1e9), True, Again(Why.BUSY, 300.0)),
        (Answer(429, error("rate_limit_exceeded"), 12.0), True, Again(Why.QUOTA, 12.0)),
        (Answer(401, error("invalid_api_key")), True, Again(Why.KEY, 30.0)),
        (Answer(500, error("x")), True, Again(Why.FAILED, 2.0)),
        (Answer(504, error("x")), True, Again(Why.FAILED, 2.0)),
        (Answer(200, b"<html>"), True, Again(Why.FAILED, 2.0)),
        (Answer(403, error("client_unknown")), True, Again(Why.FAILED, 30.0)),
    ],
)
def test_these_answers_mean_again(answer: Answer, own_key: bool, expected: Again) -> None:
    assert judge(answer, "id", "a", 1, own_key) == expected


@pytest.mark.parametrize(
    ("answer", "tries"),
    [
        (Answer(400, error("x")), 1),
        (Answer(401, error("invalid_api_key")), 1),
        (Answer(403, error("service_not_allowed")), 1),
        (Answer(403, error("client_unknown")), MAX_TRIES),
        (Answer(404, error("model_not_found")), 1),
        (Answer(422, error("request_ends_engines")), 1),
        (Answer(500, error("x")), MAX_TRIES),
        (Answer(502, b"<html>"), MAX_TRIES),
    ],
)
def test_these_answers_end_a_line_in_the_error_file(answer: Answer, tries: int) -> None:
    over = judge(answer, "id", "a", tries, own_key=False)
    assert isinstance(over, Over) and not over.ok
    record = json.loads(msgspec.json.encode(over.record))
    assert (record["custom_id"], record["response"]["status_code"]) == ("a", answer.status)
    assert "message" in record["response"]["body"]["error"] and record["error"] is None


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(5, 4, 3, 0),
        ),
        (
            {"input_tokens": 5, "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 2}},
            Usage(5, 0, 3, 2),
        ),
        ({"prompt_tokens": 5, "prompt_tokens_details": None}, Usage(5)),
        ({"prompt_tokens": "5", "completion_tokens": True}, Usage()),
        (None, Usage()),
    ],
)
def test_an_answer_is_kept_as_it_came_with_its_tokens(usage: object, expected: Usage) -> None:
    body = json.dumps({"id": "c", "number": 0.1, "usage": usage}).encode()
    over = judge(Answer(200, body, request_id="r"), "id", "a", 1, own_key=True)
    assert isinstance(over, Over) and over.ok and over.usage == expected
    assert body in msgspec.json.encode(over.record)
    several = judge(Answer(200, body.replace(b",", b",\n")), "id", "a", 1, own_key=True)
    assert isinstance(several, Over) and b"\n" not in msgspec.json.encode(several.record)


SPENT = b'{"error":{"message":"m","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}'


def test_a_client_whose_budget_is_spent_stops_nobody_else() -> None:
    def lines(client: str) -> Iterator[Line]:
        return iter([Line(number, f"{client}{number}", "m", b"{}") for number in range(1, 4)])

    lane = Lane(Concurrency(100, limit=100.0), [Source(client, client, lines(client)) for client in ("a", "b")])
    taken = lane.next(0.0)
    assert taken is not None
    source, pending = taken
    again = judge(Answer(429, SPENT, retry_after=2_000_000.0), "l", "a1", 1, True)
    assert isinstance(again, Again)
    lane.repeat(source, pending, again, 0.0, 0.1)
    lane.left(source)
    found = lane.next(0.2)
    assert (source.client, found is not None and found[0].client) == ("a", "b")


@pytest.mark.parametrize(
    "text",
    [
        "nan", "inf", "-inf", "Mon, 01 Jan 2024 00:00:00 +99999999999999999999999999",
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "later",
    ],
)  # fmt: skip
def test_a_retry_after_that_is_no_time_is_none(text: str) -> None:
    assert _retry_after(text) is None


@pytest.mark.parametrize("status", [200, 400])
def test_every_answer_that_is_kept_can_be_read_again(status: int) -> None:
    """JSON readers end at a depth that also counts their callers, and the row of an answer is deeper than the answer."""
    for depth in range(850, 1000):
        over = judge(Answer(status, b'{"a":' + b"[" * depth + b"]" * depth + b"}"), "id", "a", MAX_TRIES, own_key=False)
        assert isinstance(over, Over)
        row = msgspec.json.encode(Row(1, over.ok, msgspec.Raw(msgspec.json.encode(over.record))))
        assert msgspec.json.decode(row, type=Row).line == 1
