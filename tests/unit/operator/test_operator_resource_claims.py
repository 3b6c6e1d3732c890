"""Protects devices of dynamic resource allocation: the pods have the claims and ask for no extended resource beside them, the engine is
started for what the claim gives, and other values are refused by their field."""

from __future__ import annotations

from typing import Any

import pytest
from support.golden_manifests import child_of, spec_of

from pagefleet_operator.domain.base.revision import revision_hash
from pagefleet_operator.domain.base.revision_spec import NVIDIA
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.leaderworkerset import leader_worker_set
from pagefleet_operator.domain.manifests.load_test_job import load_test_job
from pagefleet_operator.domain.manifests.spare import spare_deployment
from pagefleet_operator.domain.spec.parse import SpecErrors, parse

GPUS = {"name": "gpus", "resourceClaimTemplateName": "two-gpus"}
PORT = {"name": "port", "resourceClaimName": "fabric"}
TWO = {"accelerator": {"name": NVIDIA, "count": 2}}


def spec(resources: dict[str, Any], *claims: dict[str, Any]) -> dict[str, Any]:
    return {"model": {"source": "file:///m"}, "resources": resources, "pod": {"resourceClaims": list(claims)}}


def claimed() -> dict[str, Any]:
    return spec(TWO, {**GPUS, "accelerators": True}, {**PORT, "request": "nic", "accelerators": False})


def errors(given: dict[str, Any]) -> list[str]:
    parsed = parse(given)
    return [error.field for error in parsed.errors] if isinstance(parsed, SpecErrors) else []


def test_accelerators_of_a_claim_are_no_extended_resource_and_the_engine_is_started_for_them() -> None:
    pod, other = (deployment(child_of(one), 1)["spec"]["template"]["spec"] for one in (claimed(), spec(TWO)))
    [container], [of_plugin] = pod["containers"], other["containers"]
    assert NVIDIA in of_plugin["resources"]["limits"]
    assert NVIDIA not in {**container["resources"]["limits"], **container["resources"]["requests"]}
    assert container["resources"]["claims"] == [{"name": "gpus"}, {"name": "port", "request": "nic"}]
    assert pod["resourceClaims"] == [GPUS, PORT]
    assert (container["image"], container["args"]) == (of_plugin["image"], of_plugin["args"])
    assert "--tensor-parallel-size=2" in container["args"]


def test_devices_of_a_claim_may_be_beside_accelerators_of_a_plugin() -> None:
    pod = deployment(child_of(spec(TWO, {**PORT, "accelerators": False})), 1)["spec"]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    assert (resources["limits"][NVIDIA], resources["claims"]) == ("2", [{"name": "port"}])


def test_spares_and_workers_have_the_claims_and_load_tests_have_none() -> None:
    child = child_of(claimed())
    group = leader_worker_set(child_of(spec_of("nodes") | {"pod": claimed()["pod"]}), 1)["spec"]["leaderWorkerTemplate"]
    for template in (
        spare_deployment(child, 1)["spec"]["template"],
        group["leaderTemplate"],
        group["workerTemplate"],
    ):
        assert template["spec"]["resourceClaims"] == [GPUS, PORT]
    assert "resourceClaims" not in load_test_job(child, "operator:1", {}, 60.0, 0.0)["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (claimed(), None),
        (spec({}, GPUS, PORT), None),
        (spec({}, {**GPUS, "accelerators": False}), None),
        (spec({}, {**GPUS, "name": "Gpus"}), "spec.pod.resourceClaims[0].name"),
        (spec({}, {**GPUS, "source": {}}), "spec.pod.resourceClaims[0].source"),
        (spec({}, {"name": "gpus"}), "spec.pod.resourceClaims"),
        (spec({}, {**GPUS, **PORT}), "spec.pod.resourceClaims"),
        (spec({}, GPUS, {**PORT, "name": "gpus"}), "spec.pod.resourceClaims"),
        (spec(TWO, GPUS), "spec.pod.resourceClaims"),
        (spec({}, {**GPUS, "accelerators": True}), "spec.resources.accelerator"),
    ],
)
def test_other_claims_are_refused_by_their_field(given: dict[str, Any], field: str | None) -> None:
    assert errors(given) == ([] if field is None else [field])


def test_a_claim_is_part_of_the_revision() -> None:
    assert revision_hash(claimed()) != revision_hash(spec(TWO))
    assert revision_hash(spec({})) == revision_hash({"model": {"source": "file:///m"}})
