"""Protects the rules of `.spec` that cross fields: each is written once, in CEL, for the API server and the operator.

`EXAMPLES` (tests/support/rule_examples*.py) has a spec that each rule refuses, and the nearest one that it accepts. A second implementation
of CEL (celpy) must agree with the operator's on them and on generated objects.
"""

from __future__ import annotations

import json
from typing import Any

import celpy
import pytest
from hypothesis import given, settings
from support.rule_examples import ADAPTERS, SPEC_EXAMPLES, Example, spec
from support.rule_examples_engine import ENGINE_EXAMPLES
from support.rule_examples_traffic import TRAFFIC_EXAMPLES
from support.rule_objects import PARTS

from pagefleet_operator import crd
from pagefleet_operator.domain.spec.parse import Spec, SpecErrors, parse
from pagefleet_operator.domain.spec.rules.check import RULES
from pagefleet_operator.domain.spec.rules.evaluate import violations
from pagefleet_operator.domain.spec.rules.rule import Rule

EXAMPLES = (*SPEC_EXAMPLES, *TRAFFIC_EXAMPLES, *ENGINE_EXAMPLES)


def shown(example: Example) -> str:
    return f"{example.field} {json.dumps(example.refused)}"


@pytest.mark.parametrize("example", EXAMPLES, ids=shown)
def test_a_rule_refuses_its_example_by_its_field_and_accepts_the_nearest_other(example: Example) -> None:
    refused, accepted = parse(spec(example.refused)), parse(spec(example.accepted))
    assert isinstance(refused, SpecErrors)
    assert [error.field for error in refused.errors] == [example.field], refused.message
    assert example.words in refused.errors[0].message
    assert isinstance(accepted, Spec), accepted


def test_every_rule_has_an_example() -> None:
    results = [parse(spec(example.refused)) for example in EXAMPLES]
    refused = {(e.field, e.message) for result in results if isinstance(result, SpecErrors) for e in result.errors}
    assert len({(rule.field, rule.message) for rule in RULES}) == len(RULES), (
        "two rules have the same field and message"
    )
    assert [rule for rule in RULES if (rule.field, rule.message) not in refused] == []


def test_the_crd_ships_every_rule_where_the_operator_applies_it() -> None:
    root = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    shipped = []

    def walk(part: dict[str, Any], at: tuple[str, ...]) -> None:
        shipped.extend((at, entry["rule"], entry["message"]) for entry in part.get("x-kubernetes-validations", ()))
        for name, sub in part.get("properties", {}).items():
            walk(sub, (*at, name))

    walk(root, ())
    assert sorted(shipped) == sorted((rule.at, rule.cel, f"{rule.field}: {rule.message}") for rule in RULES)


@pytest.mark.parametrize(
    "cel",
    ["self.missing", "self.model.source > 1", "self.model.source", "duration('x') > duration('0s')", "self.(", "1"],
)
def test_a_rule_that_cannot_be_evaluated_refuses_by_its_field(cel: str) -> None:
    broken = Rule((), "spec.model.source", cel, "must be readable")
    [error] = violations([broken], spec({}))
    assert error.field == "spec.model.source"
    assert error.message.startswith("must be readable (the rule could not be evaluated: ")


def test_a_text_that_the_rules_cannot_read_refuses_and_does_not_raise() -> None:
    result = parse(spec({"model.source": "file://\ud800", "model.adapters": ADAPTERS}))
    assert isinstance(result, SpecErrors)
    assert "spec.model.adapters" in {error.field for error in result.errors}


def test_a_rule_applies_only_where_its_object_is() -> None:
    absent = Rule(("rollout", "guard"), "spec.rollout.guard", "false", "is never right")
    assert list(violations([absent], spec({}))) == []
    assert len(list(violations([absent], spec({"rollout.guard": {}})))) == 1


def placed(at: tuple[str, ...], part: dict[str, Any]) -> dict[str, Any]:
    """Return a spec with nothing but `part` at its place."""
    for name in reversed(at):
        part = {name: part}
    return part


def agree(programs: dict[Rule, Any], at: tuple[str, ...], part: dict[str, Any]) -> None:
    value = celpy.json_to_cel(part)
    refused = {(error.field, error.message) for error in violations(programs, placed(at, part))}
    for rule, program in programs.items():
        held = bool(program.evaluate({"self": value}))
        assert held == ((rule.field, rule.message) not in refused), rule.message


def test_every_place_of_a_rule_has_generated_objects() -> None:
    assert {rule.at for rule in RULES} == set(PARTS)


@pytest.mark.parametrize("at", PARTS, ids=lambda at: ".".join(at) or "spec")
def test_another_implementation_of_cel_refuses_the_same(at: tuple[str, ...]) -> None:
    environment = celpy.Environment()  # sets the recursion limit, which hypothesis watches
    programs = {rule: environment.program(environment.compile(rule.cel)) for rule in RULES if rule.at == at}

    @settings(max_examples=60)
    @given(PARTS[at])
    def same(part: dict[str, Any]) -> None:
        agree(programs, at, part)

    same()
