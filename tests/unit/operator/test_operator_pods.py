"""Protects spec.pod and engine.env[].valueFrom: what is refused and by which field, that the pods of engines, spares, workers and load
tests have it, and that a service without them keeps its revision."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from support.golden_manifests import child_of, spec_of

from pagefleet_contract.names import REVISION_LABEL, SERVICE_LABEL
from pagefleet_operator.domain.base.revision import revision_hash
from pagefleet_operator.domain.manifests import retained
from pagefleet_operator.domain.manifests.deployment import deployment, start_seconds
from pagefleet_operator.domain.manifests.leaderworkerset import leader_worker_set
from pagefleet_operator.domain.manifests.load_test_job import load_test_job
from pagefleet_operator.domain.manifests.spare import spare_deployment
from pagefleet_operator.domain.spec.parse import SpecErrors, parse

POD = spec_of("full")["pod"]
REF: dict[str, Any] = {"secretKeyRef": {"name": "hub", "key": "token"}}
OTHER: dict[str, Any] = {"configMapKeyRef": {"name": "modes", "key": "mode"}}


def errors(**parts: Any) -> dict[str, str]:
    parsed = parse({"model": {"source": "file:///m"}, **parts})
    return {error.field: error.message for error in parsed.errors} if isinstance(parsed, SpecErrors) else {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pagefleet.io/revision", "'pagefleet.io/revision' is written by the operator"),
        ("app.kubernetes.io/name", "'app.kubernetes.io/name' is written by the operator"),
        ("-x", "'-x' is not a name of"),
        ("a/b/c", "'a/b/c' is not a name of"),
        ("Example.com/x", "'Example.com/x' is not a name of"),
        ("x" * 64, f"{'x' * 60!r} is not a name of"),
    ],
)
@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_names_that_no_object_can_have_or_that_are_the_operator_s_are_refused(
    kind: str, name: str, message: str
) -> None:
    assert errors(pod={kind: {name: "x"}})[f"spec.pod.{kind}"].startswith(message)
    assert errors(pod={kind: {"example.com/x": "x", "team": "a", "x" * 63: ""}}) == {}


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        ({"labels": {"team": "not a label"}}, "spec.pod.labels.team"),
        ({"imagePullSecrets": [{}]}, "spec.pod.imagePullSecrets[0].name"),
        ({"imagePullSecrets": ["registry"]}, "spec.pod.imagePullSecrets[0]"),
        ({"serviceAccountName": "Models"}, "spec.pod.serviceAccountName"),
        ({"priorityClassName": "a b"}, "spec.pod.priorityClassName"),
        ({"hostNetwork": True}, "spec.pod.hostNetwork"),
    ],
)
def test_other_values_are_refused_by_their_field(pod: dict[str, Any], field: str) -> None:
    assert list(errors(pod=pod)) == [field]


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ({"value": "1"}, ""),
        ({"value": ""}, ""),
        ({"valueFrom": REF}, ""),
        ({"valueFrom": OTHER}, ""),
        ({}, "each variable needs value or valueFrom, and not both"),
        ({"value": "1", "valueFrom": REF}, "each variable needs value or valueFrom, and not both"),
        ({"valueFrom": {}}, "each valueFrom needs secretKeyRef or configMapKeyRef, and not both"),
        ({"valueFrom": {**REF, **OTHER}}, "each valueFrom needs secretKeyRef or configMapKeyRef, and not both"),
    ],
)
def test_a_variable_has_a_value_or_one_place_of_it(variable: dict[str, Any], message: str) -> None:
    found = errors(engine={"env": [{"name": "HF_TOKEN", **variable}]})
    assert found == ({"spec.engine.env": message} if message else {})


def test_engines_spares_and_workers_have_all_of_it() -> None:
    child = child_of(spec_of("full"))
    grouped = leader_worker_set(child_of(spec_of("nodes") | {"pod": POD}), 1)
    groups = grouped["spec"]["leaderWorkerTemplate"]
    made = [deployment(child, 1), spare_deployment(child, 1)]
    templates = [one["spec"]["template"] for one in made] + [groups["leaderTemplate"], groups["workerTemplate"]]
    changed = ("labels", "annotations", "resourceClaims")
    fields = {name: value for name, value in POD.items() if name not in changed}
    for template in templates:
        assert fields.items() <= template["spec"].items()
        assert template["spec"]["automountServiceAccountToken"] is False
    for one in [*templates, *made, grouped]:
        assert POD["labels"].items() <= one["metadata"]["labels"].items()
        assert POD["annotations"].items() <= one["metadata"]["annotations"].items()
        assert REVISION_LABEL in one["metadata"]["labels"]


def test_a_load_test_can_be_pulled_and_admitted_but_is_no_engine() -> None:
    job = load_test_job(child_of(spec_of("full")), "operator:1", {}, 60.0, 0.0)
    template = job["spec"]["template"]
    assert template["spec"]["imagePullSecrets"] == POD["imagePullSecrets"]
    assert template["spec"]["priorityClassName"] == POD["priorityClassName"]
    assert "runtimeClassName" not in template["spec"]
    assert POD["labels"].items() <= template["metadata"]["labels"].items()
    assert SERVICE_LABEL not in template["metadata"]["labels"]


def test_the_operator_s_annotations_join_those_of_the_spec() -> None:
    made = deployment(child_of(spec_of("full")), 1)
    retained.stamp(made)
    assert POD["annotations"].items() < made["metadata"]["annotations"].items()


def test_a_service_without_spec_pod_keeps_its_revision_and_its_manifest() -> None:
    plain = spec_of("minimal")
    assert revision_hash(plain) == revision_hash(plain | {"pod": {}}) == revision_hash(plain | {"pod": {"labels": {}}})
    assert revision_hash(plain) != revision_hash(plain | {"pod": {"labels": {"team": "a"}}})
    assert "pod" not in yaml.dump(deployment(child_of(plain), 1)["metadata"]).split()


@pytest.mark.parametrize(("timeout", "seconds"), [("", 1800), ("2h", 7200), ("90s", 90), ("0.5s", 1)])
def test_an_engine_has_the_time_to_start_that_the_spec_gives_it(timeout: str, seconds: int) -> None:
    given = {"startTimeout": timeout} if timeout else {}
    spec = spec_of("minimal")
    spec = {**spec, "engine": {**spec.get("engine", {}), **given}}
    made = deployment(child_of(spec), 1)["spec"]
    (container,) = made["template"]["spec"]["containers"]
    probe = container["startupProbe"]
    assert (probe["periodSeconds"], probe["failureThreshold"]) == (1, seconds)
    assert made["progressDeadlineSeconds"] == max(3600, 2 * seconds), (
        "a start that is allowed is no rollout that is stuck"
    )


@pytest.mark.parametrize("timeout", ["soon", 7, [], {"a": 1}])
def test_a_time_to_start_of_an_old_spec_may_be_of_any_shape(timeout: object) -> None:
    assert start_seconds(timeout) == 1800


def test_another_time_to_start_is_another_revision() -> None:
    spec = {"model": {"source": "file:///m"}}
    assert revision_hash(spec) != revision_hash({**spec, "engine": {"startTimeout": "2h"}})
