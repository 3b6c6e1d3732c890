"""Protects that gateways which know of each other give up exactly as many waiting requests as a service has too many, the least
important first and never the most important, and that what another gateway tells never breaks one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.holding.elsewhere import Elsewhere, Waiting, surplus

KEY = ("team", "chat")
QUEUES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.dictionaries(st.integers(0, 3), st.integers(1, 9), max_size=4), min_size=1
)


def waiting(classes: dict[int, int]) -> tuple[Waiting, ...]:
    return tuple(Waiting(priority, count, count * 10, count) for priority, count in classes.items())


@given(QUEUES, st.integers(1, 30))
def test_all_gateways_together_give_up_what_is_too_much(queues: dict[str, dict[int, int]], bound: int) -> None:
    everyone = [priority for classes in queues.values() for priority, count in classes.items() for _ in range(count)]
    first = min(everyone, default=0)
    for _ in range(64):  # rounds of telling and giving up
        given_up = 0
        states = {name: waiting(classes) for name, classes in queues.items()}
        for name, classes in queues.items():
            elsewhere = Elsewhere()
            for other, state in states.items():
                if other != name:
                    elsewhere.replace(other, {"team/chat": [one.row for one in state]})
            priority, count = surplus(name, KEY, states[name], elsewhere, bound)
            if count:
                assert priority > first
                classes[priority] -= count
                if not classes[priority]:
                    del classes[priority]
            given_up += count
        if not given_up:
            break
    left = sorted(priority for classes in queues.values() for priority, count in classes.items() for _ in range(count))
    assert left == sorted(everyone)[: max(len(left), 0)], "the least important went first"
    assert len(left) == min(len(everyone), max(bound, everyone.count(first)))


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.just("team/chat"),
        lambda inner: (
            st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3) | st.just("team/chat"), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_what_is_malformed_is_left_out(rows: object) -> None:
    elsewhere = Elsewhere()
    elsewhere.update("one", rows)
    requests, size, lower = elsewhere.sums(KEY, 0)
    assert requests >= lower >= 0 and size >= 0
    elsewhere.forget("one")
    assert elsewhere.sums(KEY, 0) == (0, 0, 0) and elsewhere.first(KEY) is None


def test_a_gateway_that_tells_anew_or_ends_is_counted_once_or_not_at_all() -> None:
    elsewhere = Elsewhere()
    assert elsewhere.replace("one", {"team/chat": [[1, 3, 300, 0], [2, 1, 10, 1, ["a", "b"]]]}) == {
        KEY: {(2, "a"), (2, "b")}
    }
    assert elsewhere.update("three", {"team/chat": [[2, 1, 10, 1, ["b", "c", 7]]]}) == {KEY: {(2, "c")}}
    assert elsewhere.tenants(KEY, 2) == {"a", "b", "c"} and elsewhere.tenants(KEY, 1) == set()
    elsewhere.forget("three")
    elsewhere.update("two", {"team/chat": [[0, 2, 20, 2]]})
    assert elsewhere.sums(KEY, 0) == (6, 330, 4) and elsewhere.first(KEY) == 0
    elsewhere.update("two", {"team/chat": []})
    assert elsewhere.first(KEY) == 2, "requests that only some pods may answer let nobody wait"
    elsewhere.replace("one", {})
    assert elsewhere.sums(KEY, 0) == (0, 0, 0)
