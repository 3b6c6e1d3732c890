"""The versions of API groups that the server has: PodDisruptionBudgets are in policy/v1 from Kubernetes 1.21 on, and
LeaderWorkerSets exist where somebody has installed them."""

from __future__ import annotations

import time

from pagefleet_operator.domain.manifests.leaderworkerset import GROUP, VERSION
from pagefleet_operator.kube.client import Api
from pagefleet_operator.kube.paths import KINDS

SECONDS = 30.0


class Versions:
    """Asks the API server once; for LeaderWorkerSets again after SECONDS, because they may be installed later."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._served: dict[str, str] = {}
        self._groups, self._asked = False, float("-inf")

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
