"""Protects the two rules of a write to a child: a field that somebody else has changed is written again, at first at once and
then less and less often; whatever others add beside our fields, or rewrite while we write, is left alone."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from support.golden_manifests import child_of, spec_of

from pagefleet_contract.names import APPLIED_ANNOTATION, OPERATOR, REVISION_LABEL, SERVICE_LABEL
from pagefleet_operator.domain.manifests import disputes, ownership, retained
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.disputes import Disputes

Document = dict[str, Any]
PORT = '{"containerPort":8000,"protocol":"TCP"}'


def fields_of(value: Any) -> Any:
    """managedFields of a Deployment's applied part: ports by number and protocol, other named entries by name."""
    if isinstance(value, dict):
        return {f"f:{name}": fields_of(entry) for name, entry in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict) and "name" in value[0]:
        keyed = {}
        for entry in value:
            names = ("containerPort", "protocol") if "containerPort" in entry else ("name",)
            if "mountPath" in entry:
                names = ("mountPath",)
            keyed["k:" + json.dumps({name: entry[name] for name in names})] = {".": {}, **fields_of(entry)}
        return keyed
    return {}


def applied() -> tuple[Document, Document]:
    """A stamped manifest, and the live object after it was applied."""
    manifest = deployment(child_of(spec_of("minimal")), 2)
    retained.stamp(manifest)
    live = copy.deepcopy(manifest)
    live["metadata"]["uid"] = "u"
    named = {name: manifest["metadata"][name] for name in ("annotations", "labels")}
    fields = fields_of({"metadata": named, "spec": manifest["spec"]})
    entry = {"manager": OPERATOR, "operation": "Apply", "fieldsV1": fields}
    live["metadata"]["managedFields"] = [entry]
    return manifest, live


def pod(document: Document) -> Document:
    found: Document = document["spec"]["template"]["spec"]
    return found


def ours(live: Document) -> Document:
    found: Document = live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]
    return found


def test_an_applied_object_is_not_written_again() -> None:
    assert ownership.drift(*applied(), OPERATOR) == ("", "")


@pytest.mark.parametrize("label", [REVISION_LABEL, SERVICE_LABEL])
def test_a_label_that_somebody_has_changed_is_written_again(label: str) -> None:
    """By its labels a child is found, and told from those of other revisions and services."""
    manifest, live = applied()
    live["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"].pop(f"f:{label}")
    assert ownership.drift(manifest, live, OPERATOR) == (ownership.LOST, f"metadata.labels.{label}")


def add_label(live: Document) -> None:
    live["metadata"]["labels"]["team"] = "a"


def add_sidecar(live: Document) -> None:
    pod(live)["containers"].insert(0, {"name": "mesh", "image": "proxy"})


def add_volume(live: Document) -> None:
    pod(live)["volumes"].append({"name": "mesh", "emptyDir": {}})


def add_env(live: Document) -> None:
    pod(live)["containers"][0]["env"].append({"name": "TEAM", "value": "a"})


def rewrite_image(live: Document) -> None:
    pod(live)["containers"][0]["image"] = "mirror.example/engine"


def append_argument(live: Document) -> None:
    pod(live)["containers"][0]["args"].append("--more")


def add_defaults(live: Document) -> None:
    pod(live)["schedulerName"] = "default-scheduler"
    pod(live)["containers"][0]["resources"]["requests"]["cpu"] = "1000m"


@pytest.mark.parametrize(
    "change",
    [add_label, add_sidecar, add_volume, add_env, rewrite_image, append_argument, add_defaults],
    ids=lambda f: f.__name__,
)
def test_additions_and_rewritten_values_of_our_own_fields_are_left_alone(change: Any) -> None:
    manifest, live = applied()
    change(live)
    assert ownership.drift(manifest, live, OPERATOR) == ("", "")


@pytest.mark.parametrize(
    ("lose", "field"),
    [
        (lambda f: f.pop("f:replicas"), "spec.replicas"),
        (lambda f: f["f:template"]["f:spec"].pop("f:terminationGracePeriodSeconds"), "terminationGracePeriodSeconds"),
        (lambda f: f["f:template"]["f:spec"]["f:containers"]['k:{"name": "engine"}'].pop("f:image"), "[engine].image"),
        (lambda f: f["f:template"]["f:spec"]["f:containers"].clear() or f["f:template"]["f:spec"]["f:containers"].update(
            {'k:{"name":"other"}': {}}), "containers[engine]"),
    ],
)  # fmt: skip
def test_a_field_that_somebody_else_has_taken_is_written_again(lose: Any, field: str) -> None:
    manifest, live = applied()
    lose(ours(live))
    kind, path = ownership.drift(manifest, live, OPERATOR)
    assert kind == ownership.LOST
    assert path.endswith(field)


