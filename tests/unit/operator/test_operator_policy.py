"""Protects the optional limits on what an InferenceService may name: the operator's lists and the shipped
ValidatingAdmissionPolicy. Both refuse by the field, and nothing else of the service changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import celpy
import pytest
import yaml
from support.rule_examples import ADAPTERS, CUSTOM, spec

from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.policy import EVERYTHING, VARIABLES, Policy, from_environment, refusals
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.status import RevisionRecord, Status, Weight

FOLDER = Path(__file__).resolve().parents[3] / "manifests/policy"
IMAGE = f"evil.example:5000/models/x:1@sha256:{'0a' * 32}"
NOTHING = Policy((), (), (), (), ())
# What a spec may name: the policy's list, the field, the fields of the spec, the name.
NAMED: list[tuple[str, str, dict[str, Any], str]] = [
    ("images", "spec.engine.image", {"engine.image": "evil.example/x:1"}, "evil.example/x:1"),
    ("secrets", "spec.engine.apiKeySecretRef.name", {"engine.apiKeySecretRef": {"name": "db", "key": "k"}}, "db"),
    (
        "config_maps",
        "spec.model.chatTemplate.configMapKeyRef.name",
        {"model.chatTemplate": {"configMapKeyRef": {"name": "t", "key": "k"}}},
        "t",
    ),
    ("claims", "spec.model.cache.claim", {"model.source": "hf://a/b", "model.cache": {"claim": "c"}}, "c"),
    ("claims", "spec.model.source", {"model.source": "pvc://w/m"}, "w"),
    (
        "claims",
        "spec.model.speculation.model",
        {"model.speculation": {"method": "draft", "model": "pvc://d"}},
        "d",
    ),
    (
        "secrets",
        "spec.engine.env[0].valueFrom.secretKeyRef.name",
        {"engine.env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}}]},
        "db",
    ),
    (
        "config_maps",
        "spec.engine.env[0].valueFrom.configMapKeyRef.name",
        {"engine.env": [{"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "t", "key": "k"}}}]},
        "t",
    ),
    ("secrets", "spec.pod.imagePullSecrets[0].name", {"pod.imagePullSecrets": [{"name": "db"}]}, "db"),
    ("service_accounts", "spec.pod.serviceAccountName", {"pod.serviceAccountName": "admin"}, "admin"),
    ("images", "spec.model.source", {"model.source": f"oci://{IMAGE}/weights@2"}, IMAGE),
    ("images", "spec.model.adapters[0].source", {"model.adapters": [{"name": "a", "source": f"oci://{IMAGE}"}]}, IMAGE),
    ("claims", "spec.model.adapters[0].source", {"model.adapters": [{"name": "a", "source": "pvc://l/a"}]}, "l"),
]
IDS = [entry[1] for entry in NAMED]


@pytest.mark.parametrize(("kind", "field", "fields", "name"), NAMED, ids=IDS)
def test_a_name_that_no_list_allows_is_refused_by_its_field(
    kind: str, field: str, fields: dict[str, Any], name: str
) -> None:
    given = spec(fields)
    assert isinstance(parse(given), Spec)
    assert refusals(EVERYTHING, given) == []
    [error] = refusals(NOTHING, given)
    assert (error.field, error.message) == (
        field,
        f"{name!r} is not allowed in this cluster; none is ({VARIABLES[kind]} of the operator)",
    )
    assert refusals(Policy(**{kind: ("other", f"{name[0]}*")}), given) == []
    [listed] = refusals(Policy(**{kind: ("other", "more-*")}), given)
    assert listed.message.endswith(f"allowed are other, more-* ({VARIABLES[kind]} of the operator)")


def test_the_lists_come_from_the_environment_and_are_off_without_it() -> None:
    assert from_environment({}) == EVERYTHING
    given = {"PAGEFLEET_ALLOWED_IMAGES": "a/*, b/*", "PAGEFLEET_ALLOWED_SECRETS": ""}
    assert from_environment(given) == Policy(images=("a/*", "b/*"), secrets=())


def test_the_default_image_and_other_sources_are_nobodys_choice() -> None:
    assert refusals(NOTHING, spec({"model.source": "hf://a/b", "model.adapters": ADAPTERS})) == []


def test_a_refused_spec_gets_a_condition_and_an_event_and_nothing_else_changes() -> None:
    running, refused = spec({}), spec({"engine.image": "evil.example/x:1", "scaling": {"min": 3, "max": 3}})
    record = RevisionRecord("0a1b2c3d", 900.0, running, desired=1)
    status = Status(stable="0a1b2c3d", traffic=(Weight("0a1b2c3d", 100),), revisions=(record,))
    pod = PodReading("p", ready=True, terminating=False, created=900.0, ready_since=910.0)
    reading = {"0a1b2c3d": RevisionReading("0a1b2c3d", 1, (pod,))}

    def decided(policy: Policy, before: Status) -> Any:
        return decide(Observation("team-a", "chat", "u", 2, refused, before, reading, policy=policy), 1000.0)

    plan = decided(Policy(images=("docker.io/pagefleet/*",)), status)
    conditions = {one.type: one for one in plan.status.conditions}
    assert (conditions["Degraded"].reason, conditions["Ready"].status) == ("NotAllowed", "True")
    assert conditions["Degraded"].message.startswith("spec.engine.image: 'evil.example/x:1' is not allowed")
    assert [event.reason for event in plan.events] == ["NotAllowed"]
    assert (plan.status.canary, plan.status.traffic) == ("", status.traffic)
    [deployment] = [child for child in plan.children if child["kind"] == "Deployment"]
    assert deployment["spec"]["replicas"] == 1
    assert decided(Policy(images=("docker.io/pagefleet/*",)), plan.status).events == ()
    assert decided(EVERYTHING, status).status.canary, "without a list the same spec is rolled out"


def policy() -> dict[str, Any]:
    made: dict[str, Any] = next(iter(yaml.safe_load_all((FOLDER / "policy.yaml").read_text())))["spec"]
    return made


def limits() -> dict[str, str]:
    made: dict[str, str] = yaml.safe_load((FOLDER / "limits.yaml").read_text())["data"]
    return made


def split(text: str, separator: str) -> Any:
    """Of the API server's strings library."""
    return celpy.json_to_cel(str(text).split(str(separator)))


