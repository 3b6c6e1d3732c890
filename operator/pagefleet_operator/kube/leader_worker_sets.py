"""Reads LeaderWorkerSets into the store, for services that have a revision of several nodes.

They are listed at each decision and not watched, because a cluster may not have the kind. Their pods are watched, so a
change still leads to a decision. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pagefleet_contract.names import MANAGED_SELECTOR, SERVICE_LABEL
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.manifests.leaderworkerset import GROUP, KIND, VERSION
from pagefleet_operator.domain.status.observation import RecordReading
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import Api, ApiError, Document
from pagefleet_operator.kube.store import Store
from pagefleet_operator.kube.versions import Versions

SET_LABEL = "leaderworkerset.sigs.k8s.io/name"  # on every pod that a LeaderWorkerSet made
NOT_FOUND = 404


class Groups:
    """Raises ApiError or aiohttp.ClientError when the API server does not answer."""

    def __init__(self, api: Api, versions: Versions, store: Store) -> None:
        self._api, self._versions, self._store = api, versions, store

    async def read(self, namespace: str, service: str) -> bool:
        """Update the store's LeaderWorkerSets of one service. Returns whether the cluster serves the kind."""
        items: list[Document] = []
        served = await self._versions.groups()
        if served:
            try:
                items = await self._list(namespace, service)
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
                served = False  # the kind was removed meanwhile
        present = {item["metadata"]["name"] for item in items}
        for item in items:
            self._store.upsert(KIND, item)
        for known in self._store.children(KIND, namespace, service):
            if known["metadata"]["name"] not in present:
                self._store.remove(KIND, namespace, known["metadata"]["name"])
        return served

    async def _list(self, namespace: str, service: str) -> list[Document]:
        path = paths.collection(f"{GROUP}/{VERSION}", KIND, namespace)
        listed = await self._api.get(path, labelSelector=f"{MANAGED_SELECTOR},{SERVICE_LABEL}={service}")
        items: list[Document] = listed.get("items") or []
        return [{**item, "apiVersion": f"{GROUP}/{VERSION}", "kind": KIND} for item in items]


def needed(
    spec: Mapping[str, Any], status: Mapping[str, Any], recorded: Iterable[RecordReading], pods: Iterable[Document]
) -> bool:
    """Whether a service has, asks for or had a revision of several nodes. Total: the spec may be of any shape."""
    records = status.get("revisions")
    snapshots = [record.get("spec") for record in records if isinstance(record, Mapping)] if records else []
    if any(_several(snapshot) for snapshot in (spec, *snapshots, *(record.spec for record in recorded))):
        return True
    return any(SET_LABEL in (pod["metadata"].get("labels") or {}) for pod in pods)


def _several(spec: object) -> bool:
    count: object = revision_spec(spec).nodes
    return isinstance(count, int) and count > 1
