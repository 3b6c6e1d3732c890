"""Protects a restore on a real API server: a service with a stable and a rejected revision is backed up without its status,
everything is deleted, and it comes back in any order: no object of the rejected revision is made again, it never has
traffic, and the recorded stable revision serves. Records outlive a service that is deleted by mistake, and nobody's edit of
a record lasts."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from support.cluster import services
from support.cluster.plane import OPERATOR_USER, Plane
from support.rbac import events
from support.sample_service import sample

from pagefleet_cli.export import documents
from pagefleet_contract.names import RECORD_SELECTOR
from pagefleet_local.fleet.kubectl import Document, until
from pagefleet_local.fleet.view import View

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
WRITES = ("create", "patch", "update", "delete")
ISVC = "/apis/pagefleet.io/v1alpha1/namespaces/{}/inferenceservices"
RECORDS = "/apis/apps/v1/namespaces/{}/controllerrevisions"
numbers = itertools.count(1)


@dataclass(frozen=True)
class Lost:
    """A namespace that was backed up and emptied. `writes` of the operator to the rejected revision's objects so far."""

    namespace: str
    good: str
    bad: str
    service: Document
    records: list[Document]
    exported: list[Document]
    writes: int


async def view(plane: Plane, namespace: str) -> View:
    return await services.view(plane, "chat", namespace)


async def settled(plane: Plane, namespace: str, what: str, holds: Any) -> View:
    return await services.settled(plane, "chat", what, holds, namespace=namespace, timeout=60)


async def records(plane: Plane, namespace: str) -> list[Document]:
    listed = await plane.kubectl.run("get", "controllerrevisions", "-n", namespace, "-l", RECORD_SELECTOR, "-o", "json")
    items: list[Document] = json.loads(listed.out)["items"]
    return items


async def act(plane: Plane, namespace: str, action: str) -> None:
    text = json.dumps({"id": f"restore-{next(numbers)}", "action": action})
    await plane.kubectl.run("annotate", "isvc", "chat", "-n", namespace, "--overwrite", f"pagefleet.io/action={text}")


async def rolled_back(plane: Plane) -> tuple[str, str, str]:
    """Have a canary aborted in a new namespace. Returns (namespace, stable, rejected)."""
    namespace = f"restore-{next(numbers)}"
    await plane.kubectl.run("create", "namespace", namespace)
    document = sample()
    document["metadata"] = {"name": "chat", "namespace": namespace}
    await plane.kubectl.apply(document)
    good = (await settled(plane, namespace, "Ready", lambda v: v.is_true("Ready"))).stable
    document["spec"]["engine"]["args"] = ["--max-num-seqs=4"]
    await plane.kubectl.apply(document)
    bad = (
        await settled(plane, namespace, "the canary has traffic", lambda v: v.canary and v.weights.get(v.canary))
    ).canary
    await act(plane, namespace, "abort")
    await settled(plane, namespace, "rolled back", lambda v: v.phase == "RolledBack")

    async def recorded() -> bool:
        present = {
            item["metadata"]["name"]: item["metadata"]["annotations"] for item in await records(plane, namespace)
        }
        verdict = present.get(f"chat-{bad}", {}).get("pagefleet.io/rejected")
        return verdict == "Aborted" and present.get(f"chat-{good}", {}).get("pagefleet.io/role") == "stable"

    await until(recorded, timeout=20, what="both revisions are recorded")
    return namespace, good, bad


async def lost(plane: Plane) -> Lost:
    """Back a service with a rejected revision up, as `kubectl get -o yaml` shows it, and delete its namespace."""
    namespace, good, bad = await rolled_back(plane)
    service = (await view(plane, namespace)).document
    saved = await records(plane, namespace)
    exported = documents([service], saved)
    backup = {key: value for key, value in service.items() if key != "status"}
    backup["metadata"] = {**service["metadata"], "annotations": {}}
    await plane.kubectl.run("delete", "namespace", namespace)
    await plane.kubectl.run("create", "namespace", namespace)
    return Lost(namespace, good, bad, backup, saved, exported, writes(plane, namespace, f"chat-{bad}"))


