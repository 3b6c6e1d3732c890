"""Which version of a group the API server serves: PodDisruptionBudgets are policy/v1 from Kubernetes 1.21 on, and
LeaderWorkerSets are there when somebody has installed them."""

from __future__ import annotations

import time

from pagefleet_operator.domain.manifests.leaderworkerset import GROUP, VERSION
from pagefleet_operator.kube.client import Api

SECONDS = 30.0


class Versions:
    """Asks once; for LeaderWorkerSets at most every SECONDS, because they may come later."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._policy = ""
        self._groups, self._asked = False, float("-inf")

    async def of(self, version: str, kind: str) -> str:
        """What `kind`, which we name by `version`, is read and written under here."""
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
            found = await self._api.find(f"/apis/{GROUP}")
            served = {entry["groupVersion"] for entry in (found or {}).get("versions") or ()}
            self._groups, self._asked = f"{GROUP}/{VERSION}" in served, time.monotonic()
        return self._groups
