"""Protects what decisions read: whatever order events, answers and lists arrive in, the store ends with the newest
version of every object that exists, and with nothing that is gone."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.kube.store import Store

KIND = "Deployment"


def document(name: str, version: int, service: str) -> dict[str, Any]:
    labels = {"pagefleet.io/service": service}
    return {"metadata": {"namespace": "n", "name": name, "resourceVersion": str(version), "labels": labels}}


@given(data=st.data())
def test_the_store_ends_as_the_server(data: st.DataObject) -> None:
    """A server makes, changes and deletes; every event comes once, each object's in any order, with whole lists
    between; a last list at the end says all."""
    live: dict[str, dict[str, Any]] = {}
    events: list[tuple[bool, dict[str, Any]]] = []
    lists: list[tuple[int, list[dict[str, Any]]]] = []
    for version in range(1, data.draw(st.integers(1, 25)) + 1):
        name = data.draw(st.sampled_from("abc"))
        if name in live and data.draw(st.booleans()):
            del live[name]
            events.append((True, document(name, version, "s")))
        else:
            live[name] = document(name, version, data.draw(st.sampled_from(["s", "t"])))
            events.append((False, live[name]))
        if data.draw(st.booleans()):
            lists.append((version, list(live.values())))
    store = Store()
    for delivery in data.draw(st.permutations([*events, *lists])):
        if isinstance(delivery[0], bool):
            store.upsert(KIND, delivery[1], deleted=delivery[0])  # type: ignore[arg-type]
        else:
            deliver_list(store, delivery[1], delivery[0])  # type: ignore[arg-type]
    deliver_list(store, list(live.values()), len(events))
    for service in ("s", "t"):
        ours = [item for item in live.values() if item["metadata"]["labels"]["pagefleet.io/service"] == service]
        expected = sorted(item["metadata"]["name"] for item in ours)
        children = store.children(KIND, "n", service)
        assert [item["metadata"]["name"] for item in children] == expected
    for name in "abc":
        assert store.find(KIND, "n", name) == live.get(name)


def deliver_list(store: Store, documents: list[dict[str, Any]], version: int) -> None:
    _, gone = store.replace_listed(KIND, documents, version)
    for key in gone:
        store.remove(*key)


def test_a_list_of_one_namespace_says_nothing_about_another() -> None:
    store = Store()
    store.upsert(KIND, document("a", 1, "s"))
    brought, gone = store.replace_listed(KIND, [], 9, ["other"])
    assert (brought, gone) == (set(), [])
    assert store.find(KIND, "n", "a") is not None
    assert store.replace_listed(KIND, [], 9, ["n"])[1] == [(KIND, "n", "a")]
