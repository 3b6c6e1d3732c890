"""Carries a plan out, in this order: children, the status with the weights, the routes that follow from it, deletions,
Events. When a revision loses all its weight, status and routes come before everything else.

A write that would change nothing is not made. The status is written under the resourceVersion that the decision was
based on: a second writer gets a conflict and decides again. A child that fails, or is not answered, never keeps the weights from
being written: an admission webhook that hangs holds up its kind of object only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from pagefleet_contract.names import (
    API_VERSION,
    KIND,
    MANAGED_SELECTOR,
    OPERATOR,
    REVISION_LABEL,
)
from pagefleet_operator.domain.manifests import disputes, ownership, retained
from pagefleet_operator.domain.manifests.disputes import Disputes
from pagefleet_operator.domain.scaling.deletion_cost import ANNOTATION
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.condition import REFUSED
from pagefleet_operator.domain.status.plan import Event, Plan
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.kube import paths, readings
from pagefleet_operator.kube.client import FAILURES, Api, ApiError, Document
from pagefleet_operator.kube.gateway_api import RouteObjects
from pagefleet_operator.kube.store import ServiceKey, Store
from pagefleet_operator.kube.versions import Versions

MANAGER = OPERATOR
CONFLICT, NOT_FOUND = 409, 404
WriteRecords = Callable[[Iterable[Mapping[str, object]]], Awaitable[Sequence[Exception]]]
log = logging.getLogger(__name__)


class Applier:
    """Writes to one cluster. The writes of `api` are fenced where several operators share it. `write_records` writes the records of
    revisions (`kube.records`) and returns the failures."""

    def __init__(
        self, api: Api, versions: Versions, store: Store, routes: RouteObjects, write_records: WriteRecords
    ) -> None:
        self._api, self._versions, self._store = api, versions, store
        self._routes, self._write_records = routes, write_records
        self._last_answers: dict[tuple[str, str, str], str] = {}  # by uid, reason and child
        self._disputes = Disputes()

    async def apply(self, service: Document, plan: Plan) -> Exception | None:
        """Carry out a plan, and return the first failure of the writes beside the status. Raises one of FAILURES where the
        decision is not stored, or a revision is not deleted."""
        failures: list[Exception] = []
        moved, refused, live = False, dict[str, str](), self._live(service)
        # The old weights are in force while children are applied. Applying never takes away replicas that they need,
        # because a plan shrinks a revision only when its weight was gone before.
        status_first = self._takes_weight_away(service, plan)
        if status_first:
            moved = await self._decision(service, plan, failures, refused)
        await self._deletion_costs(service, plan.deletion_costs)
        failures += await self._children(service, plan, live, refused)
        if plan.job is not None:
            failures += await self._job(service, dict(plan.job), refused)
        if not status_first:
            moved = await self._decision(service, plan, failures, refused)
        failures += (unwritten := await self._write_records(plan.records))  # after the status, of which they are copies
        for error in unwritten[:1]:
            await self._refusal(service, error, "records", "record of a revision (ControllerRevision)", refused)
        self._store.note_refused(_key(service), refused)
        # A gateway goes on with the old route until it has read the new one, so nothing is deleted in the same round.
        for revision in () if moved else plan.delete:
            await self._delete(service, revision, readings.deletable(service["metadata"]["uid"], plan.children, live))
        return next(iter(failures), None)

    async def _decision(
        self, service: Document, plan: Plan, failures: list[Exception], refused: dict[str, str]
    ) -> bool:
        """Write the decision, then its Events. Returns whether a route was written or could not be written.

        The Events follow at once, because a write that fails later must not lose them: the next decision makes no Event of this one.
        """
        moved = await self._split(service, plan, failures, refused)
        for event in plan.events:
            await self._event(service, event)
        return moved

    async def _children(
        self, service: Document, plan: Plan, live: Mapping[tuple[str, str], Document], refused: dict[str, str]
    ) -> list[Exception]:
        """Apply every child that can be applied. Returns the failures; those that are refused are noted in `refused`.

        A revision's remaining children are found by its Deployment or LeaderWorkerSet. So while that one is refused and
        does not exist, the revision's Service and PodDisruptionBudget are not made: nobody would delete them.
        """
        failures: list[Exception] = []
        without_workload: set[str] = set()
        for child in plan.children:
            manifest: Document = dict(child)
            kind, metadata = manifest["kind"], manifest["metadata"]
            revision = metadata["labels"][REVISION_LABEL]
            if revision in without_workload:
                continue
            try:
                await self._child(service, manifest, live)
            except FAILURES as error:
                log.error("%s cannot be applied: %s", kind, error or type(error).__name__)
                failures.append(error)
                if kind in paths.WORKLOADS and (kind, metadata["name"]) not in live:
                    without_workload.add(revision)
                name, what = f"{kind} {metadata['name']}", f"{kind} of revision {revision}"
                await self._refusal(service, error, name, what, refused)
        return failures

    async def _refusal(
        self, service: Document, error: Exception, name: str, what: str, refused: dict[str, str]
    ) -> None:
        """Note a child that is refused, with an Event about each new answer. It stays refused while nobody answers."""
        before = (self._store.refused(_key(service)) or {}).get(name, "")
        if not (isinstance(error, ApiError) and error.is_refusal):
            refused.update({name: before} if before else {})
            return
        refused[name] = f"the API server refuses the {what}: {error.message}"
        if refused[name] != before:
            await self._event(service, Event("Warning", REFUSED, refused[name]))

    async def _split(self, service: Document, plan: Plan, failures: list[Exception], refused: dict[str, str]) -> bool:
        """Write the status, then the routes. Returns whether a route was written or could not be written.

        The status comes first because it is written under the resourceVersion that the decision was based on. An
        operator with an old view therefore moves no route, and one that dies between the two writes leaves a status
        from which the next one writes the route.
        """
        await self._status(service, plan)
        moved = False
        for manifest in plan.routes:
            try:
                moved |= await self._route(service, dict(manifest))
            except FAILURES as error:
                log.error("%s cannot be applied: %s", manifest["kind"], error or type(error).__name__)
                failures.append(error)
                # A conflict: it has moved on since it was read, and the next decision reads it again.
                if isinstance(error, ApiError) and error.status != CONFLICT:
                    message = f"spec.traffic: the API server refuses the {manifest['kind']}: {error.message}"
                    await self._once(service, "RouteRefused", message, str(manifest["kind"]))
                    refused.update({str(manifest["kind"]): message} if error.is_refusal else {})
                return True
        for gone in () if moved else plan.withdrawn:
            path = paths.named(gone.api_version, gone.kind, service["metadata"]["namespace"], gone.name)
            self._routes.forget(path)
            try:
                await self._api.delete(path, gone.uid)
            except FAILURES as error:
                failures.append(error)
                return True
        return moved

    async def _once(self, service: Document, reason: str, message: str, child: str = "") -> None:
        """Write an Event about an answer of the API server, which no later decision can see. The same text is written once."""
        key = service["metadata"]["uid"], reason, child
        if self._last_answers.get(key) != message:
            self._last_answers[key] = message
            await self._event(service, Event("Warning", reason, message))

    async def _route(self, service: Document, manifest: dict[str, Any]) -> bool:
        retained.stamp(manifest)
        path, field = paths.of(manifest), ""
        live = await self._routes.current(path)
        if live is not None:
            cause, field = self._cause(manifest, live)
            if not cause:
                return False
            # The version that is compared with, or no write.
            manifest["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        self._routes.forget(path)  # unless the write is answered
        stored = await self._api.apply(path, manifest, MANAGER)
        self._routes.store(path, stored)
        if live is not None and field:
            await self._note_repair(service, live, field)
        await self._note_rewritten(service, manifest, stored)
        return True

    def _takes_weight_away(self, service: Document, plan: Plan) -> bool:
        """Whether a revision loses all its weight. Such a status is written before anything else."""
        before = {
            entry["revision"] for entry in (service.get("status") or {}).get("traffic") or () if entry.get("weight")
        }
        after = {entry.revision for entry in plan.status.traffic if entry.weight}
        return bool(before - after)

    def _live(self, service: Document) -> dict[tuple[str, str], Document]:
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
        return {
            (kind.name, item["metadata"]["name"]): item
            for kind in paths.CHILDREN
            for item in self._store.children(kind.name, namespace, name)
        }

    async def _child(
        self, service: Document, manifest: dict[str, Any], live: Mapping[tuple[str, str], Document]
    ) -> None:
        manifest = await self._versions.adapted(manifest)
        retained.stamp(manifest)
        kind, metadata = manifest["kind"], manifest["metadata"]
        existing, field = live.get((kind, metadata["name"])), ""
        if existing is not None:
            cause, field = self._cause(manifest, existing)
            if not cause:
                return
            # The version that the decision was based on, or no write.
            metadata["resourceVersion"] = existing["metadata"]["resourceVersion"]
        try:
            stored = await self._api.apply(paths.of(manifest), manifest, MANAGER)
        except ApiError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                await self._refresh(kind, metadata["namespace"], metadata["name"], paths.of(manifest))
            raise
        self._store.upsert(kind, stored)
        if existing is not None and field:
            await self._note_repair(service, existing, field)
        await self._note_rewritten(service, manifest, stored)

    def _cause(self, desired: Document, live: Document) -> tuple[str, str]:
        """Why a live object is applied now, as `drift` states it; ("", "") when it is not. A field that somebody else
        changes over and over is written back less and less often."""
        kind, field = ownership.drift(desired, live, MANAGER)
        waits = kind == ownership.LOST and not self._disputes.may_repair(live["metadata"]["uid"], time.monotonic())
        return ("", "") if waits else (kind, field)

    async def _note_repair(self, service: Document, live: Document, field: str) -> None:
        """Count a repair that was written. When the next one has to wait, an Event says so once."""
        if self._disputes.repaired(live["metadata"]["uid"], time.monotonic()).repairs != disputes.FREE_REPAIRS:
            return
        name, other = live["metadata"]["name"], ownership.overwriter(live, MANAGER)
        message = (
            f"{live['kind']} {name}: {field} is changed by {other} again and again; the operator writes it back "
            f"at most once in {disputes.FIRST_PAUSE:g} s from now on, later once in {disputes.MAX_PAUSE:g} s: "
            f"exempt objects with the label {MANAGED_SELECTOR} from {other}"
        )
        await self._once(service, "ChildDisputed", message, name)

    async def _note_rewritten(self, service: Document, applied: Document, stored: Document) -> None:
        """Write an Event when the API server has stored other values than were applied. Applying again cannot change that."""
        field = ownership.rewritten(applied["spec"], stored.get("spec") or {}, "spec")
        if field:
            message = (
                f"{applied['kind']} {applied['metadata']['name']}: {field}: an admission webhook rewrites it whenever the "
                "operator writes the object, and the operator leaves it so; exempt objects with the label "
                f"{MANAGED_SELECTOR} from that webhook if this is not meant"
            )
            await self._once(service, "ChildRewritten", message, applied["metadata"]["name"])

    async def _job(self, service: Document, manifest: dict[str, Any], refused: dict[str, str]) -> list[Exception]:
        """Create a Job once: its name identifies the attempt, and its template cannot change. Returns the failure."""
        path = paths.collection(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["namespace"])
        try:
            if await self._api.find(paths.of(manifest)) is None:
                await self._api.create(path, manifest)
        except FAILURES as error:
            if isinstance(error, ApiError) and error.status == CONFLICT:  # it exists by now
                return []
            log.error("the Job of a load test cannot be created: %s", error or type(error).__name__)
            await self._refusal(service, error, "Job", "load test's Job", refused)
            return [error]
        return []

    async def _deletion_costs(self, service: Document, costs: Mapping[str, int]) -> None:
        """Advise the ReplicaSet controller which pods to delete first. A write that fails is no reason not to scale down."""
        for name, cost in costs.items():
            try:
                path = paths.named("v1", "Pod", service["metadata"]["namespace"], name)
                await self._api.merge(path, {"metadata": {"annotations": {ANNOTATION: str(cost)}}})
            except FAILURES as error:
                log.info("pod %s keeps its deletion cost: %s", name, error or type(error).__name__)
                if not isinstance(error, ApiError):
                    return  # nobody answers: the others would wait as long

    async def _status(self, service: Document, plan: Plan) -> None:
        if plan.document is None or plan.document == (service.get("status") or {}) or plan.status == Status():
            return
        body = {**service, "status": plan.document}
        metadata = service["metadata"]
        path = paths.inference_service(metadata["namespace"], metadata["name"])
        try:
            self._store.upsert(KIND, await self._api.replace(f"{path}/status", body))
        except ApiError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                await self._refresh(KIND, metadata["namespace"], metadata["name"], path)
            elif error.is_refusal:
                # Kubernetes before 1.30 checks the spec again when the status is written. A CRD that became stricter then
                # refuses the status of what is stored, and no condition can say so.
                message = (
                    "the API server refuses this service's status: its pods stay as they are, and no weight and no "
                    f"condition changes, not even by a rollback, until this is corrected: {error.message}"
                )
                await self._once(service, "StatusRefused", message)
            raise

    async def _refresh(self, kind: str, namespace: str, name: str, path: str) -> None:
        """Read an object again where the API server contradicted the store."""
        document = await self._api.find(path)
        if document is None:
            self._store.remove(kind, namespace, name)
        else:
            self._store.upsert(kind, document)

    async def _delete(self, service: Document, revision: str, live: Mapping[tuple[str, str], Document]) -> None:
        """Delete a revision's children, its Deployment or LeaderWorkerSet last: while that one exists, a restarted operator
        knows that the others still have to be deleted."""
        for kind in (child.name for child in reversed(paths.CHILDREN)):
            namespace, served = service["metadata"]["namespace"], await self._versions.of(kind)
            for (live_kind, name), item in live.items():
                if live_kind == kind and (item["metadata"].get("labels") or {}).get(REVISION_LABEL) == revision:
                    await self._api.delete(paths.named(served, kind, namespace, name), item["metadata"]["uid"])

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
        except FAILURES as error:
            # Nothing depends on an Event, and a namespace that is being deleted accepts none.
            log.warning("event %s of %s is lost: %s", event.reason, metadata["name"], error or type(error).__name__)


def _key(service: Document) -> ServiceKey:
    return service["metadata"]["namespace"], service["metadata"]["name"]