def denied(given: dict[str, Any], data: dict[str, str]) -> list[str]:
    """The messages of the validations that fail, as an API server evaluates them: the variables first, in their order."""
    environment = celpy.Environment()
    known: dict[str, Any] = {}
    values = {"object": celpy.json_to_cel({"spec": given}), "params": celpy.json_to_cel({"data": data})}

    def value(expression: str) -> Any:
        program = environment.program(environment.compile(expression), functions={"split": split})
        return program.evaluate({**values, "variables": celpy.celtypes.MapType(known)})

    described = policy()
    for variable in described["variables"]:
        known[celpy.celtypes.StringType(variable["name"])] = value(variable["expression"])
    return [one["message"] for one in described["validations"] if not bool(value(one["expression"]))]


LISTS = {
    "images": "images",
    "secrets": "secrets",
    "config_maps": "configMaps",
    "claims": "claims",
    "service_accounts": "serviceAccounts",
}


@pytest.mark.parametrize(("kind", "field", "fields", "name"), NAMED, ids=IDS)
def test_the_admission_policy_denies_what_the_operator_refuses(
    kind: str, field: str, fields: dict[str, Any], name: str
) -> None:
    given = spec(fields)
    assert denied(given, {}) == [], "without a key everything is allowed"
    [message] = denied(given, {LISTS[kind]: "other"})
    assert field.startswith(message.partition(":")[0])
    assert f"ConfigMap pagefleet-limits, {LISTS[kind]}" in message
    assert denied(given, {LISTS[kind]: f"other|{re.escape(name)}"}) == []
    assert denied(given, {LISTS[kind]: name[:1]}) == ([] if len(name) == 1 else [message]), "the whole name must match"


def test_a_claims_expression_reads_no_path() -> None:
    """Else the path of a foreign claim could be written so that it matches."""
    assert denied(spec({"model.source": "pvc://secret/models-a"}), {"claims": ".*models.*"})


def test_the_admission_policy_denies_commands_and_foreign_gateways() -> None:
    command = {**spec(CUSTOM)["engine"], "command": ["sh"]}
    assert denied({**spec({}), "engine": command}, {"commands": "true"}) == []
    [message] = denied({**spec({}), "engine": command}, {"commands": "false"})
    assert message.startswith("spec.engine: command and preStop")
    routed = spec({"traffic.gatewayAPI": {"parentRefs": [{"name": "a"}, {"name": "b", "namespace": "other"}]}})
    assert denied(routed, {"gatewayNamespaces": "other|ingress"}) == []
    [message] = denied(routed, {"gatewayNamespaces": "ingress"})
    assert message.startswith("spec.traffic.gatewayAPI.parentRefs")


def test_the_shipped_limits_are_expressions_of_known_lists() -> None:
    text = (FOLDER / "policy.yaml").read_text()
    for key, value in limits().items():
        assert f"'{key}' in params.data" in text
        re.compile(value)
    assert denied(spec({"engine.image": "docker.io/pagefleet/engine-cpu:1"}), limits()) == []
    assert denied(spec({"engine.image": "docker.io/pagefleet.evil/engine-cpu:1"}), limits())
