"""Protects that several gateways choose pods by the same loads and prefixes: what one tells of its requests is what the others
add to their own. A message may come twice or late, may be malformed, and may be of a gateway that has gone since."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from support.virtual.gateway import NAME, NAMESPACE, STABLE, VirtualGateway

from pagefleet_gateway.cluster.in_flight import IDLE, OtherGateways, PodCounts
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.picking.prompts.prefixes import HASH_BYTES, Prefixes
from pagefleet_gateway.sharing.loads import Listener
from pagefleet_gateway.sharing.members import Members
from pagefleet_gateway.sharing.news import News, Newsroom

UID = "uid-1"


def tell(one: VirtualGateway, other: VirtualGateway, now: float, name: str = "one") -> None:
    news = Newsroom(one.ledger, one.picker.prefixes).changes(now)
    finish(Newsroom(other.ledger, other.picker.prefixes).take_over(name, news.message(), now))


def pair(pods: int = 2, **service: Any) -> tuple[VirtualGateway, VirtualGateway]:
    both = VirtualGateway(1, pods=pods), VirtualGateway(2, pods=pods)
    for gateway in both:
        options = {"weights": ((STABLE, 100),), **service}
        gateway.state.put_service(Service(NAMESPACE, NAME, "smol", **options))
        finish(gateway.ledger.sweep(gateway.state.known, 0.0))  # it knows the pods
    return both


def test_a_request_of_another_gateway_counts_until_it_ends() -> None:
    one, two = pair()
    request, pick = one.send(0.0, "x" * 4000)
    tell(one, two, 0.01)
    pod = pick.choices[0]
    assert two.ledger.counts(pod) == one.ledger.counts(pod) and two.ledger.counts(pod).waiting == 1
    assert two.ledger.load_on(pod, 0.01) == one.ledger.load_on(pod, 0.01)
    one.first_token(request, 0.2, 0.2)
    tell(one, two, 0.21)
    assert (two.ledger.counts(pod).waiting, two.ledger.load_on(pod, 0.21)) == (0, (0.0, 1.0))
    one.end(request, 0.5)
    tell(one, two, 0.51)
    assert two.ledger.counts(pod) is IDLE


def test_two_gateways_send_a_crowd_to_both_pods() -> None:
    one, two = pair()
    pods = []
    for number in range(20):
        gateway, other = (one, two) if number % 2 else (two, one)
        pods.append(gateway.send(0.001 * number, f"{number:04}" + "y" * 4000)[1].choices[0].uid)
        tell(gateway, other, 0.001 * number, str(number % 2))
    assert sorted(pods.count(uid) for uid in set(pods)) == [10, 10]


def test_a_prompt_goes_where_another_gateway_has_sent_its_beginning() -> None:
    one, two = pair(pods=8)
    beginning = "".join(random.Random(1).choices("abcdefgh ", k=4096))
    request, pick = one.send(0.0, beginning + "a question")
    one.first_token(request, 0.1, 0.1)
    one.end(request, 0.2)
    tell(one, two, 0.3)
    assert two.send(1.0, beginning + "b")[1].choices[0] == pick.choices[0]


def test_a_backlog_is_that_of_all_gateways_and_is_worked_off_once() -> None:
    one, two = pair(pods=1)
    pod = one.pods[0]
    for gateway in (one, two):
        gateway.ledger.backlogs.record_first_token(pod, 1000, 1.0)  # a thousand tokens a second
    one.ledger.backlogs.add_prompt(pod, 2000, 0.0)
    two.ledger.backlogs.add_prompt(pod, 1000, 0.0)
    one.send(0.0)
    own = one.ledger.backlogs.sent[pod.uid]
    two.ledger.others.forget("one")
    two.ledger.others.update("one", {pod.uid: [0, 0, 0, 0, 0, 0]})
    tell(one, two, 0.0)
    assert two.ledger.backlogs.tokens(pod, 0.0) == 1000 + own
    assert two.ledger.backlogs.tokens(pod, 1.0) == own


def test_a_pod_that_another_gateway_knew_before_has_no_more_backlog_than_requests() -> None:
    others = OtherGateways()
    assert others.update("one", {UID: [1, 300, 1, 200, 0, 90_000]}) == {UID: 200}
    assert others.update("one", {UID: [1, 300, 1, 200, 0, 90_500]}) == {UID: 500}


def test_what_is_told_twice_counts_once_and_two_gateways_add_up() -> None:
    others = OtherGateways()
    row = PodCounts(2, 300, 1, 100, 50).row(1000)
    for _ in range(2):
        others.update("one", {UID: row})
    others.update("two", {UID: row})
    assert others.counts(UID) == PodCounts(4, 600, 2, 200, 100)
    others.forget("one")
    assert others.counts(UID) == PodCounts(2, 300, 1, 100, 50)
    others.forget("two")
    others.forget("two")
    assert others.counts(UID) is IDLE


def test_a_pod_that_is_gone_is_forgotten_and_may_come_back() -> None:
    others = OtherGateways()
    row = PodCounts(1, 10, 1, 10, 0).row(10)
    others.update("one", {UID: row})
    finish(others.retain(()))
    assert others.counts(UID) is IDLE
    others.update("one", {UID: row})
    assert others.counts(UID).requests == 1


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [],
        {UID: None},
        {UID: [1, 2, 3]},
        {UID: [1, 2, 3, 4, 5, "6"]},
        {UID: [1, 2, 3, 4, 5, -6]},
        {UID: [math.nan, 0, 0, 0, 0, 0]},
        {UID: [1e300, 0, 0, 0, 0, 0]},
        {7: [1, 1, 1, 1, 1, 1]},
    ],
)
def test_a_malformed_row_is_left_out(rows: object) -> None:
    others = OtherGateways()
    assert others.update("one", rows) == {}
    assert others.counts(UID) is IDLE


def test_the_sum_of_many_changes_is_the_sum_of_the_last_ones() -> None:
    draws, others = random.Random(3), OtherGateways()
    last: dict[tuple[str, str], PodCounts] = {}
    for _ in range(2000):
        gateway, uid = draws.choice("abc"), draws.choice("123")
        requests = draws.randrange(4)
        counts = PodCounts(requests, 10 * requests, requests // 2, 5 * (requests // 2), 0)
        last[gateway, uid] = counts
        others.update(gateway, {uid: counts.row(0)})
    for uid in "123":
        total = PodCounts()
        for (_, name), counts in last.items():
            if name == uid:
                total.add(counts)
        assert others.counts(uid) == total


def test_a_new_gateway_hears_the_latest_blocks_and_later_only_new_ones() -> None:
    prefixes = Prefixes(capacity=32)
    blocks = [bytes([number]) * HASH_BYTES for number in range(6)]
    prefixes.record("pod", blocks[:4])
    assert prefixes.take_news() == {"pod": b"".join(reversed(blocks[:4]))}
    prefixes.record("pod", blocks)
    assert prefixes.take_news() == {"pod": b"".join(reversed(blocks[4:]))}
    heard = Prefixes(capacity=32)
    for cache, hashes in prefixes.latest(prefixes.caches, 1).items():
        heard.hear(cache, hashes)
    assert heard.matched("pod", blocks) == 6
    assert heard.take_news() == {}, "what was heard is not told again"
    heard.hear("pod", b"too short")
    assert heard.matched("pod", blocks) == 6


def test_a_block_in_use_is_told_again_before_others_forget_it() -> None:
    """Another gateway's estimate of a cache fills with what is new there. Without news of it a hot block would leave it."""
    ours, theirs = Prefixes(capacity=16), Prefixes(capacity=16)
    hot = [b"h" * HASH_BYTES]
    for number in range(100):
        ours.record("pod", hot)
        ours.record("pod", [number.to_bytes(HASH_BYTES, "little")])
        for cache, hashes in ours.take_news().items():
            theirs.hear(cache, hashes)
        assert theirs.matched("pod", hot) == 1
    ours.record("pod", hot)
    ours.take_news()
    ours.record("pod", hot)
    assert ours.take_news() == {}, "and not each time"


