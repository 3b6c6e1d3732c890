"""What the API server can do: PodDisruptionBudgets are in policy/v1 from Kubernetes 1.21 on, LeaderWorkerSets exist where
somebody has installed them, and newer fields of pods are stored by newer servers only."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from pagefleet_operator.domain.manifests import pod_fields
from pagefleet_operator.domain.manifests.leaderworkerset import GROUP, VERSION
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import Api, ApiError
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
        return frozenset([name for name in sorted(fields) if not await self._stores(name, namespace)])

    async def _stores(self, field: str, namespace: str) -> bool:
        stored, asked = self._stored.get(field, (False, float("-inf")))
        if time.monotonic() - asked > (STORED_SECONDS if stored else SECONDS):
            try:
                stored = await self._dry_run(field, namespace)
            except ApiError as error:  # an admission webhook, perhaps: the pods' own manifest may fare better
                log.warning("whether the API server stores %s of pods cannot be read: %s", field, error)
                return True
            self._stored[field] = stored, time.monotonic()
        return stored

    async def _dry_run(self, field: str, namespace: str) -> bool:
        sent = pod_fields.example(field, namespace)
        path = paths.collection(sent["apiVersion"], sent["kind"], namespace)
        try:
            answer = await self._api.create(path, sent, dryRun="All")
        except ApiError as error:
            if error.status == INVALID and UNSPECIFIED in error.message:
                return False
            raise
        return pod_fields.stored(sent["spec"], answer.get("spec"))
