"""What the API server can do: PodDisruptionBudgets are in policy/v1 from Kubernetes 1.21 on, and let pods that are not ready be
evicted from 1.27 on. LeaderWorkerSets exist where somebody has installed them, and newer fields of pods are stored by newer
servers only."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from pagefleet_operator.domain.manifests import disruption_budget, pod_fields
from pagefleet_operator.domain.manifests.leaderworkerset import GROUP, VERSION
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import FAILURES, Api, ApiError, Document
from pagefleet_operator.kube.paths import KINDS

SECONDS = 30.0
STORED_SECONDS = 600.0  # a server loses a field only when its feature is turned off
INVALID, UNSPECIFIED = 422, "must specify"  # the answer where dropping the field leaves an entry without a meaning
log = logging.getLogger(__name__)


class Versions:
    """Asks the API server once; for what may come later, again after SECONDS."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._served: dict[str, str] = {}
        self._groups, self._asked = False, float("-inf")
        self._stored: dict[str, tuple[bool, float]] = {}
        self._failed: dict[tuple[str, str], float] = {}  # when a dry run in a namespace was not answered

    async def of(self, kind: str) -> str:
        """The version under which this API server reads and writes `kind`."""
        entry = KINDS[kind]
        if not entry.earlier:
            return entry.version
        if kind not in self._served:
            group = await self._api.get(f"/apis/{entry.version.partition('/')[0]}")
            served = {one["groupVersion"] for one in group["versions"]}
            self._served[kind] = entry.version if entry.version in served else entry.earlier
        return self._served[kind]

    async def groups(self) -> bool:
        """Whether LeaderWorkerSets are served, in the version that we write."""
        if time.monotonic() - self._asked > (SECONDS if self._groups else SECONDS / 6):
            group = await self._api.find(f"/apis/{GROUP}")
            served = {entry["groupVersion"] for entry in (group or {}).get("versions") or ()}
            self._groups, self._asked = f"{GROUP}/{VERSION}" in served, time.monotonic()
        return self._groups

    async def dropped(self, fields: Iterable[str], namespace: str) -> frozenset[str]:
        """Those of these fields of pods (`pod_fields.FIELDS`) that the API server does not store."""
        # Where a webhook, perhaps, refuses the example, the pods' own manifest may fare better.
        return frozenset(
            [
                name
                for name in sorted(fields)
                if not await self._stores(name, pod_fields.example(name, namespace), otherwise=True)
            ]
        )

    async def adapted(self, manifest: Document) -> Document:
        """The manifest of a child as this API server can apply it."""
        adapted = {**manifest, "apiVersion": await self.of(manifest["kind"])}
        if manifest["kind"] != disruption_budget.KIND:
            return adapted
        example = disruption_budget.example(manifest["metadata"]["namespace"])
        known = adapted["apiVersion"] == disruption_budget.VERSION and await self._stores(
            disruption_budget.EVICTION_POLICY, example, otherwise=False
        )
        return adapted if known else disruption_budget.without_policy(adapted)

    async def _stores(self, field: str, example: Document, *, otherwise: bool) -> bool:
        """Whether the API server stores the field of the example; while it does not say, what it said last, else `otherwise`."""
        stored, asked = self._stored.get(field, (otherwise, float("-inf")))
        place = field, example["metadata"]["namespace"]
        failed = time.monotonic() - self._failed.get(place, float("-inf")) <= SECONDS
        if failed or time.monotonic() - asked <= (STORED_SECONDS if stored else SECONDS):
            return stored
        try:
            stored = await self._dry_run(example)
        except FAILURES as error:
            log.warning("whether the API server stores %s cannot be read: %s", field, error or type(error).__name__)
            if not otherwise or not isinstance(error, ApiError):  # every service asks for it, or it takes long
                self._failed[place] = time.monotonic()
            return stored
        self._stored[field] = stored, time.monotonic()
        return stored

    async def _dry_run(self, sent: Document) -> bool:
        path = paths.collection(sent["apiVersion"], sent["kind"], sent["metadata"]["namespace"])
        try:
            answer = await self._api.create(path, sent, dryRun="All")
        except ApiError as error:
            if error.status == INVALID and UNSPECIFIED in error.message:
                return False
            raise
        return pod_fields.stored(sent["spec"], answer.get("spec"))
