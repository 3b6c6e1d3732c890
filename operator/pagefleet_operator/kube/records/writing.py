"""Writes records. A record is applied once with its data; later only its annotations and labels change, by a merge patch.

The API server compares `data` byte by byte, as it encodes them itself, and refuses every patch of an object that a client
created with other blanks or escapes. Such a record, and one whose data are not those of the status (somebody has replaced
it), is deleted, and made again at the next decision.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pagefleet_contract.names import OPERATOR, RECORD_SELECTOR
from pagefleet_operator.domain.records.manifest import API_VERSION, KIND
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import FAILURES, Api, ApiError, Document
from pagefleet_operator.kube.store import Store

CONFLICT, NOT_FOUND, INVALID = 409, 404, 422
log = logging.getLogger(__name__)


class RecordWriter:
    """Writes to one cluster. The writes of `api` are fenced where several operators share it."""

    def __init__(self, api: Api, store: Store) -> None:
        self._api, self._store = api, store

    async def write(self, records: Iterable[Mapping[str, Any]]) -> list[Exception]:
        """Bring every record to its planned state. Returns the failures."""
        failures: list[Exception] = []
        for record in records:
            try:
                await self._write(copy.deepcopy(dict(record)))
            except FAILURES as error:
                log.error(
                    "the record %s cannot be written: %s", record["metadata"]["name"], error or type(error).__name__
                )
                failures.append(error)
        return failures

    async def _write(self, record: Document) -> None:
        metadata = record["metadata"]
        live, version = self._store.find(KIND, metadata["namespace"], metadata["name"]), metadata.pop("resourceVersion")
        if live is None:
            await self._stored(record, self._create)
        elif live["metadata"]["resourceVersion"] != version:
            return  # somebody has written it since it was read: the next decision reads it first
        elif record["data"]["spec"] and live.get("data") != record["data"]:
            await self._delete(live)
        elif not _holds(live, metadata):
            try:
                await self._stored(patch(live, metadata["annotations"], metadata["labels"]), self._patch)
            except ApiError as error:
                if error.status != INVALID:
                    raise
                await self._delete(live)

    async def _delete(self, live: Document) -> None:
        metadata = live["metadata"]
        path = paths.named(API_VERSION, KIND, metadata["namespace"], metadata["name"])
        await self._api.delete(path, metadata["uid"])
        self._store.remove(KIND, metadata["namespace"], metadata["name"])

    async def _create(self, record: Document) -> Document:
        return await self._api.apply(paths.of(record), record, OPERATOR)

    async def _patch(self, record: Document) -> Document:
        return await self._api.merge(paths.of(record), record, OPERATOR)

    async def _stored(self, record: Document, send: Callable[[Document], Any]) -> None:
        metadata = record["metadata"]
        try:
            self._store.upsert(KIND, await send(record))
        except ApiError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                await self._refresh(metadata["namespace"], metadata["name"])
            raise

    async def _refresh(self, namespace: str, name: str) -> None:
        """List a record again where the API server contradicted the store: the operator has no right to `get` one."""
        collection = paths.collection(API_VERSION, KIND, namespace)
        listed = await self._api.get(collection, labelSelector=RECORD_SELECTOR, fieldSelector=f"metadata.name={name}")
        for item in listed.get("items") or ():
            self._store.upsert(KIND, {**item, "apiVersion": API_VERSION, "kind": KIND})
        if not listed.get("items"):
            self._store.remove(KIND, namespace, name)


def patch(live: Document, annotations: Mapping[str, str], labels: Mapping[str, str]) -> Document:
    """The patch of a live record: annotations and labels, under the version that the decision was based on."""
    metadata = live["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "resourceVersion": metadata["resourceVersion"],
            "labels": dict(labels),
            "annotations": dict(annotations),
        },
    }


def _holds(live: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Whether a live record has every planned annotation; annotations of other writers do not matter."""
    present = live["metadata"].get("annotations") or {}
    return all(present.get(name) == value for name, value in desired["annotations"].items())
