"""Protects the priority that a request of a class has in the engines: the gateway's own order, whichever values an engine serves first, and
none where an engine would refuse or ignore it."""

from __future__ import annotations

import json
import random

import pytest

from pagefleet_contract.engine_metrics import HIGHER_FIRST, LOWER_FIRST
from pagefleet_contract.names import ENGINE_ANNOTATION
from pagefleet_gateway.bodies.edits import edited
from pagefleet_gateway.cluster.engines import Engine
from pagefleet_gateway.cluster.objects import pod_from
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker

CLASSES = ((("x-class", "people"),), (("x-class", "jobs"),))


def pod(order: str, revision: str = "a", uid: str = "1") -> Pod:
    return Pod(uid, f"p{uid}", "team", "chat", revision, f"10.0.0.{uid}:8000", engine=Engine(priority=order))


def sent(
    pods: list[Pod], name: str, classes: object = CLASSES, path: str = "chat/completions", **more: object
) -> object:
    """Return the priority with which an engine gets a request of a class."""
    state = State()
    service = Service("team", "chat", "smol", (("a", 100), ("b", 0)), priorities=classes, **more)  # type: ignore[arg-type]
    state.put_service(service)
    state.replace_pods(pods)
    state.confirm(pods)
    body = json.dumps({"model": "smol", "priority": 99, "messages": []}).encode()
    picker = Picker(state, Ledger(), random.Random(1))
    pick = picker.decide(Request("r", "POST", f"/team/chat/v1/{path}", {"x-class": name}, body), 0.0)
    assert isinstance(pick, Pick)
    return json.loads(edited(body, pick.edits)).get("priority")


@pytest.mark.parametrize(("order", "values"), [(HIGHER_FIRST, [2, 1, 0]), (LOWER_FIRST, [-2, -1, 0])])
def test_more_important_classes_go_first_in_the_engine_too(order: str, values: list[int]) -> None:
    assert [sent([pod(order)], name) for name in ("people", "jobs", "nobody")] == values


def test_a_clients_own_priority_stays_without_classes_and_where_engines_take_none() -> None:
    assert sent([pod(HIGHER_FIRST)], "people", ()) == 99
    assert sent([pod("")], "people") == 99
    assert sent([pod(HIGHER_FIRST)], "people", path="embeddings") == 99


def test_no_priority_is_sent_that_a_retry_or_a_copy_would_be_refused_for() -> None:
    assert sent([pod(HIGHER_FIRST), pod("", uid="2")], "people") == 99
    copied = [pod(HIGHER_FIRST), pod("", "b", "2")]
    assert sent(copied, "people", mirror=("b", 100.0)) == 99
    assert sent(copied, "people") == 2


@pytest.mark.parametrize(
    ("args", "annotation", "order"),
    [
        (["serve", "--port=8000"], "", HIGHER_FIRST),
        (["serve", "--scheduling-policy=priority"], "", HIGHER_FIRST),
        (["serve", "--scheduling-policy=fcfs"], "", ""),
        (["serve", "--scheduling-policy", "fcfs"], "", ""),
        ([], '{"port":9}', ""),
        ([], '{"port":9,"priority":"lower"}', LOWER_FIRST),
        ([], '{"port":9,"priority":"up"}', ""),
        ([], '{"port":9,"priority":["lower"]}', ""),
    ],
)
def test_how_a_pods_engine_orders_is_read_from_its_pod(args: list[str], annotation: str, order: str) -> None:
    annotations = {ENGINE_ANNOTATION: annotation} if annotation else {}
    raw = {
        "metadata": {"uid": "1", "name": "p", "namespace": "n", "annotations": annotations},
        "spec": {"containers": [{"name": "engine", "args": args}]},
        "status": {"podIP": "10.0.0.7"},
    }
    read = pod_from(raw)
    assert read is not None and read.engine.priority == order
