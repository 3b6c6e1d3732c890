"""An API server of a gateway's watches, over HTTP, that breaks them as real ones do."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from aiohttp import web

SERVICES = "/apis/pagefleet.io/v1alpha1/inferenceservices"
PODS = "/api/v1/pods"


@dataclass
class Kind:
    items: dict[str, dict[str, object]] = field(default_factory=dict)
    watchers: list[asyncio.Queue[bytes | None]] = field(default_factory=list)
    lists: int = 0
    watches: int = 0
    gone: bool = False  # answer the next watch with 410


class API:
    """Lists and watches two kinds over HTTP, as the API server does, and breaks a watch when a test asks for it."""

    def __init__(self) -> None:
        self.kinds = {SERVICES: Kind(), PODS: Kind()}
        self.version = 100
        self.port = 0
        self.listing = asyncio.Event()  # lists are answered once it is set
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        for path in self.kinds:
            app.router.add_get(path, self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        for kind in self.kinds.values():
            self.send_raw(kind, None)
        if self._runner is not None:
            await self._runner.cleanup()

    def put(self, path: str, item: dict[str, object], event: str = "MODIFIED") -> None:
        self.version += 1
        metadata = item["metadata"]
        if not isinstance(metadata, dict):
            raise TypeError("metadata must be a dict")
        metadata["resourceVersion"] = str(self.version)
        self.kinds[path].items[str(metadata["name"])] = item
        self.send_raw(self.kinds[path], json.dumps({"type": event, "object": item}).encode() + b"\n")

    def send_raw(self, kind: Kind, data: bytes | None) -> None:
        for queue in kind.watchers:
            queue.put_nowait(data)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        kind = self.kinds[request.path]
        if "watch" not in request.query:
            await self.listing.wait()
            kind.lists += 1
            metadata = {"resourceVersion": str(self.version)}
            return web.json_response({"metadata": metadata, "items": list(kind.items.values())})
        if kind.gone:
            kind.gone = False
            return web.json_response({"code": 410, "message": "too old"}, status=410)
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        # What changed between the list and this watch.
        for item in kind.items.values():
            metadata = item["metadata"]
            if isinstance(metadata, dict) and int(metadata["resourceVersion"]) > int(request.query["resourceVersion"]):
                queue.put_nowait(json.dumps({"type": "MODIFIED", "object": item}).encode() + b"\n")
        kind.watchers.append(queue)
        kind.watches += 1
        try:
            while (data := await queue.get()) is not None:
                await response.write(data)
        except ConnectionError:
            return response  # the client has given this watch up
        finally:
            kind.watchers.remove(queue)
        if request.transport is not None:
            request.transport.abort()
        return response
