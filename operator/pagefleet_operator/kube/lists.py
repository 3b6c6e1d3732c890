"""Whole lists of every kind that the operator watches.

They are read at the start, so that the first decision sees every object, and every few minutes after that, because a
broken watch reports no deletions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

import aiohttp

from pagefleet_contract.names import API_VERSION, KIND
from pagefleet_contract.reflector import CHUNK
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import Api, ApiError, Document
from pagefleet_operator.kube.store import ObjectKey, Store
from pagefleet_operator.kube.versions import Versions

RELIST_SECONDS = 300.0
RETRY_SECONDS = 2.0
log = logging.getLogger(__name__)


class Lists:
    """Keeps the store complete. `synced` is set when every kind has been listed once. `changed` is called with the key of
    each object that a list added, changed or lacked."""

    def __init__(
        self,
        api: Api,
        versions: Versions,
        store: Store,
        namespaces: Collection[str],
        changed: Callable[[ObjectKey], None],
    ) -> None:
        self._api, self._versions, self._store, self._changed = api, versions, store, changed
        self._namespaces = tuple(namespaces)
        self.synced, self._soon = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """List now, every RELIST_SECONDS, and whenever `soon` was called."""
        while True:
            try:
                await self.once()
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("the API server does not answer lists: %s", error or type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.synced.set()
            try:
                async with asyncio.timeout(RELIST_SECONDS):
                    await self._soon.wait()
                await asyncio.sleep(RETRY_SECONDS)  # so that several calls of `soon` share one list
            except TimeoutError:
                continue
            finally:
                self._soon.clear()

    def soon(self) -> None:
        """List again soon: objects may have vanished without an event."""
        self._soon.set()

    async def once(self) -> None:
        """Raises ApiError or aiohttp.ClientError."""
        # Children come first: a decision on a service must see the children that it has.
        for kind in paths.WATCHED:
            await self._list(await self._versions.of(kind.name), kind.name, kind.selector)
        await self._list(API_VERSION, KIND, "")

    async def _list(self, version: str, kind: str, selector: str) -> None:
        for namespace in self._namespaces or ("",):
            documents, at = await self._pages(paths.everywhere(version, kind, namespace), selector)
            for document in documents:  # items of a list do not name their kind
                document.setdefault("apiVersion", version)
                document.setdefault("kind", kind)
            brought, gone = self._store.replace_listed(kind, documents, at, (namespace,) if namespace else ())
            for key in (*brought, *gone):
                self._changed(key)
            for key in gone:
                self._store.remove(*key)

    async def _pages(self, path: str, selector: str) -> tuple[list[Document], int]:
        """All items, and the resourceVersion of the first page: later pages may hold newer objects."""
        query = {"limit": str(CHUNK)} | ({"labelSelector": selector} if selector else {})
        documents: list[Document] = []
        at = 0
        while True:
            page = await self._api.get(path, **query)
            documents += page.get("items") or ()
            at = at or int(page["metadata"].get("resourceVersion") or 0)
            if not (following := page["metadata"].get("continue")):
                return documents, at
            query["continue"] = following
