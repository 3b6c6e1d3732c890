"""Protects the readings of other kinds: the cluster's Gateway API kinds and fields, the reports on a live route, and the
condition of a chain of fallbacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.domain.status.gateway_api import FallbackReading, Features, LiveObject, ParentStatus
from pagefleet_operator.domain.traffic import fallback
from pagefleet_operator.kube.gateway_api import fallback_of, features, live

POOLS = Features("v1", "v1", timeouts=True, mirror_share=True)
HOP = FallbackReading("small", exists=True, served_name="m")


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ((HOP,), ("True", "FallbackExists")),
        ((replace(HOP, fallback="tiny"), FallbackReading("tiny", exists=True)), ("True", "FallbackExists")),
        ((FallbackReading("small", exists=False),), ("False", "FallbackNotFound")),
        ((FallbackReading("chat", exists=True),), ("False", "FallbackLoops")),
        ((HOP, FallbackReading("chat", exists=True)), ("False", "FallbackLoops")),
        ((HOP, FallbackReading("tiny", exists=True), HOP), ("False", "FallbackLoops")),
    ],
)
def test_a_fallback_that_is_missing_or_loops_is_a_condition(
    chain: tuple[FallbackReading, ...], expected: tuple[str, str]
) -> None:
    stated = fallback.state("team-a", "chat", "m", chain)
    assert stated is not None
    assert stated[1:3] == expected
    if stated[1] == "False":
        assert stated[3].startswith("spec.traffic.fallback.service: ")


def test_a_fallback_that_serves_another_model_is_a_condition() -> None:
    stated = fallback.state("team-a", "chat", "m", (replace(HOP, served_name="other"),))
    assert stated is not None
    assert "'other'" in stated[3]
    assert fallback.state("team-a", "chat", "m", ()) is None


@given(st.recursive(st.none() | st.integers() | st.text(max_size=8), lambda x: st.dictionaries(st.text(max_size=8), x)))
def test_any_spec_has_a_fallback_or_none(value: Any) -> None:
    assert fallback_of({"traffic": value}) == ""
    assert fallback_of({"traffic": {"fallback": value}}) == ""
    assert fallback_of({"traffic": {"fallback": {"service": "../../x"}}}) == ""


def crd(version: str, spec: dict[str, Any], *, served: bool = True, established: str = "True") -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}}
    return {
        "spec": {"versions": [{"name": version, "served": served, "schema": schema}]},
        "status": {"conditions": [{"type": "Established", "status": established}]},
    }


def rules(**fields: Any) -> dict[str, Any]:
    return {"rules": {"type": "array", "items": {"type": "object", "properties": fields}}}


TIMEOUTS = {"timeouts": {"type": "object", "properties": {"request": {"type": "string"}}}}
SHARE = {"percent": {"type": "integer"}, "fraction": {"type": "object"}}
MIRROR = {"filters": {"type": "array", "items": {"properties": {"requestMirror": {"properties": SHARE}}}}}


@pytest.mark.parametrize(
    ("route_crd", "pool_crd", "expected"),
    [
        (None, None, Features()),
        (crd("v1", rules()), None, Features("v1")),
        (crd("v1beta1", rules(**TIMEOUTS)), None, Features("v1beta1", timeouts=True)),
        (crd("v1", rules(**TIMEOUTS, **MIRROR)), crd("v1", {"endpointPickerRef": {"type": "object"}}), POOLS),
        (crd("v1", rules(), served=False), crd("v1", {"extensionRef": {"type": "object"}}), Features()),
        (crd("v1", rules(), established="False"), None, Features()),
        (crd("v1alpha2", rules()), None, Features()),
    ],
)
def test_features_follow_the_installed_crds(route_crd: Any, pool_crd: Any, expected: Features) -> None:
    assert features(route_crd, pool_crd) == expected


def test_a_live_route_is_read() -> None:
    document = {
        "metadata": {
            "name": "chat",
            "uid": "r",
            "generation": 7,
            "ownerReferences": [{"uid": "no"}, {"uid": "u-1", "controller": True}],
        },
        "status": {
            "parents": [
                {
                    "parentRef": {"name": "edge", "namespace": "infra", "sectionName": "https", "port": 443},
                    "conditions": [
                        {"type": "Accepted", "status": "True", "observedGeneration": 7},
                        {"type": "ResolvedRefs", "status": "False", "observedGeneration": 6, "reason": "R", "message": "m"},
                    ],
                },
                {"parentRef": {"name": "late"}},
            ]
        },
    }  # fmt: skip
    assert live(document, "parents") == LiveObject(
        "chat",
        "r",
        "u-1",
        7,
        (
            ParentStatus("edge", "infra", "https", 443, 6, True, False, "R", "m"),
            ParentStatus("late", "", "", None, None, None, None, "", ""),
        ),
    )
