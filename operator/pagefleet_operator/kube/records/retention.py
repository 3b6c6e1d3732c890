"""Deletes the records of services that are gone, RETENTION_SECONDS after their service was first missed.

Until then a service that was deleted by mistake and is applied again has its records. The time is stored in the record, so
restarts of the operator do not prolong it. No record is deleted earlier than RETENTION_SECONDS after its own creation:
a back-up may bring records of a service that is restored later.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from pagefleet_contract.names import DELETED_ANNOTATION, KIND, OPERATOR, SERVICE_LABEL
from pagefleet_operator.domain.records.manifest import API_VERSION
from pagefleet_operator.domain.records.manifest import KIND as RECORD
from pagefleet_operator.domain.status.codec import time_text
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import Api, ApiError, Document
from pagefleet_operator.kube.leader_election import NotLeaderError
from pagefleet_operator.kube.readings import seconds
from pagefleet_operator.kube.records.writing import patch
from pagefleet_operator.kube.store import Store

RETENTION_SECONDS = 7 * 24 * 3600.0
SWEEP_SECONDS = 20.0
log = logging.getLogger(__name__)


class Retention:
    """Sweeps every SWEEP_SECONDS. `leads` is whether this process may write."""

    def __init__(self, api: Api, store: Store, leads: Callable[[], bool]) -> None:
        self._api, self._store, self._leads = api, store, leads

    async def run(self, *needed: asyncio.Event) -> None:
        """Sweep for ever, once all events of `needed` are set: before the first whole list every service seems gone."""
        for event in needed:
            await event.wait()
        while True:
            if self._leads():
                await self.sweep(time.time())
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self, now: float) -> None:
        """Mark the records of missing services, and delete those that were marked long ago."""
        for namespace, name in self._store.names(RECORD):
            record = self._store.find(RECORD, namespace, name)
            service = "" if record is None else (record["metadata"].get("labels") or {}).get(SERVICE_LABEL, "")
            if record is None or self._store.find(KIND, namespace, service) is not None:
                continue
            try:
                await self._age(record, now)
            except (ApiError, NotLeaderError, aiohttp.ClientError, TimeoutError, OSError) as error:
                # The namespace may be going, or the service may be back: the next sweep sees it as it is then.
                log.info("the record %s/%s is left as it is: %s", namespace, name, error or type(error).__name__)

    async def _age(self, record: Document, now: float) -> None:
        metadata = record["metadata"]
        path = paths.named(API_VERSION, RECORD, metadata["namespace"], metadata["name"])
        if is_over(metadata, now):
            log.info("the record %s/%s goes: its service is gone", metadata["namespace"], metadata["name"])
            await self._api.delete(path, metadata["uid"])
        elif not missed_since(metadata):
            body = patch(record, {DELETED_ANNOTATION: time_text(now)}, {})
            self._store.upsert(RECORD, await self._api.merge(path, body, OPERATOR))


def missed_since(metadata: Mapping[str, Any]) -> float:
    """When the record's service was first missed, in UNIX seconds; 0 while that is not stored."""
    try:
        text = (metadata.get("annotations") or {}).get(DELETED_ANNOTATION, "")
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def is_over(metadata: Mapping[str, Any], now: float) -> bool:
    """Whether the record of a missing service has been retained for long enough."""
    missed = missed_since(metadata)
    return bool(missed) and now - max(missed, seconds(metadata["creationTimestamp"])) >= RETENTION_SECONDS
