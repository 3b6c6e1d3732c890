"""The versions of API groups that the server has: PodDisruptionBudgets are in policy/v1 from Kubernetes 1.21 on, and
LeaderWorkerSets exist where somebody has installed them."""

from __future__ import annotations

import time

from pagefleet_operator.domain.manifests.leaderworkerset import GROUP, VERSION
from pagefleet_operator.kube.client import Api

SECONDS = 30.0


class Versions:
    """Asks the API server once; for LeaderWorkerSets again after SECONDS, because they may be installed later."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._policy = ""
        self._groups, self._asked = False, float("-inf")

    async def of(self, version: str, kind: str) -> str:
        """The version under which this API server reads and writes `kind`, which our manifests give as `version`."""
        if kind != "PodDisruptionBudget":
            return version
        if not self._policy:
            group = await self._api.get("/apis/policy")
            served = {entry["groupVersion"] for entry in group["versions"]}
            self._policy = "policy/v1" if "policy/v1" in served else "policy/v1beta1"
        return self._policy

    async def groups(self) -> bool:
        """Whether LeaderWorkerSets are served, in the version that we write."""
        if time.monotonic() - self._asked > (SECONDS if self._groups else SECONDS / 6):
            group = await self._api.find(f"/apis/{GROUP}")
            served = {entry["groupVersion"] for entry in (group or {}).get("versions") or ()}
            self._groups, self._asked = f"{GROUP}/{VERSION}" in served, time.monotonic()
        return self._groups
