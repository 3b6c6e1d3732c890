"""Carries a plan out: children first, then the status with the weights and at once the routes that follow it, then
deletions, then Events. When a revision loses its weight, status and routes come before everything else.

A write that would change nothing is not made. The status is written under the resourceVersion that was decided on:
who comes second decides again. A failing child never keeps the weights from being written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from pagefleet_contract.names import API_VERSION, KIND, OPERATOR, REVISION_LABEL
from pagefleet_operator.domain.manifests import leaderworkerset as groups
from pagefleet_operator.domain.scaling.deletion_cost import ANNOTATION
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.plan import Event, Plan
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import Api, ApiError, Document
from pagefleet_operator.kube.store import Store
from pagefleet_operator.kube.versions import Versions

MANAGER = OPERATOR
APPLIED = "pagefleet.io/applied-hash"
CONFLICT, NOT_FOUND = 409, 404
GROUPED = (f"{groups.GROUP}/{groups.VERSION}", groups.KIND)
REFUSALS = (400, 403, 422)  # for what is in it, or by an admission or a quota: a user has to mend it
WORKLOADS = ("Deployment", groups.KIND)
CHILD_KINDS = (("apps/v1", "Deployment"), GROUPED, ("v1", "Service"), ("policy/v1", "PodDisruptionBudget"))
log = logging.getLogger(__name__)


class Applier:
    """Writes to one cluster. `may_write` raises when this process is not the one to write (any more). `policy_version` is what it serves PodDisruptionBudgets under, found out once."""

    def __init__(
        self, api: Api, versions: Versions, store: Store, may_write: Callable[[], None] = lambda: None
    ) -> None:
        self._api, self._versions, self._store, self._may_write = api, versions, store, may_write
        self._told: dict[tuple[str, str], str] = {}  # by uid and reason: the last refusal of a route or a child

    async def apply(self, service: Document, plan: Plan) -> None:
        """Raises ApiError or aiohttp.ClientError for the first write that failed, after trying the rest."""
        failures: list[Exception] = []
        moved = False
        live = self._live(service)
        # The present weights are still in force while children are applied: what they need is never taken away here,
        # because a plan that shrinks a revision was made when its weight was already gone.
        status_first = self._takes_weight_away(service, plan)
        if status_first:
            moved = await self._split(service, plan, failures)
        await self._victims(service, plan.deletion_costs)
        failures += await self._children(service, plan, live)
        if plan.job is not None:
            await self._job(dict(plan.job))
        if not status_first:
            moved = await self._split(service, plan, failures)
        # Who serves a route goes on by the old one until it has seen the new one: `routing` waits for its answer.
        for revision in () if moved else plan.delete:
            await self._delete(service, revision, live)
        for event in plan.events:
            await self._event(service, event)
        if failures:
            raise failures[0]

    async def _children(
        self, service: Document, plan: Plan, live: Mapping[tuple[str, str], Document]
    ) -> list[ApiError]:
        """Apply what can be applied; what failed. What a deleted revision has left is known by its Deployment or
        LeaderWorkerSet: while that is refused and not there, its Service and budget are not made, or they would stay."""
        failures: list[ApiError] = []
        unborn: set[str] = set()
        for child in plan.children:
            manifest: Document = dict(child)
            kind, metadata = manifest["kind"], manifest["metadata"]
            revision = metadata["labels"][REVISION_LABEL]
            if revision in unborn:
                continue
            try:
                await self._child(manifest, live)
            except ApiError as error:
                log.error("%s cannot be applied: %s", kind, error)
                failures.append(error)
                if kind in WORKLOADS and (kind, metadata["name"]) not in live:
                    unborn.add(revision)
                if error.status in REFUSALS:
                    said = f"the {kind} of revision {revision} is refused: {error.message}"
                    await self._tell(service, "ChildRefused", said)
        return failures

    async def _split(self, service: Document, plan: Plan, failures: list[Exception]) -> bool:
        """Write the status, then the routes. Whether a route was written, or could not be.

        In this order because the status is written under the resourceVersion that was decided on: who decided on an
        old state moves no route, and who dies between the two leaves a status from which the route follows.
        """
        await self._status(service, plan)
        moved = False
        for manifest in plan.routes:
            try:
                moved |= await self._route(dict(manifest))
            except ApiError as error:
                log.error("%s cannot be applied: %s", manifest["kind"], error)
                failures.append(error)
                said = f"spec.traffic: the {manifest['kind']} is refused: {error.message}"
                await self._tell(service, "RouteRefused", said)
                return True
        for gone in () if moved else plan.withdrawn:
            path = paths.collection(gone.api_version, gone.kind, service["metadata"]["namespace"])
            self._may_write()
            await self._api.delete(f"{path}/{gone.name}", gone.uid)
        return moved

    async def _tell(self, service: Document, reason: str, message: str) -> None:
        """An Event for what no later decision can see; not again while it stays the same."""
        key = service["metadata"]["uid"], reason
        if self._told.get(key) != message:
            self._told[key] = message
            await self._event(service, Event("Warning", reason, message))

    async def _route(self, manifest: dict[str, Any]) -> bool:
        _stamp(manifest)
        found = await self._api.find(paths.of(manifest))
        if found is not None and not drifted(manifest, found):
            return False
        self._may_write()
        await self._api.apply(paths.of(manifest), manifest, MANAGER)
        return True

    def _takes_weight_away(self, service: Document, plan: Plan) -> bool:
        """Whether a revision loses all its weight: that write waits for nothing."""
        before = {
            entry["revision"] for entry in (service.get("status") or {}).get("traffic") or () if entry.get("weight")
        }
        after = {entry.revision for entry in plan.status.traffic if entry.weight}
        return bool(before - after)

    def _live(self, service: Document) -> dict[tuple[str, str], Document]:
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
        return {
            (kind, item["metadata"]["name"]): item
            for _, kind in CHILD_KINDS
            for item in self._store.children(kind, namespace, name)
        }

    async def _child(self, manifest: dict[str, Any], live: Mapping[tuple[str, str], Document]) -> None:
        manifest["apiVersion"] = await self._versions.of(manifest["apiVersion"], manifest["kind"])
        _stamp(manifest)
        kind, metadata = manifest["kind"], manifest["metadata"]
        found = live.get((kind, metadata["name"]))
        if found is None or drifted(manifest, found):
            if found is not None:  # what was decided on, or not at all
                metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
            self._may_write()
            try:
                self._store.took(kind, await self._api.apply(paths.of(manifest), manifest, MANAGER))
            except ApiError as error:
                if error.status in (CONFLICT, NOT_FOUND):
                    await self._refresh(kind, metadata["namespace"], metadata["name"], paths.of(manifest))
                raise

    async def _job(self, manifest: dict[str, Any]) -> None:
        """A Job is created once: its name tells the attempt, and its template cannot change."""
        path = paths.collection(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["namespace"])
        if await self._api.find(f"{path}/{manifest['metadata']['name']}") is not None:
            return
        self._may_write()
        try:
            await self._api.create(path, manifest)
        except ApiError as error:
            if error.status != CONFLICT:  # it exists by now
                raise

    async def _victims(self, service: Document, costs: Mapping[str, int]) -> None:
        """Advice to the ReplicaSet controller: without it another pod goes, which is no reason not to shrink."""
        pods = paths.collection("v1", "Pod", service["metadata"]["namespace"])
        for name, cost in costs.items():
            self._may_write()
            try:
                await self._api.merge(f"{pods}/{name}", {"metadata": {"annotations": {ANNOTATION: str(cost)}}})
            except ApiError as error:
                log.info("pod %s keeps its deletion cost: %s", name, error)

    async def _status(self, service: Document, plan: Plan) -> None:
        wanted = codec.dump(plan.status)
        if wanted == (service.get("status") or {}):
            return
        body = {**service, "status": wanted}
        metadata = service["metadata"]
        path = paths.inference_service(metadata["namespace"], metadata["name"])
        self._may_write()
        try:
            self._store.took(KIND, await self._api.replace(f"{path}/status", body))
        except ApiError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                await self._refresh(KIND, metadata["namespace"], metadata["name"], path)
            raise

    async def _refresh(self, kind: str, namespace: str, name: str, path: str) -> None:
        """The store said otherwise than the API server: take what there is."""
        found = await self._api.find(path)
        if found is None:
            self._store.went(kind, namespace, name)
        else:
            self._store.took(kind, found)

    async def _delete(self, service: Document, revision: str, live: Mapping[tuple[str, str], Document]) -> None:
        """The Deployment or LeaderWorkerSet last: as long as it is there, a restarted operator sees that the rest is still to be deleted."""
        for version, kind in reversed(CHILD_KINDS):
            path = paths.collection(await self._versions.of(version, kind), kind, service["metadata"]["namespace"])
            for (found, name), item in live.items():
                if found == kind and (item["metadata"].get("labels") or {}).get(REVISION_LABEL) == revision:
                    self._may_write()
                    await self._api.delete(f"{path}/{name}", item["metadata"]["uid"])

    async def _event(self, service: Document, event: Event) -> None:
        metadata, now = service["metadata"], codec.time_text(time.time())
        second = now[:19] + "Z"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}-", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "reason": event.reason,
            "message": event.message[:1000],
            "type": event.type,
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "firstTimestamp": second,
            "lastTimestamp": second,
            "count": 1,
        }
        try:
            await self._api.create(paths.collection("v1", "Event", metadata["namespace"]), body)
        except ApiError as error:
            # An Event is for reading only; a namespace that is being deleted takes none.
            log.warning("event %s of %s is lost: %s", event.reason, metadata["name"], error)


def _stamp(manifest: dict[str, Any]) -> None:
    """Note in the manifest what it was made from, so that a field that is left out one day is drift too."""
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]
    manifest["metadata"] = {**manifest["metadata"], "annotations": {APPLIED: digest}}


def drifted(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether the live object differs from what we would apply, or was last applied from something else."""
    applied = (found["metadata"].get("annotations") or {}).get(APPLIED)
    return applied != wanted["metadata"]["annotations"][APPLIED] or not contains(found.get("spec"), wanted["spec"])


def contains(found: Any, wanted: Any) -> bool:
    """Whether every field of `wanted` stands in `found`; fields that others or defaults added do not matter."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(contains(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(contains(one, other) for one, other in zip(found, wanted, strict=True))
        )
    # The API server leaves false and empty out, and keeps quantities as they were written.
    return bool(found == wanted) or (found is None and wanted in (False, "", 0))
