"""Which version of a group the API server serves: PodDisruptionBudgets are policy/v1 from Kubernetes 1.21 on."""

from __future__ import annotations

from pagefleet_operator.cluster.api import Api


class Versions:
    """Asks once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._policy = ""

    async def of(self, version: str, kind: str) -> str:
        """What `kind`, which we name by `version`, is read and written under here."""
        if kind != "PodDisruptionBudget":
            return version
        if not self._policy:
            group = await self._api.get("/apis/policy")
            served = {entry["groupVersion"] for entry in group["versions"]}
            self._policy = "policy/v1" if "policy/v1" in served else "policy/v1beta1"
        return self._policy
