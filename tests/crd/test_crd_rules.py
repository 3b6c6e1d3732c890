"""Protects the CRD's schema and rules on the server that today's clusters run: it takes them without a warning and within its
budget of costs, refuses by each rule what the operator refuses by it, and nothing else.

tests/contract/test_cel_rules.py holds the operator's evaluation against a second implementation; here is the third, Kubernetes' own.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from support.crd_server import CRD, CRDS, Document, Requests, running, shipped
from support.rule_examples import SPEC_EXAMPLES, Example, spec
from support.rule_examples_engine import ENGINE_EXAMPLES
from support.rule_examples_traffic import TRAFFIC_EXAMPLES
from support.rule_objects import PARTS

from pagefleet_local.assets.crdserver import CrdServer
from pagefleet_operator.domain.spec.rules.check import RULES
from pagefleet_operator.domain.spec.rules.evaluate import violations
from pagefleet_operator.domain.spec.schema import structure
from pagefleet_operator.domain.spec.schema.spec import SPEC

FIRST_MINOR = 30  # a server older than that would not be a proof about today's clusters
ALL_RULES = {f"{rule.field}: {rule.message}" for rule in RULES}


def broken(server: Requests, document: dict[str, Any]) -> set[str]:
    """Return the rules that the server refuses this spec by."""
    answer = server.tried(document)
    causes = answer.body.get("details", {}).get("causes", []) if answer.status == 422 else []
    assert answer.status in (201, 422), answer.message
    return {rule for rule in ALL_RULES if any(rule in cause["message"] for cause in causes)}


def test_the_server_is_a_current_one(server: Requests, program: CrdServer) -> None:
    version = server.get("/version")
    assert version["gitVersion"] == f"v{program.version}"
    assert program.minor >= FIRST_MINOR


def test_the_crd_is_taken_without_a_warning_and_served(server: Requests) -> None:
    """Its strict answer to the same CRD by another name has no warning; the CRD that it serves has no complaint."""
    definition = shipped()
    definition["metadata"]["name"] = "others.example.com"
    definition["spec"]["group"] = "example.com"
    definition["spec"]["names"] = {"plural": "others", "singular": "other", "kind": "Other", "listKind": "OtherList"}
    answer = server.request("POST", f"{CRDS}?dryRun=All&fieldValidation=Strict", definition)
    assert (answer.status, answer.warnings) == (201, []), answer.message
    conditions = server.get(CRD)["status"]["conditions"]
    assert {one["type"]: one["status"] for one in conditions} == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            "self.model.adapters.all(a, self.model.adapters.all(b, self.model.adapters.all(c, a == b || c == b)))",
            "cost",
        ),
        ("self.missing == 1", "undefined field"),
        ("self.model.source", "must evaluate to a bool"),
    ],
)
def test_a_rule_that_today_s_servers_refuse_is_refused(server: Requests, rule: str, words: str) -> None:
    """The test above can fail."""
    definition = shipped()
    schema = spec_schema(definition)
    adapters = schema["properties"]["model"]["properties"]["adapters"]
    del adapters["maxItems"]
    schema["x-kubernetes-validations"] = [{"rule": rule, "message": "x"}]
    definition["metadata"]["resourceVersion"] = server.get(CRD)["metadata"]["resourceVersion"]
    answer = server.request("PUT", f"{CRD}?dryRun=All", definition)
    assert answer.status == 422
    assert words in answer.message


def spec_schema(definition: Document) -> Document:
    found: Document = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


EXAMPLES = (*SPEC_EXAMPLES, *TRAFFIC_EXAMPLES, *ENGINE_EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.field} {json.dumps(example.refused)}")
def test_a_rule_refuses_its_example_and_accepts_the_nearest_other(server: Requests, example: Example) -> None:
    refused, accepted = server.tried(spec(example.refused)), server.tried(spec(example.accepted))
    assert refused.status == 422, refused.body
    assert example.field in refused.message
    assert example.words in refused.message
    assert accepted.status == 201, accepted.message


def test_the_oldest_version_that_it_emulates_takes_the_crd_and_holds_the_rules(
    program: CrdServer, tmp_path: Path
) -> None:
    with running(program, tmp_path, program.oldest_emulated) as old:
        assert f"1.{old.get('/version')['emulationMinor']}" == program.oldest_emulated
        assert old.install(shipped()).warnings == []
        for example in EXAMPLES:
            refused, accepted = old.tried(spec(example.refused)), old.tried(spec(example.accepted))
            assert (refused.status, accepted.status) == (422, 201), example
            assert example.words in refused.message


@pytest.mark.parametrize("at", PARTS, ids=lambda at: ".".join(at) or "spec")
def test_generated_objects_break_the_same_rules_here_and_in_the_operator(server: Requests, at: tuple[str, ...]) -> None:
    @settings(max_examples=25)
    @given(PARTS[at])
    def same(part: dict[str, Any]) -> None:
        document: dict[str, Any] = {"model": {"source": "file:///m"}}
        place = document
        for name in at[:-1]:
            place = place.setdefault(name, {})
        if at:
            place[at[-1]] = {**place.get(at[-1], {}), **part}
        else:
            document.update(copy.deepcopy(part))
        if structure.check(document, SPEC, "spec"):
            return  # the schema refuses it before the rules
        filled = structure.filled(copy.deepcopy(document), SPEC)
        mine = {f"{error.field}: {error.message}" for error in violations(RULES, filled)}
        assert broken(server, document) == mine

    same()