def test_replicas_count_by_value_for_servers_that_do_not_record_who_scales() -> None:
    manifest, live = applied()
    live["spec"]["replicas"] = 3
    assert ownership.drift(manifest, live, OPERATOR) == (ownership.LOST, "spec.replicas")


def test_a_changed_plan_is_written_whatever_the_fields_say() -> None:
    manifest, live = applied()
    live["metadata"]["annotations"][APPLIED_ANNOTATION] = "another"
    assert ownership.drift(manifest, live, OPERATOR) == (ownership.CHANGED, "")


def test_without_managed_fields_values_decide_and_additions_do_not_matter() -> None:
    manifest, live = applied()
    del live["metadata"]["managedFields"]
    for change in (add_volume, add_env, add_defaults, add_sidecar):
        change(live)
    assert ownership.drift(manifest, live, OPERATOR) == ("", "")
    pod(live)["containers"][1]["image"] = "mirror.example/engine"
    kind, path = ownership.drift(manifest, live, OPERATOR)
    assert kind == ownership.LOST
    assert "containers[engine].image is" in path


def test_the_field_and_both_values_of_a_rewritten_object_are_named() -> None:
    manifest, live = applied()
    assert ownership.rewritten(manifest["spec"], live["spec"], "spec") == ""
    rewrite_image(live)
    image = pod(manifest)["containers"][0]["image"]
    assert ownership.rewritten(manifest["spec"], live["spec"], "spec") == (
        f'spec.template.spec.containers[engine].image is "mirror.example/engine", not "{image}"'
    )


@pytest.mark.parametrize(
    ("given", "stored"),
    [("1.4", "1400m"), ("2.3", "2300m"), ("1.4Gi", "1503238553600m"), ("0.7Ti", "769658139443200m"), ("1024Mi", "1Gi")],
)
def test_a_quantity_that_the_api_server_writes_in_its_own_way_is_nobodys_rewriting(given: str, stored: str) -> None:
    """Their floating-point numbers differ: 1.4 is not 1400 times 0.001."""
    assert ownership.rewritten({"cpu": given}, {"cpu": stored}) == ""
    assert ownership.rewritten({"cpu": given}, {"cpu": f"1{stored}"}) != ""


def test_two_listeners_of_one_gateway_are_compared_each_with_its_own() -> None:
    listeners = ("http", "https")
    parents = {"parentRefs": [{"name": "edge", "sectionName": one} for one in listeners]}
    stored = {"parentRefs": [{"group": "gateway.networking.k8s.io", **one} for one in parents["parentRefs"]]}
    assert ownership.rewritten(parents, stored, "spec") == ""
    stored["parentRefs"][0]["sectionName"] = "other"
    assert ownership.rewritten(parents, stored, "spec") == 'spec.parentRefs[edge].sectionName is "other", not "http"'


def test_the_latest_other_writer_is_named() -> None:
    _, live = applied()
    others = [
        ("kubectl-set", "2026-01-02T00:00:00Z", "f:spec"),
        ("kube-controller-manager", "2026-01-03T00:00:00Z", "f:status"),
    ]
    live["metadata"]["managedFields"] += [
        {"manager": name, "operation": "Update", "time": time, "fieldsV1": {field: {}}} for name, time, field in others
    ]
    assert ownership.overwriter(live, OPERATOR) == "kubectl-set"


def test_repairs_come_at_once_and_then_ever_more_seldom() -> None:
    known, now, times = Disputes(), 0.0, []
    while now < 8 * 3600:
        if known.may_repair("u", now):
            known.repaired("u", now)
            times.append(now)
        now += 5.0
    assert times[:5] == [0.0, 5.0, 10.0, 15.0, 75.0]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[4:])]
    assert gaps == sorted(gaps)
    assert gaps[-1] == disputes.MAX_PAUSE
    assert len(times) < 20
    assert known.may_repair("another", 0.0)


def test_a_dispute_that_is_over_is_forgotten() -> None:
    known = Disputes()
    for index in range(disputes.FREE_REPAIRS):
        known.repaired("u", float(index))
    assert not known.may_repair("u", 10.0)
    later = disputes.FORGOTTEN + 10.0
    assert known.may_repair("u", later)
    assert known.repaired("u", later).repairs == 1
