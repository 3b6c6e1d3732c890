"""Leader election: only the operator that holds the Lease decides and writes. The others watch and can take over."""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from pagefleet_operator.kube import lease, paths
from pagefleet_operator.kube.client import Api, ApiError
from pagefleet_operator.kube.lease import Lease, Move, Watch

API_VERSION = paths.KINDS["Lease"].version
log = logging.getLogger(__name__)


class NotLeaderError(Exception):
    """This process may not write: it does not hold the Lease, or can no longer be sure that it does."""


class Leadership:
    """One operator's view of the Lease `name`. An empty name means that there is only one operator, which always leads."""

    def __init__(
        self, api: Api, namespace: str, name: str, me: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._namespace, self._name, self._me = api.reserved(), namespace, name, me
        self._clock = clock
        self._renewed: float | None = None
        self._watch = Watch()
        self._version = ""
        self.leads = asyncio.Event()
        if not name:
            self.leads.set()

    def check(self) -> float:
        """Return the seconds within which a write that begins now must be over. Raises NotLeaderError where none may begin."""
        if not self._name:
            return math.inf
        if seconds := lease.write_seconds(self._renewed, self._clock()):
            return seconds
        raise NotLeaderError(f"{self._me} does not hold the lease {self._namespace}/{self._name}")

    async def run(self) -> None:
        """Acquire and renew the Lease. Returns when it was held and is lost; the process should then end and be restarted."""
        if not self._name:
            await asyncio.Event().wait()
        while True:
            failed = False
            try:
                await self._turn()
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                failed = self.leads.is_set()
                log.warning("lease %s cannot be read or renewed: %s", self._name, error or type(error).__name__)
            if self.leads.is_set() and not lease.holds(self._renewed, self._clock()):
                log.error("the lease %s is lost", self._name)
                return
            await asyncio.sleep(lease.pause(self._watch, self._me, self._clock(), failed=failed))

    async def give_up(self) -> None:
        """Release the Lease, so that another operator takes over at once. If this fails, they wait until it has expired."""
        if self._name and lease.holds(self._renewed, self._clock()):
            self._renewed = None
            try:
                await self._api.replace(self._path, self._document("", self._version))
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning(
                    "lease %s cannot be released, it expires by itself: %s", self._name, error or type(error).__name__
                )

    async def _turn(self) -> None:
        now = self._clock()
        async with asyncio.timeout(lease.REQUEST_SECONDS):
            document = await self._api.find(self._path)
        self._version = document["metadata"]["resourceVersion"] if document else ""
        known = Lease(str((document["spec"] or {}).get("holderIdentity") or ""), self._version) if document else None
        self._watch = self._watch.updated(known, now)
        choice = lease.move(self._watch, self._me, now)
        if choice is Move.WAIT:
            return
        async with asyncio.timeout(lease.REQUEST_SECONDS):
            if document is None:
                written = await self._api.create(self._collection, self._document(self._me, ""))
            else:
                written = await self._api.replace(self._path, self._document(self._me, self._version))
        self._version = written["metadata"]["resourceVersion"]
        self._renewed = now
        if not self.leads.is_set():
            log.info("%s holds the lease %s now", self._me, self._name)
            self.leads.set()

    @property
    def _collection(self) -> str:
        return paths.collection(API_VERSION, "Lease", self._namespace)

    @property
    def _path(self) -> str:
        return paths.named(API_VERSION, "Lease", self._namespace, self._name)

    def _document(self, holder: str, version: str) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata = {"name": self._name, "namespace": self._namespace}
        if version:
            metadata["resourceVersion"] = version
        return {
            "apiVersion": API_VERSION,
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": int(lease.LEASE_SECONDS),
                "renewTime": now,
            },
        }
