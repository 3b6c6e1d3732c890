"""Protects what becomes of an InferenceService on the server that today's clusters run: its defaults, fields that nobody knows, the
status and scale subresources, an old object that newer rules refuse, and fields that several managers apply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.crd_server import CRD, SERVICES, Document, Requests, service, shipped
from support.rule_examples import spec

from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.schema.spec import SPEC

MODE, PROXY = {"name": "MODE", "value": "a"}, {"name": "HTTPS_PROXY", "value": "http://proxy"}
LISTS = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys")
CONSTRAINTS = ("x-kubernetes-validations", "pattern", "enum", "maxLength", "minimum", "maximum", "maxItems", *LISTS)


def test_the_server_fills_in_the_operator_s_defaults(server: Requests) -> None:
    """Every field with a default is present in the spec that the server completes."""
    made = server.tried(full(SPEC)).done()["spec"]
    assert missing(SPEC, made, "spec") == []
    small = server.tried(spec({})).done()["spec"]
    of_server, of_operator = parse(small), parse(spec({}))
    assert isinstance(of_server, Spec) and isinstance(of_operator, Spec)
    assert of_server == of_operator


def test_a_field_that_nobody_knows_is_refused_or_named_and_dropped(server: Requests) -> None:
    document = service("unknown", spec({"scaling.maximum": 3}))
    strict = server.create(document, "dryRun=All&fieldValidation=Strict")
    assert (strict.status, 'unknown field "spec.scaling.maximum"' in strict.message) == (400, True)
    warned = server.create(document, "dryRun=All&fieldValidation=Warn")
    assert any("spec.scaling.maximum" in warning for warning in warned.warnings)
    assert "maximum" not in warned.done()["spec"]["scaling"]


def test_a_status_and_a_scale_are_written_apart_from_the_spec(server: Requests) -> None:
    path = f"{SERVICES}/parts"
    server.create(service("parts", spec({"scaling.min": 1, "scaling.max": 4}))).done()
    written = server.merge(f"{path}/status", {"status": {"replicas": 2, "selector": "a=b"}, "spec": {"scaling": None}})
    assert written.done()["spec"]["scaling"]["max"] == 4
    assert written.body["metadata"]["generation"] == 1
    ignored = server.merge(path, {"status": {"replicas": 9}}).done()
    assert ignored["status"]["replicas"] == 2
    assert server.get(f"{path}/scale")["status"] == {"replicas": 2, "selector": "a=b"}
    server.merge(f"{path}/scale", {"spec": {"replicas": 3}}).done()
    scaled = server.get(path)
    assert (scaled["spec"]["scaling"]["min"], scaled["metadata"]["generation"]) == (3, 2)
    refused = server.merge(f"{path}/scale", {"spec": {"replicas": 5}})
    assert refused.status == 422, "a scale is held to the rules: min is above max"


OLD = {
    "model.source": "ftp://old/model",  # no pattern of today
    "rollout.guard": {"latency": [{"signal": "itl", "source": "Gateway"}]},  # a rule of the guard
    "scaling.max": 3,
}


@pytest.fixture(scope="module")
def old(bare: Requests) -> Iterator[Requests]:
    """Yield a server with an object of a time when the CRD had no constraints. The CRD is today's by now."""
    today, free = shipped(), shipped()
    unconstrained(free["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    if bare.request("GET", CRD).status == 200:
        bare.change(free, lambda: bare.tried(spec(OLD)).status == 201, "nothing is constrained")
    else:
        bare.install(free).done()
    bare.create(service("old", spec(OLD))).done()
    bare.apply("listed", "team", {"spec": {"model": {"source": "file:///a"}, "engine": {"env": [MODE]}}}).done()
    bare.change(today, lambda: bare.tried(spec(OLD)).status == 422, "the rules hold")
    yield bare


def test_an_old_object_that_newer_rules_refuse_stays_editable_where_it_is_right(old: Requests) -> None:
    path = f"{SERVICES}/old"
    assert old.merge(path, {"metadata": {"labels": {"team": "a"}, "finalizers": ["pagefleet.io/x"]}}).status == 200
    assert old.merge(f"{path}/status", {"status": {"replicas": 1}}).status == 200, "the operator reports about it"
    assert old.merge(path, {"spec": {"scaling": {"max": 4}}}).status == 200
    assert old.merge(path, {"metadata": {"finalizers": []}}).status == 200, "it can be deleted"


def test_a_creation_that_is_tried_tells_which_old_objects_newer_rules_refuse(old: Requests) -> None:
    """So does docs/install.md find them before an upgrade. A label that is tried finds none: see above."""
    wrong = old.create(service("old", spec(OLD)), "dryRun=All")
    assert (wrong.status, "spec.model.source" in wrong.message) == (422, True)
    right = old.create(service("listed", spec({})), "dryRun=All")
    assert (right.status, right.body["reason"]) == (409, "AlreadyExists")


def test_what_is_wrong_in_an_old_object_can_only_be_put_right(old: Requests) -> None:
    path = f"{SERVICES}/old"
    other = old.merge(path, {"spec": {"model": {"source": "ftp://other"}}})
    assert (other.status, "spec.model.source" in other.message) == (422, True)
    wrong = {"latency": [{"signal": "tpot", "source": "Engine"}]}
    refused = old.merge(path, {"spec": {"rollout": {"guard": wrong}}})
    assert (refused.status, "tpot is measured by source Gateway" in refused.message) == (422, True)
    assert old.merge(path, {"spec": {"model": {"source": "file:///m"}}}).status == 200
    assert old.merge(path, {"spec": {"rollout": {"guard": {"latency": [{"signal": "ttft"}]}}}}).status == 200
    again = old.merge(path, {"spec": {"model": {"source": "ftp://old/model"}}})
    assert again.status == 422, "what was put right stays right"


def test_a_list_that_was_one_value_is_shared_by_its_entries_once_they_have_names(old: Requests) -> None:
    both = old.apply("listed", "platform", {"spec": {"engine": {"env": [PROXY]}}}).done()
    assert both["spec"]["engine"]["env"] == [MODE, PROXY]


def test_managers_own_the_fields_that_they_apply(server: Requests) -> None:
    name = "shared"
    server.apply(name, "team", {"spec": {"model": {"source": "file:///a"}, "scaling": {"max": 4}}}).done()
    server.apply(name, "platform", {"spec": {"owner": {"team": "a"}, "scaling": {"tolerance": "20%"}}}).done()
    conflict = server.apply(name, "platform", {"spec": {"owner": {"team": "a"}, "scaling": {"max": 2}}})
    assert (conflict.status, ".spec.scaling.max" in conflict.message) == (409, True)
    forced = server.apply(
        name, "platform", {"spec": {"owner": {"team": "a"}, "scaling": {"max": 2}}}, force=True
    ).done()
    assert (forced["spec"]["scaling"]["max"], forced["spec"]["scaling"]["tolerance"]) == (2, "10%"), "its default again"
    refused = server.apply(name, "team", {"spec": {"model": {"source": "ftp://a"}, "scaling": {"max": 2}}})
    assert refused.status == 422
    left = server.apply(name, "platform", {"spec": {}}).done()
    assert left["spec"].keys() == {"model"}, "what nobody applies any more is gone"


def test_managers_own_entries_of_lists_that_have_names(server: Requests) -> None:
    """One team sets a variable, another adds one; a status's conditions may be written by several programs."""
    name, model = "entries", {"model": {"source": "file:///a"}}
    server.apply(name, "team", {"spec": {**model, "engine": {"env": [MODE]}}}).done()
    both = server.apply(name, "platform", {"spec": {"engine": {"env": [PROXY]}}}).done()
    assert both["spec"]["engine"]["env"] == [MODE, PROXY]
    conflict = server.apply(name, "platform", {"spec": {"engine": {"env": [{**MODE, "value": "b"}]}}})
    assert (conflict.status, '.spec.engine.env[name="MODE"].value' in conflict.message) == (409, True)
    left = server.apply(name, "team", {"spec": model}).done()
    assert left["spec"]["engine"]["env"] == [PROXY]


def test_a_list_without_names_is_one_value(server: Requests) -> None:
    name, steps = "atomic", [{"weight": 10}, {"weight": 50}]
    server.apply(
        name, "team", {"spec": {"model": {"source": "file:///a"}, "rollout": {"steps": steps, "guard": {}}}}
    ).done()
    conflict = server.apply(name, "platform", {"spec": {"rollout": {"steps": [{"weight": 20}]}}})
    assert (conflict.status, ".spec.rollout.steps" in conflict.message) == (409, True)


def full(schema: Document) -> Document:
    """Return the objects of a schema that have no required field, empty, so that what is in them is filled in."""
    made: Document = {"model": {"source": "file:///m"}} if schema is SPEC else {}
    for name, sub in schema.get("properties", {}).items():
        if sub.get("type") == "object" and not sub.get("required") and name != "model" and "properties" in sub:
            inner = full(sub)
            if inner or any("default" in one for one in sub["properties"].values()):
                made[name] = inner
    return made


def missing(schema: Document, made: Any, path: str) -> list[str]:
    """Return the fields with a default that an object lacks where it is present."""
    found = []
    for name, sub in schema.get("properties", {}).items():
        if "default" in sub and made.get(name) != sub["default"]:
            found.append(f"{path}.{name}")
        elif isinstance(made.get(name), dict):
            found += missing(sub, made[name], f"{path}.{name}")
    return found


def unconstrained(schema: Any) -> None:
    """Take the constraints out of a schema."""
    if isinstance(schema, dict):
        for word in CONSTRAINTS:
            # A property may have such a name: then it is a schema, not a constraint.
            if word in schema and not (isinstance(schema[word], dict)):
                del schema[word]
        for part in schema.values():
            unconstrained(part)
