"""Protects running engine pods from an operator's upgrade: a revision keeps the pod templates that were first applied, in every
kind of workload, after a restart and with a lost status; the next revision has the new operator's defaults."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.golden_manifests import child_of, spec_of

from pagefleet_contract.names import APPLIED_ANNOTATION, OPERATOR, TEMPLATES_ANNOTATION
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.manifests import deployment as module
from pagefleet_operator.domain.manifests import retained
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.leaderworkerset import leader_worker_set
from pagefleet_operator.domain.manifests.spare import spare_deployment
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.status import Phase, RevisionRecord, RolloutRecord, Status, Weight
from pagefleet_operator.kube import readings

NOW = 1_000_000.0
READY = PodReading("p", ready=True, terminating=False, created=NOW - 60, ready_since=NOW - 50)


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The operator is of release old, until a test upgrades it."""
    monkeypatch.setattr(module, "release", lambda: "old")
    return monkeypatch


def upgrade(patch: pytest.MonkeyPatch) -> None:
    """The next release has another image, another grace period and another probe."""
    patch.setattr(module, "release", lambda: "new")
    patch.setattr(module, "AFTER_DRAIN", 77)
    patch.setattr(module, "USER", 4242)


def spec_with(**more: Any) -> dict[str, Any]:
    return {**spec_of("minimal"), "scaling": {"min": 1, "max": 1, **more}}


def child_labels(child: Mapping[str, Any]) -> Mapping[str, Any]:
    labels: Mapping[str, Any] = child["metadata"]["labels"]
    return labels


def templates_of(plan: Plan) -> dict[str, Any]:
    """Templates by the name of the workload."""
    made: dict[str, Any] = {}
    for child in plan.children:
        if found := retained.templates(child):
            metadata: Any = child["metadata"]
            made[metadata["name"]] = found
    return made


def observed(spec: dict[str, Any], status: Status, revisions: dict[str, RevisionReading], **more: Any) -> Observation:
    return Observation("team-a", "chat", "uid", 1, spec, status, revisions, **more)


def running(spec: dict[str, Any], **more: Any) -> tuple[str, RevisionReading]:
    """A revision's name and reading, as the release of this moment has made its workload."""
    child = child_of(spec)
    workload = leader_worker_set(child, 1) if more.get("grouped") else deployment(child, 1)
    return child.revision, RevisionReading(child.revision, 1, (READY,), templates=retained.templates(workload), **more)


def stable_status(revision: str, spec: dict[str, Any], canary: str = "", other: dict[str, Any] | None = None) -> Status:
    records = [RevisionRecord(revision, NOW - 100, dict(child_of(spec).snapshot), desired=1)]
    if other is not None:
        records.append(RevisionRecord(canary, NOW - 90, dict(child_of(other).snapshot), desired=1))
    record = RolloutRecord(Phase.STARTING if canary else Phase.IDLE, since=NOW - 50, started=NOW - 50)
    return Status(
        stable=revision, canary=canary, traffic=(Weight(revision, 100),), revisions=tuple(records), rollout=record
    )


@pytest.mark.parametrize("lost", [False, True], ids=["status", "lost-status"])
def test_an_upgrade_changes_no_template_of_stable_and_canary(release: pytest.MonkeyPatch, lost: bool) -> None:
    before, after = spec_with(), spec_with()
    after["engine"] = {"args": ["--max-num-seqs=4"]}
    (stable, one), (canary, two) = running(before), running(after)
    upgrade(release)
    status = Status() if lost else stable_status(stable, before, canary, after)
    plan = decide(observed(after, status, {stable: one, canary: two}), NOW)
    made = templates_of(plan)
    assert made[f"chat-{canary}"] == two.templates
    if not lost:  # without a status nobody knows the old revision's spec; its workload is left alone
        assert made[f"chat-{stable}"] == one.templates


def test_the_next_revision_has_the_new_defaults_and_a_changed_refresh_is_enough(release: pytest.MonkeyPatch) -> None:
    before = spec_with()
    stable, reading = running(before)
    upgrade(release)
    after = spec_with()
    after["engine"] = {"refresh": "CVE-2026-1"}
    plan = decide(observed(after, stable_status(stable, before), {stable: reading}), NOW)
    made = templates_of(plan)
    canary = plan.status.canary
    assert canary not in ("", stable)
    assert plan.status.traffic == (Weight(stable, 100),), "canaried like any other revision"
    assert made[f"chat-{stable}"] == reading.templates
    [container] = made[f"chat-{canary}"]["template"]["spec"]["containers"]
    assert container["image"].endswith(":new")
    assert made[f"chat-{canary}"]["template"]["spec"]["securityContext"]["runAsUser"] == 4242


def test_new_and_present_spares_are_like_the_replicas_they_stand_in_for(release: pytest.MonkeyPatch) -> None:
    spec = spec_with(warmSpares=1)
    stable, reading = running(spec)
    old = retained.templates(spare_deployment(child_of(spec), 1))
    upgrade(release)
    status = stable_status(stable, spec)
    fresh = templates_of(decide(observed(spec, status, {stable: reading}), NOW))
    assert fresh[f"chat-{stable}-spare"] == old, "made after the upgrade"
    with_spare = RevisionReading(
        stable, 1, (READY,), templates=reading.templates, spare_replicas=1, spare_uid="u", spare_templates=old
    )
    present = templates_of(decide(observed(spec, status, {stable: with_spare}), NOW))
    assert present[f"chat-{stable}-spare"] == old