def writes(plane: Plane, namespace: str, name: str) -> int:
    """Count the operator's writes to the Deployment, Service and PodDisruptionBudget of a revision."""
    return sum(
        event["verb"] in WRITES
        and event["user"].get("username") == OPERATOR_USER
        and event.get("objectRef", {}).get("namespace") == namespace
        and event["objectRef"].get("resource") in ("deployments", "services", "poddisruptionbudgets")
        for event in events(plane.layout.logs, name)
    )


async def apply(plane: Plane, documents: list[Document]) -> None:
    await plane.kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump_all(copy.deepcopy(documents)))


async def serves_the_recorded_one(plane: Plane, was: Lost) -> None:
    """The rejected revision gets nothing, from the restore on until the end."""
    state = await settled(plane, was.namespace, "rolled back", lambda v: v.phase == "RolledBack")
    assert state.weights == {was.good: 100}
    assert [(one["hash"], one["reason"]) for one in state.status["rejected"]] == [(was.bad, "Aborted")]
    condition = state.condition("RolledBack")
    assert (condition["status"], condition["reason"]) == ("True", "Aborted")
    uid = state.document["metadata"]["uid"]
    versions = plane.recording.versions[was.namespace, "chat"]
    here = [one.get("status") or {} for one in versions if one["metadata"]["uid"] == uid]
    assert here
    assert all(status.get("conditions") for status in here if status), "nothing is written before it is decided"
    assert not [one for status in here for one in status.get("traffic") or () if one["revision"] == was.bad]
    assert writes(plane, was.namespace, f"chat-{was.bad}") == was.writes
    deployments = await plane.kubectl.run("get", "deployments", "-n", was.namespace, "-o", "name")
    assert deployments.out.split() == [f"deployment.apps/chat-{was.good}"]
    for record in await records(plane, was.namespace):
        assert record["metadata"]["annotations"]["pagefleet.io/recorded-for"] == uid


async def test_a_back_up_whose_records_come_first(plane: Plane) -> None:
    was = await lost(plane)
    await apply(plane, was.records)
    await apply(plane, [was.service])
    await serves_the_recorded_one(plane, was)


async def test_a_back_up_whose_service_comes_first_and_its_records_at_once(plane: Plane) -> None:
    was = await lost(plane)
    bare = {key: value for key, value in was.exported[-1].items() if key != "metadata"}
    service = {**bare, "metadata": {"name": "chat", "namespace": was.namespace}}
    # No request waits for an answer: the operator waits for records for two seconds, and this machine may be slow.
    await asyncio.gather(
        plane.api.create(ISVC.format(was.namespace), service),
        *(plane.api.create(RECORDS.format(was.namespace), record) for record in was.exported[:-1]),
    )
    await serves_the_recorded_one(plane, was)


async def test_an_export_whose_service_comes_first_and_its_records_much_later(plane: Plane) -> None:
    was = await lost(plane)
    assert [one["kind"] for one in was.exported] == ["ControllerRevision", "ControllerRevision", "InferenceService"]
    await apply(plane, was.exported[-1:])
    await settled(plane, was.namespace, "it waits", lambda v: v.condition("Ready")["reason"] == "AwaitingRecords")
    await apply(plane, was.exported[:1])
    waiting = "1 of the 2 records"
    await settled(plane, was.namespace, "one is there", lambda v: waiting in v.condition("Ready")["message"])
    assert not (await plane.kubectl.run("get", "deployments", "-n", was.namespace, "-o", "name")).out.strip()
    await apply(plane, was.exported[1:2])
    await serves_the_recorded_one(plane, was)


