"""Protects the objects that the operator makes and that the repository ships from going stale: Kubernetes' own Go types of a current
version know every field of them, and call neither a field nor an API version deprecated."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest
from support.golden_manifests import MADE, SPECS, child_of, spec_of
from support.helm_chart import CHART, rendered

from pagefleet_local.assets.crdserver import CrdServer
from pagefleet_local.chart.source import MANIFESTS, kustomized
from pagefleet_operator.domain.manifests.load_test_job import load_test_job

Document = dict[str, Any]
# What is not Kubernetes' own has no type there: tests/cluster holds these against their CRDs.
OTHERS = {"leaderworkerset.x-k8s.io", "monitoring.coreos.com", "apiextensions.k8s.io"}
FOLDERS = ("base", "overlays/local", "overlays/production", "overlays/air-gapped", "overlays/kind", "engines", "picker")


def problems(program: CrdServer, documents: Iterable[Document]) -> dict[str, list[str]]:
    """Return what is wrong, by the document's name."""
    own = [one for one in documents if one["apiVersion"].partition("/")[0] not in OTHERS]
    assert own
    text = "\n".join(map(json.dumps, own))
    done = subprocess.run([program.manifest_check], input=text, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    named = [f"{one['kind']} {one['metadata'].get('name')}" for one in own]
    return {name: found for name, found in zip(named, lines, strict=True) if found}


def test_what_the_operator_makes_is_of_today(program: CrdServer) -> None:
    made = [(kind, build(child_of(spec_of(name)))) for kind, name, build in MADE]
    jobs = [load_test_job(child_of(spec_of(name)), "operator:1", {}, 60.0, 1.0) for name in SPECS]
    assert problems(program, [*(document for _, document in made), *jobs]) == {}
    groups = [document["spec"]["leaderWorkerTemplate"] for kind, document in made if kind == "leader-worker-set"]
    templates = [group[name] for group in groups for name in ("leaderTemplate", "workerTemplate") if name in group]
    wrapped = [{"apiVersion": "v1", "kind": "PodTemplate", "metadata": {}, "template": one} for one in templates]
    assert problems(program, wrapped) == {}


def test_what_is_shipped_is_of_today(program: CrdServer) -> None:
    for folder in FOLDERS:
        assert problems(program, kustomized(MANIFESTS / folder)) == {}, folder
    for given in ((), ("production.yaml",), ("air-gapped.yaml",)):
        chart = rendered(*(word for name in given for word in ("--values", str(CHART / name))))
        assert problems(program, chart) == {}, given


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"apiVersion": "v1", "kind": "Pod", "spec": {"nope": 1}}, 'unknown field "spec.nope"'),
        ({"apiVersion": "v1", "kind": "Pod", "spec": {"serviceAccount": "a"}}, ".spec.serviceAccount is deprecated"),
        ({"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget"}, "is deprecated since 1.21"),
        ({"apiVersion": "v1", "kind": "Pod", "spec": {"hostPID": "yes"}}, "cannot unmarshal"),
        ({"apiVersion": "pagefleet.io/v1", "kind": "Pod"}, "no kind"),
    ],
)
def test_what_is_not_of_today_is_named(program: CrdServer, document: Document, words: str) -> None:
    [found] = problems(program, [document | {"metadata": {"name": "x"}}]).values()
    assert any(words in problem for problem in found), found
