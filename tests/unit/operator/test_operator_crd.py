"""Protects the shipped CustomResourceDefinition: it is what the schema makes, structural, and within an API server's bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from support.virtual.cluster import Cluster

from pagefleet_operator import crd
from pagefleet_operator.domain import model_fetch
from pagefleet_operator.domain.capacity_plan import report as capacity_plan
from pagefleet_operator.domain.cost import report as cost
from pagefleet_operator.domain.slo import report as slo
from pagefleet_operator.domain.status.budget import TRIMMED
from pagefleet_operator.domain.traffic.routing import KINDS


def test_the_crd_is_made_from_the_schema() -> None:
    path = Path(crd.__file__).resolve().parents[2] / "crds/inferenceservices.yaml"
    assert path.read_text() == crd.rendered(), "run: python -m pagefleet_operator.crd > crds/inferenceservices.yaml"


def test_the_crd_is_structural() -> None:
    """Every node has a type and a description below spec and status, and bounds where input can grow."""

    def walk(node: dict[str, Any], path: str) -> None:
        assert "type" in node, path
        if node["type"] == "string":
            assert "maxLength" in node or "enum" in node or "format" in node, path
        if node["type"] == "array":
            assert "maxItems" in node, path
            walk(node["items"], f"{path}[]")
        for name, sub in (node.get("properties") or {}).items():
            walk(sub, f"{path}.{name}")

    version = yaml.safe_load(crd.rendered())["spec"]["versions"][0]
    for part in ("spec", "status"):
        walk(version["schema"]["openAPIV3Schema"]["properties"][part], part)


def test_the_crd_has_room_for_every_condition_at_once() -> None:
    """An API server refuses a whole status with one entry too many, and the service would stand still."""
    always = {condition.type for condition in Cluster(1).tick().conditions}
    at_times = {
        slo.CONDITION,
        cost.CONDITION,
        capacity_plan.CONDITION,
        model_fetch.TYPE,
        TRIMMED,
        "DefaultsCurrent",
        *KINDS,
    }
    assert len(always | at_times) >= 18
    version = crd.definition()["spec"]["versions"][0]
    listed = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["conditions"]
    assert listed["maxItems"] > len(always | at_times)


def test_bounds_of_numbers_fit_what_an_api_server_compares_by() -> None:
    """It turns them into int64 where the value is whole: a gate's `max: 1` was refused for a bound of 1e300."""

    def bounds(node: Any) -> list[float]:
        if isinstance(node, dict):
            own = [node[name] for name in ("minimum", "maximum") if isinstance(node.get(name), int | float)]
            return own + [bound for sub in node.values() for bound in bounds(sub)]
        return [bound for sub in node for bound in bounds(sub)] if isinstance(node, list) else []

    numbers = bounds(yaml.safe_load(crd.rendered()))
    assert len(numbers) > 50
    assert all(-(2**63) < bound < 2**63 for bound in numbers)


def test_kubectl_explain_says_of_every_field_what_it_is() -> None:
    """A description stands alone on the screen: it has a subject of its own, not "Its name.", and ends as a sentence does."""

    def walk(node: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
        for name, sub in (node.get("properties") or {}).items():
            yield f"{path}.{name}", sub.get("description", "")
            yield from walk(sub, f"{path}.{name}")
        if "items" in node:
            yield from walk(node["items"], f"{path}[]")

    schema = yaml.safe_load(crd.rendered())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    own = {name: schema["properties"][name] for name in ("spec", "status")}
    described = dict(walk({"properties": own}, ""))
    assert len(described) > 250
    unclear = re.compile(r"(Its|Their|Which|It|They|Of|And) ")
    bad = {
        path: text
        for path, text in described.items()
        if not text.endswith(".") or len(text.split()) < 5 or unclear.match(text) or text.endswith("..")
    }
    assert bad == {}
