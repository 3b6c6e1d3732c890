"""Protects the order of held requests (priority, then fair between tenants, bounded) and the rate limits."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.cluster.service import RateLimit, Service
from pagefleet_gateway.holding.fair_queue import Entry, FairQueue
from pagefleet_gateway.holding.shares import MAX_TENANTS, Shares
from pagefleet_gateway.limits.buckets import Bucket
from pagefleet_gateway.limits.rate_limits import Exceeded, RateLimits

ENTRIES = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.integers(0, 10_000), st.integers(0, 50)), max_size=40
)


def queue(entries: int = 1000, size: int = 10**9) -> FairQueue[int]:
    return FairQueue(entries, size)


@given(ENTRIES, st.integers(1, 12), st.integers(1, 400))
def test_bounded_and_nothing_is_lost_or_doubled(
    given_entries: list[tuple[int, str, int, int]], most: int, size: int
) -> None:
    waiting, held = queue(most, size), set()
    for number, (priority, tenant, cost, length) in enumerate(given_entries):
        displaced = waiting.push(Entry(number, priority, tenant, cost, length))
        if displaced is not None:
            assert all(other.priority > priority for other in displaced)
            held = (held | {number}) - {other.item for other in displaced}
        assert len(waiting) == len(held) <= most and waiting.bytes <= size
    came = []
    while (turn := waiting.peek()) is not None:
        assert waiting.pop() is turn
        came.append(turn)
    assert sorted(entry.item for entry in came) == sorted(held)
    assert [entry.priority for entry in came] == sorted(entry.priority for entry in came)
    for tenant in "abc":
        for priority in range(3):
            own = [entry.item for entry in came if (entry.tenant, entry.priority) == (tenant, priority)]
            assert own == sorted(own)  # in order of arrival
    assert len(waiting) == waiting.bytes == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4000)), min_size=30, max_size=120))
def test_tenants_that_wait_get_equal_work(requests: list[tuple[str, int]]) -> None:
    waiting = queue()
    for number, (tenant, cost) in enumerate(requests):
        waiting.push(Entry(number, 0, tenant, cost, 0))
    left, work = Counter(tenant for tenant, _ in requests), Counter({tenant: 0 for tenant, _ in requests})
    while all(left.values()):
        entry = waiting.pop()
        assert entry is not None
        work[entry.tenant] += entry.cost
        left[entry.tenant] -= 1
        # The bound of the virtual token counter: the longest request.
        assert max(work.values()) - min(work.values()) <= 4000


class CountedShares(Shares):
    looks = 0

    def of(self, priority: int, tenant: str) -> int:
        self.looks += 1
        return super().of(priority, tenant)


def test_thousands_of_tenants_cost_a_turn_no_more_than_a_few_do() -> None:
    """Clients choose what names a tenant. A look at all of them at each turn stopped the gateway for seconds."""
    shares = CountedShares()
    waiting = FairQueue[int](4096, 10**9, shares)
    for number in range(4096):
        waiting.push(Entry(number, 0, f"tenant {number % 2048}", 1 + number % 7, 0))
    came = [entry.item for _ in range(4096) if (entry := waiting.pop()) is not None]
    assert sorted(came) == list(range(4096)) and sorted(came[:2048]) == list(range(2048))
    assert shares.looks < 20 * 4096


def test_tenants_that_come_do_not_starve_those_whose_counts_were_forgotten() -> None:
    waiting = queue(4096)
    for number in range(2 * (MAX_TENANTS + 76)):
        waiting.push(Entry(number, 0, f"tenant {number % 1100}", 10, 0))
    for _ in range(1100):
        waiting.pop()
    for number in range(100):
        waiting.push(Entry(10_000 + number, 0, f"new {number}", 10, 0))
        assert (entry := waiting.pop()) is not None and entry.item == 1100 + number


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 400), st.sampled_from("xy")), max_size=60), st.data())
def test_the_tenant_with_the_fewest_tokens_that_is_not_blocked_goes_first(
    requests: list[tuple[str, int, str]], data: st.DataObject
) -> None:
    shares = Shares()
    waiting = FairQueue[int](1000, 10**9, shares)
    there: list[Entry[int]] = []
    for number, (tenant, cost, lane) in enumerate(requests):
        there.append(Entry(number, 0, tenant, cost, 0, lane))
        waiting.push(there[-1])
        move = data.draw(st.sampled_from(["nothing", "take", "leave", "hear"]))
        blocked = data.draw(st.sets(st.sampled_from("xy")))
        if move == "hear":  # another gateway has let something go
            shares.hear({f"0/{tenant}": cost}, whole=False)
        turn = waiting.peek(blocked)
        free = [entry for entry in there if entry.lane not in blocked]
        assert (turn is None) == (not free)
        if turn is not None:
            assert shares.of(0, turn.tenant) == min(shares.of(0, entry.tenant) for entry in free)
            assert turn is next(entry for entry in free if entry.tenant == turn.tenant)
        if turn is not None and move == "take":
            waiting.take(turn)
            there.remove(turn)
        if there and move == "leave":
            gone = data.draw(st.sampled_from(there))
            waiting.remove(gone)
            there.remove(gone)


def test_a_crowd_of_one_tenant_does_not_hold_up_another() -> None:
    waiting = queue()
    for number in range(100):
        waiting.push(Entry(number, 0, "crowd", 100, 0))
    for number in range(50):
        assert (entry := waiting.pop()) is not None and entry.item == number
    waiting.push(Entry(100, 0, "single", 100, 0))
    waiting.push(Entry(101, 0, "single", 100, 0))
    order = [entry.item for _ in range(52) if (entry := waiting.pop()) is not None]
    # Who comes later is not paid back for the fifty that went before, and waits for none of the fifty that are left.
    assert order[:4] == [50, 100, 51, 101]


def test_who_is_idle_saves_up_no_turns_and_who_returns_has_lost_none() -> None:
    waiting = queue()
    for number in range(10):
        waiting.push(Entry(number, 0, "steady", 100, 0))
        waiting.push(Entry(number, 0, "greedy", 1000, 0))
    for _ in range(11):
        assert waiting.pop() is not None  # one of 1,000 tokens and ten of 100
    waiting.push(Entry(50, 0, "steady", 100, 0))
    waiting.push(Entry(51, 0, "steady", 100, 0))
    first, second = waiting.pop(), waiting.pop()
    assert first is not None and second is not None
    assert {first.tenant, second.tenant} == {"steady", "greedy"}, "both have had a thousand tokens"


def test_a_removed_entry_is_gone() -> None:
    waiting = queue()
    entries = [Entry(number, 0, "a", 1, 7) for number in range(3)]
    for entry in entries:
        waiting.push(entry)
    waiting.remove(entries[1])
    waiting.remove(entries[1])
    assert [waiting.pop(), waiting.pop(), waiting.pop()] == [entries[0], entries[2], None]


AMOUNTS = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 200)), max_size=50)


@given(st.integers(1, 1000), AMOUNTS)
def test_a_bucket_never_gives_more_than_its_rate(capacity: int, asked: list[tuple[float, int]]) -> None:
    bucket, now, given_out, largest = Bucket(capacity, capacity, 0.0), 0.0, 0, 0
    for pause, amount in asked:
        now += pause
        wait = bucket.wait(amount, now)
        if wait <= 0:
            bucket.take(amount)
            given_out, largest = given_out + amount, max(largest, amount)
        else:
            assert bucket.wait(amount, now + wait + 1e-6) <= 1e-5  # the promised time is enough
            bucket.level, bucket.at = bucket.level - (wait + 1e-6) * capacity / 60, now
        assert given_out <= capacity + capacity * now / 60 + largest + 1e-3


def test_limits_are_by_header_value_and_a_refused_request_is_not_charged() -> None:
    limits = RateLimits()
    service = Service("team", "chat", limits=(RateLimit("authorization", 2, 0), RateLimit("x-tenant", 0, 1000)))
    one = {"authorization": "key-1", "x-tenant": "t"}

    def wait(headers: dict[str, str], tokens: int, now: float) -> float:
        exceeded = limits.take(service, headers, tokens, now)
        return exceeded.seconds if isinstance(exceeded, Exceeded) else 0.0

    assert wait(one, 600, 0.0) == 0
    assert 11.9 < wait(one, 600, 0.0) < 12.1  # 200 tokens are missing, 1,000 a minute come
    assert wait(one, 400, 0.0) == 0
    assert 29.9 < wait(one, 0, 0.0) < 30.1  # the third request of two
    exceeded = limits.take(service, one, 0, 0.0)
    assert isinstance(exceeded, Exceeded) and (exceeded.per_minute, exceeded.unit) == (2, "requests")
    assert "'authorization'" in exceeded.scope
    assert wait(one | {"authorization": "key-2"}, 0, 0.0) == 0
    assert wait(one, 0, 31.0) == 0
    assert wait({"x-tenant": "big"}, 5000, 0.0) == 0  # larger than a minute's: it passes, once
    assert wait({"x-tenant": "big"}, 1, 60.0) > 180