def test_a_slow_listener_gets_one_message_with_the_newest_rows() -> None:
    listener = Listener()
    listener.add(News({"a": [0]}, served={"team/chat": {"0/a": 9}}))  # while the first message was put together
    listener.begin(News({"a": [1], "c": [1]}, {}, whole=True))
    listener.add(News({"b": [1]}, {"pod": b"1"}, served={"team/chat": {"0/a": 5}}))
    listener.add(News({"b": [2]}, {"pod": b"2"}, served={"team/chat": {"0/a": 2, "1/b": 1}}))
    none: dict[str, object] = {"ejections": {}, "held": {}, "served": {}, "paces": {}, "budgets": {}}
    served = {"team/chat": {"0/a": 7, "1/b": 1}}
    whole = {
        "whole": True,
        "pods": {"a": [0], "b": [2], "c": [1]},
        "prefixes": {"pod": b"12"},
        **none,
        "served": served,
    }
    assert msgspec.msgpack.decode(listener.take()) == whole
    assert not listener.waits.is_set()
    listener.add(News({"a": [3]}, {}))
    assert msgspec.msgpack.decode(listener.take()) == {"whole": False, "pods": {"a": [3]}, "prefixes": {}, **none}


def test_members_are_the_other_pods_and_changes_are_reported() -> None:
    members, changed = Members("one"), list[str]()
    members.listen(changed.append)
    members.put("one", "10.0.0.1:9002")
    members.put("two", "10.0.0.2:9002")
    members.put("two", "10.0.0.2:9002")
    members.put("two", "[fd00::2]:9002")
    assert changed == ["two", "two"] and members.includes("fd00::2")
    assert not members.includes("10.0.0.2") and not members.includes("10.0.0.1") and not members.includes(None)
    members.replace({"three": "10.0.0.3:9002"})
    assert (changed[2:], members.addresses) == (["two", "three"], {"three": "10.0.0.3:9002"})


@pytest.mark.parametrize(
    ("shown", "known"),
    [
        ("10.0.0.2", True),
        ("::ffff:10.0.0.2", True),  # how a socket on `::` shows an IPv4 client
        ("::ffff:10.0.0.9", False),
        ("fd00::3", True),
        ("fd00:0:0::3", True),
        ("not an address", False),
        ("", False),
    ],
)
def test_a_member_is_known_by_its_address_however_a_socket_shows_it(shown: str, known: bool) -> None:
    members = Members("one")
    members.replace({"two": "10.0.0.2:9002", "three": "[fd00::3]:9002"})
    assert members.includes(shown) is known
