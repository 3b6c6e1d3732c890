"""Reads a service's records from the store, and lists them once more where the service has no status yet.

Two watches report in no common order: records that were restored before their service could be reported after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.names import RECORD_SELECTOR, RECORDS_ANNOTATION, SERVICE_LABEL
from pagefleet_operator.domain.records.manifest import API_VERSION, KIND, readings
from pagefleet_operator.domain.status.observation import RecordReading
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import Api, Document
from pagefleet_operator.kube.store import Store

MAX_ANNOUNCED = 1000


class Records:
    """Raises ApiError or aiohttp.ClientError when the API server does not answer."""

    def __init__(self, api: Api, store: Store) -> None:
        self._api, self._store = api, store

    async def read(self, service: Document) -> tuple[RecordReading, ...]:
        """The records of a service, oldest first."""
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
        if not (service.get("status") or {}).get("stable"):
            await self._list(namespace, name)
        return readings(self._store.children(KIND, namespace, name))

    async def _list(self, namespace: str, name: str) -> None:
        selector = f"{RECORD_SELECTOR},{SERVICE_LABEL}={name}"
        listed = await self._api.get(paths.collection(API_VERSION, KIND, namespace), labelSelector=selector)
        for item in listed.get("items") or ():
            self._store.upsert(KIND, {**item, "apiVersion": API_VERSION, "kind": KIND})


def announced(metadata: Mapping[str, Any]) -> int:
    """The number of records that were exported with a service; 0 without one, or where it is no number."""
    text = (metadata.get("annotations") or {}).get(RECORDS_ANNOTATION, "")
    return min(int(text), MAX_ANNOUNCED) if text.isascii() and text.isdigit() and len(text) < 9 else 0
