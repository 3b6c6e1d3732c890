"""Protects how replicas are spread, shared memory and huge pages: what is refused and by which field, what the pods have, and that
two ways of writing an amount are one revision."""

from __future__ import annotations

from typing import Any

import pytest
from support.golden_manifests import child_of, spec_of

from pagefleet_contract.names import REVISION_LABEL, SERVICE_LABEL
from pagefleet_operator.domain.base.revision import revision_hash
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.leaderworkerset import leader_worker_set
from pagefleet_operator.domain.spec.parse import SpecErrors, parse

ZONE = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
SHARED = {"name": "shared-memory", "mountPath": "/dev/shm"}
HUGE = {"name": "hugepages-2mi", "mountPath": "/hugepages-2Mi"}


def errors(**parts: Any) -> dict[str, str]:
    parsed = parse({"model": {"source": "file:///m"}, **parts})
    return {error.field: error.message for error in parsed.errors} if isinstance(parsed, SpecErrors) else {}


def pod(**parts: Any) -> dict[str, Any]:
    child = child_of({"model": {"source": "file:///m"}, **parts})
    made: dict[str, Any] = deployment(child, 1)["spec"]["template"]["spec"]
    return made


def hashed(**resources: Any) -> str:
    return revision_hash({"model": {"source": "file:///m"}, "resources": resources})


def test_constraints_are_over_the_pods_of_the_revision_and_replace_the_operator_s_own() -> None:
    own = pod()["topologySpreadConstraints"]
    assert [(one["topologyKey"], one["whenUnsatisfiable"]) for one in own] == [
        ("kubernetes.io/hostname", "ScheduleAnyway")
    ]
    assert own == pod(placement={"topologySpreadConstraints": []})["topologySpreadConstraints"]
    assert "topologySpreadConstraints" not in pod(placement={"topologySpread": False})
    for placement in ({}, {"topologySpread": False}):
        [made] = pod(placement={**placement, "topologySpreadConstraints": [ZONE]})["topologySpreadConstraints"]
        assert made.pop("labelSelector")["matchLabels"].keys() == {SERVICE_LABEL, REVISION_LABEL}
        assert made == ZONE


def test_of_a_replica_of_several_pods_the_leader_is_spread() -> None:
    spec = spec_of("nodes") | {"placement": {"topologySpreadConstraints": [ZONE]}}
    group = leader_worker_set(child_of(spec), 1)["spec"]["leaderWorkerTemplate"]
    assert ZONE.items() <= group["leaderTemplate"]["spec"]["topologySpreadConstraints"][0].items()
    assert "topologySpreadConstraints" not in group["workerTemplate"]["spec"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"labelSelector": {}}, "[0].labelSelector"),
        ({"matchLabelKeys": ["pod-template-hash"]}, "[0].matchLabelKeys"),
        ({"maxSkew": 0}, "[0].maxSkew"),
        ({"topologyKey": "a b"}, "[0].topologyKey"),
        ({"whenUnsatisfiable": "Never"}, "[0].whenUnsatisfiable"),
        ({"nodeTaintsPolicy": "Keep"}, "[0].nodeTaintsPolicy"),
        ({"minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"}, ""),
        ({"minDomains": 2}, None),
    ],
)
def test_other_constraints_are_refused_by_their_field(given: dict[str, Any], field: str | None) -> None:
    found = list(errors(placement={"topologySpreadConstraints": [{**ZONE, **given}]}))
    assert found == ([] if field is None else [f"spec.placement.topologySpreadConstraints{field}"])


@pytest.mark.parametrize("runtime", ["pagefleet", "vllm"])
def test_shared_memory_of_a_given_size_is_mounted_once(runtime: str) -> None:
    made = pod(engine={"runtime": runtime}, resources={"sharedMemory": "2Gi"})
    volume = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    assert [one for one in made["volumes"] if one["name"] == "shared-memory"] == [volume]
    assert made["containers"][0]["volumeMounts"].count(SHARED) == 1


def test_huge_pages_are_requested_limited_and_mounted() -> None:
    made = pod(resources={"hugePages": {"2Mi": "512Mi"}})
    [container] = made["containers"]
    assert [container["resources"][kind]["hugepages-2Mi"] for kind in ("requests", "limits")] == ["512Mi"] * 2
    assert HUGE in container["volumeMounts"]
    assert {"name": "hugepages-2mi", "emptyDir": {"medium": "HugePages-2Mi"}} in made["volumes"]


@pytest.mark.parametrize(
    ("resources", "field"),
    [
        ({"sharedMemory": "4Gi"}, None),
        ({"sharedMemory": "5Gi"}, "sharedMemory"),
        ({"sharedMemory": "0"}, "sharedMemory"),
        ({"sharedMemory": "5Gi", "memory": "8Gi"}, None),
        ({"sharedMemory": "big"}, "sharedMemory"),
        ({"memory": "500m"}, "memory"),  # half a byte: M was meant
        ({"memory": "4"}, "memory"),
        ({"memory": "0"}, None),
        ({"memory": "64Mi"}, None),
        ({"hugePages": {"1Gi": "2Gi", "2Mi": "6Mi"}}, None),
        ({"hugePages": {"1Gi": "512Mi"}}, "hugePages.1Gi"),
        ({"hugePages": {"2Mi": "0"}}, "hugePages.2Mi"),
        ({"hugePages": {"2Mi": "5Mi"}}, "hugePages.2Mi"),
        ({"hugePages": {"4Mi": "4Mi"}}, "hugePages.4Mi"),
    ],
)
def test_amounts_that_no_pod_can_have_are_refused_by_their_field(resources: dict[str, Any], field: str | None) -> None:
    assert list(errors(resources=resources)) == ([] if field is None else [f"spec.resources.{field}"])


def test_another_way_of_writing_an_amount_is_the_same_revision() -> None:
    assert hashed(sharedMemory="2Gi") == hashed(sharedMemory="2048Mi") != hashed(sharedMemory="3Gi")
    assert hashed(hugePages={"2Mi": "1Gi"}) == hashed(hugePages={"2Mi": "1024Mi"}) != hashed(hugePages={"1Gi": "1Gi"})