def test_groups_keep_both_templates(release: pytest.MonkeyPatch) -> None:
    spec = {**spec_of("nodes"), "scaling": {"min": 1, "max": 1}}
    stable, reading = running(spec, grouped=True)
    assert reading.templates is not None
    assert set(reading.templates) == {"leaderTemplate", "workerTemplate"}
    upgrade(release)
    made = templates_of(decide(observed(spec, stable_status(stable, spec), {stable: reading}, groups=True), NOW))
    assert made[f"chat-{stable}"] == reading.templates


def test_older_defaults_are_a_condition_until_the_next_revision(release: pytest.MonkeyPatch) -> None:
    spec = spec_with()
    stable, reading = running(spec)
    status = stable_status(stable, spec)

    def stated() -> list[str]:
        plan = decide(observed(spec, status, {stable: reading}), NOW)
        return [one.message for one in plan.status.conditions if one.type == "DefaultsCurrent"]

    assert stated() == []
    upgrade(release)
    [message] = stated()
    assert stable in message
    assert "image" in message or "runAsUser" in message or "terminationGracePeriodSeconds" in message
    assert "spec.engine.refresh" in message


def managed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The fields of a manifest as managedFields lists them; lists of objects with names are keyed by name."""
    fields: dict[str, Any] = {}
    for name, value in manifest.items():
        if isinstance(value, dict):
            fields[f"f:{name}"] = managed(value)
        elif isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
            fields[f"f:{name}"] = {f'k:{{"name":"{one["name"]}"}}': {".": {}, **managed(one)} for one in value}
        else:
            fields[f"f:{name}"] = {}
    return fields


def live(manifest: dict[str, Any], **annotations: str) -> dict[str, Any]:
    """An applied object: our fields are as `manifest` has them, with `annotations`."""
    document = copy.deepcopy(manifest)
    document["metadata"]["annotations"] = annotations
    fields = managed({"metadata": {"annotations": annotations}, "spec": document["spec"]})
    document["metadata"]["managedFields"] = [{"manager": OPERATOR, "operation": "Apply", "fieldsV1": fields}]
    return document


def test_the_templates_are_read_from_the_annotation() -> None:
    made = deployment(child_of(spec_with()), 1)
    stored = {"template": {"spec": {"containers": [{"name": "engine", "image": "stored"}]}}}
    assert retained.applied(live(made, **{TEMPLATES_ANNOTATION: json.dumps(stored)})) == stored
    assert json.loads(retained.annotation(made)) == retained.templates(made)


@pytest.mark.parametrize(
    "text", ["", "no JSON", "{}", "[]", '{"template": {}}', '{"template": {"spec": {"containers": 5}}}']
)
def test_without_a_usable_annotation_they_are_the_fields_that_we_applied(text: str) -> None:
    """As an operator before the annotation has left them. A sidecar that others have added is not part of them."""
    made = deployment(child_of(spec_with()), 1)
    found = live(made, **({TEMPLATES_ANNOTATION: text} if text else {}))
    found["spec"]["template"]["spec"]["containers"].append({"name": "sidecar", "image": "mesh"})
    found["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    assert retained.applied(found) == retained.templates(made)


def test_an_annotation_that_somebody_else_wrote_counts_for_nothing() -> None:
    made = deployment(child_of(spec_with()), 1)
    found = live(made, **{APPLIED_ANNOTATION: "digest"})
    forged = {"template": {"spec": {"containers": [{"name": "engine", "image": "forged"}]}}}
    found["metadata"]["annotations"] = {TEMPLATES_ANNOTATION: json.dumps(forged)}
    assert retained.applied(found) == retained.templates(made)


def test_a_template_without_our_image_is_no_record() -> None:
    made = deployment(child_of(spec_with()), 1)
    found = live(made)
    [entry] = found["metadata"]["managedFields"]
    containers = entry["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]
    del containers['k:{"name":"engine"}']["f:image"]
    assert retained.applied(found) is None
    del found["metadata"]["managedFields"]
    assert retained.applied(found) is None


def test_templates_that_are_too_long_are_not_annotated() -> None:
    """A group has the variables twice: together they are longer than any spec."""
    spec = spec_of("nodes")
    spec["engine"]["env"] = [{"name": f"V{index}", "value": "x" * 4096} for index in range(10)]
    assert isinstance(parse(spec), Spec)
    made = leader_worker_set(child_of(spec), 1)
    assert retained.annotation(made) == ""
    assert retained.applied(live(made)) == retained.templates(made)


def test_a_readings_templates_are_those_of_its_workload() -> None:
    child = child_of(spec_with())
    made = deployment(child, 1)
    text = {TEMPLATES_ANNOTATION: retained.annotation(made)}
    found = live(made, **text)
    [reading] = readings.revisions([found], [], {}).values()
    assert reading.templates == retained.templates(made)
    spare = live(spare_deployment(child, 1), **{TEMPLATES_ANNOTATION: retained.annotation(spare_deployment(child, 1))})
    spare["metadata"]["uid"] = "u"
    [both] = readings.with_spares({child.revision: reading}, [spare], []).values()
    assert both.spare_templates == retained.templates(spare_deployment(child, 1))
