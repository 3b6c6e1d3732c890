"""Protects model names on a real API server: the later of two services gets a condition and an Event, and inherits nothing."""

from __future__ import annotations

import pytest
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, removed, service, settled

from pagefleet_local.fleet.kubectl import Document
from pagefleet_local.fleet.view import View

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


def named(name: str) -> Document:
    document = service(name)
    document["spec"]["model"]["servedName"] = "contested"
    return document


def reason(view: View) -> str:
    return str(view.condition("ModelNameOwned").get("reason", ""))


def granted(view: View) -> str:
    return str(view.document.get("status", {}).get("modelName", ""))


async def test_the_later_service_has_a_condition_and_an_event_and_no_inheritance(plane: Plane) -> None:
    await plane.kubectl.apply(named("earlier"))
    await settled(plane, "earlier", "earlier owns the name", lambda v: granted(v) == "contested")
    await plane.kubectl.apply(named("later"))
    state = await settled(plane, "later", "later has the condition", lambda v: reason(v) == "ModelNameTaken")
    assert f"{NAMESPACE}/earlier" in state.condition("ModelNameOwned")["message"] and granted(state) == ""
    await plane.kubectl.events("later", NAMESPACE, "ModelNameTaken")
    await removed(plane, "earlier")
    state = await settled(plane, "later", "the name is released", lambda v: reason(v) == "ModelNameReleased")
    assert granted(state) == ""
    claim = "pagefleet.io/claim-model-name=contested"
    await plane.kubectl.run("annotate", "isvc", "later", "-n", NAMESPACE, claim)
    state = await settled(plane, "later", "later owns the name", lambda v: granted(v) == "contested")
    assert reason(state) == ""
    await removed(plane, "later")