async def test_records_that_come_late_roll_the_rejected_revision_back(plane: Plane) -> None:
    """As a restore from git alone, with the back-up of the records present afterwards: by then the operator has records of its
    own, in which the rejected revision is the stable one."""
    was = await lost(plane)
    await apply(plane, [was.service])
    await settled(plane, was.namespace, "it serves", lambda v: v.weights == {was.bad: 100})
    await apply(plane, was.exported[:-1])
    state = await settled(plane, was.namespace, "rolled back", lambda v: v.phase == "RolledBack")
    assert state.weights == {was.good: 100}


async def test_a_service_that_is_deleted_by_mistake_knows_its_rejected_revision(plane: Plane) -> None:
    namespace, good, bad = await rolled_back(plane)
    service = (await view(plane, namespace)).document
    await plane.kubectl.run("delete", "isvc", "chat", "-n", namespace)

    async def marked() -> bool:
        present = await records(plane, namespace)
        assert len(present) == 2
        return all(one["metadata"]["annotations"].get("pagefleet.io/service-deleted") for one in present)

    await until(marked, timeout=60, what="the records know that their service is gone")
    before = writes(plane, namespace, f"chat-{bad}")
    await apply(plane, documents([service], []))
    state = await settled(plane, namespace, "rolled back", lambda v: v.phase == "RolledBack")
    assert state.weights == {good: 100}
    assert writes(plane, namespace, f"chat-{bad}") == before

    async def unmarked() -> bool:
        present = await records(plane, namespace)
        return not any(one["metadata"]["annotations"]["pagefleet.io/service-deleted"] for one in present)

    await until(unmarked, timeout=20, what="the service is there again")
    # A person may try it again, and the record follows.
    await act(plane, namespace, "retry")
    await settled(plane, namespace, "it is tried again", lambda v: v.canary == bad)


async def test_what_others_write_into_records_is_written_back(plane: Plane) -> None:
    namespace, good, bad = await rolled_back(plane)
    name = f"chat-{bad}"
    await plane.kubectl.run(
        "annotate", "controllerrevision", name, "-n", namespace, "--overwrite", "pagefleet.io/rejected="
    )
    refused = await plane.kubectl.run(
        "replace", "-f", "-", stdin=yaml.safe_dump(await forged(plane, namespace, good)), check=False
    )
    assert refused.code != 0
    assert "immutable" in refused.text

    async def repaired() -> bool:
        present = {one["metadata"]["name"]: one for one in await records(plane, namespace)}
        return present[name]["metadata"]["annotations"]["pagefleet.io/rejected"] == "Aborted"

    await until(repaired, timeout=30, what="the record is as it was")
    assert (await view(plane, namespace)).weights == {good: 100}


async def test_a_record_that_was_replaced_while_the_operator_was_dead_is_made_again(plane: Plane) -> None:
    """A living operator makes a deleted record again before anybody can put another in its place."""
    namespace, good, _ = await rolled_back(plane)
    other = await forged(plane, namespace, good)
    plane.operator.kill()
    try:
        await plane.kubectl.run("delete", "controllerrevision", f"chat-{good}", "-n", namespace)
        await plane.kubectl.run("create", "-f", "-", stdin=yaml.safe_dump(other))
    finally:
        await plane.operator.start()

    async def repaired() -> bool:
        present = {one["metadata"]["name"]: one for one in await records(plane, namespace)}
        spec = present.get(f"chat-{good}", {}).get("data", {}).get("spec", {})
        return "--forged" not in spec.get("engine", {"args": ["--forged"]}).get("args", [])

    await until(repaired, timeout=30, what="the record is as it was")
    assert (await view(plane, namespace)).weights == {good: 100}


async def forged(plane: Plane, namespace: str, revision: str) -> Document:
    """Return a revision's record with other data, and without what the API server adds."""
    (record,) = [one for one in await records(plane, namespace) if one["metadata"]["name"] == f"chat-{revision}"]
    document = {key: record[key] for key in ("apiVersion", "kind", "data", "revision")}
    document["metadata"] = {key: record["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
    document["data"]["spec"]["engine"]["args"] = ["--forged"]
    return document
