"""Carries a plan out: children first, then the status with the weights, then deletions, then Events.

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

from pagefleet_operator.cluster import paths
from pagefleet_operator.cluster.api import Api, ApiError, Document
from pagefleet_operator.domain import status_json
from pagefleet_operator.domain.build.names import GROUP, KIND, REVISION_LABEL, SERVICE_LABEL, VERSION
from pagefleet_operator.domain.plan import Event, Plan

MANAGER = "pagefleet-operator"
CONFLICT = 409
APPLIED = "pagefleet.io/applied-hash"
CHILD_KINDS = (("apps/v1", "Deployment"), ("v1", "Service"), ("policy/v1", "PodDisruptionBudget"))
log = logging.getLogger(__name__)


class Applier:
    """Writes to one cluster. `may_write` raises when this process is not the one to write (any more). `policy_version` is what it serves PodDisruptionBudgets under, found out once."""

    def __init__(self, api: Api, may_write: Callable[[], None] = lambda: None) -> None:
        self._api, self._may_write = api, may_write
        self._policy_version = ""

    async def apply(self, service: Document, plan: Plan) -> None:
        """Raises ApiError or aiohttp.ClientError for the first write that failed, after trying the rest."""
        failures: list[Exception] = []
        live = await self._live(service)
        # The present weights are still in force while children are applied: what they need is never taken away here,
        # because a plan that shrinks a revision was made when its weight was already gone.
        status_first = self._takes_weight_away(service, plan)
        if status_first:
            await self._status(service, plan)
        for child in plan.children:
            try:
                await self._child(dict(child), live)
            except ApiError as error:
                log.error("%s cannot be applied: %s", child["kind"], error)
                failures.append(error)
        if plan.job is not None:
            await self._job(dict(plan.job))
        if not status_first:
            await self._status(service, plan)
        for revision in plan.delete:
            await self._delete(service, revision, live)
        for event in plan.events:
            await self._event(service, event)
        if failures:
            raise failures[0]

    def _takes_weight_away(self, service: Document, plan: Plan) -> bool:
        """Whether a revision loses all its weight: that write waits for nothing."""
        before = {
            entry["revision"] for entry in (service.get("status") or {}).get("traffic") or () if entry.get("weight")
        }
        after = {entry.revision for entry in plan.status.traffic if entry.weight}
        return bool(before - after)

    async def _live(self, service: Document) -> dict[tuple[str, str], Document]:
        metadata = service["metadata"]
        live = {}
        for version, kind in CHILD_KINDS:
            api_version = await self._version(version, kind)
            path = paths.collection(api_version, kind, metadata["namespace"])
            listed = await self._api.get(path, labelSelector=f"{SERVICE_LABEL}={metadata['name']}")
            for item in listed.get("items") or ():
                live[kind, item["metadata"]["name"]] = item
        return live

    async def _child(self, manifest: dict[str, Any], live: Mapping[tuple[str, str], Document]) -> None:
        manifest["apiVersion"] = await self._version(manifest["apiVersion"], manifest["kind"])
        digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]
        manifest["metadata"] = {**manifest["metadata"], "annotations": {APPLIED: digest}}
        found = live.get((manifest["kind"], manifest["metadata"]["name"]))
        if found is None or drifted(manifest, found):
            if found is not None:  # what was decided on, or not at all
                manifest["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            self._may_write()
            await self._api.apply(paths.of(manifest), manifest, MANAGER)

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

    async def _status(self, service: Document, plan: Plan) -> None:
        wanted = status_json.dump(plan.status)
        if wanted == (service.get("status") or {}):
            return
        body = {**service, "status": wanted}
        metadata = service["metadata"]
        path = paths.inference_service(metadata["namespace"], metadata["name"])
        self._may_write()
        await self._api.replace(f"{path}/status", body)

    async def _delete(self, service: Document, revision: str, live: Mapping[tuple[str, str], Document]) -> None:
        """The Deployment last: as long as it is there, a restarted operator sees that the rest is still to be deleted."""
        for version, kind in reversed(CHILD_KINDS):
            path = paths.collection(await self._version(version, kind), kind, service["metadata"]["namespace"])
            for (found, name), item in live.items():
                if found == kind and (item["metadata"].get("labels") or {}).get(REVISION_LABEL) == revision:
                    self._may_write()
                    await self._api.delete(f"{path}/{name}", item["metadata"]["uid"])

    async def _event(self, service: Document, event: Event) -> None:
        metadata, now = service["metadata"], status_json.time_text(time.time())
        second = now[:19] + "Z"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}-", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": f"{GROUP}/{VERSION}",
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

    async def _version(self, version: str, kind: str) -> str:
        """What the API server serves `kind` under: policy/v1 came with Kubernetes 1.21."""
        if kind != "PodDisruptionBudget":
            return version
        if not self._policy_version:
            group = await self._api.get("/apis/policy")
            served = {entry["groupVersion"] for entry in group["versions"]}
            self._policy_version = "policy/v1" if "policy/v1" in served else "policy/v1beta1"
        return self._policy_version


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
