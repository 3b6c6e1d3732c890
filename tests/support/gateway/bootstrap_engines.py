"""Engines that meet as SGLang's do, and decode pods made of one of them and the real routing sidecar.

A prefill pod's engine answers when the decode leg of its room has come, and a decode engine begins when the prefill leg has computed the
prompt; each waits for the other for ever. Without a room both refuse. A prefill engine that fails tells the decode engine nothing, and the
end of a connection ends its leg. Source: SGLang 0.5.23, `srt/disaggregation`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from support.gateway.engine_server import EngineServer, refused
from support.gateway.fleet import Fleet, chunk, completion, until
from support.gateway.split_engines import free_port

from pagefleet_contract.names import KV_TRANSFER_PORT
from pagefleet_gateway.cluster.engines import Engine as Metrics
from pagefleet_gateway.cluster.state import Pod
from pagefleet_sidecar.at_once import AtOnce
from pagefleet_sidecar.main import listening
from pagefleet_sidecar.proxy import Settings

MEETING = {"bootstrap_host", "bootstrap_port", "bootstrap_room"}


@dataclass
class Room:
    decode: asyncio.Event = field(default_factory=asyncio.Event)
    computed: asyncio.Event = field(default_factory=asyncio.Event)
    by: str = ""


@dataclass
class SGLang(EngineServer):
    """With `prefills` it computes prompts, else it decodes. `rooms` are those of all engines, as their network has them."""

    rooms: dict[tuple[str, int], Room] = field(default_factory=dict)
    prefills: bool = False
    headers_first: bool = False  # a stream's headers go out before its first token
    cuts: bool = False  # ends the connection of every request

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.bodies.append(body)
        if self.cuts and request.transport is not None:
            request.transport.abort()
            return web.Response()
        if self.status != 200:
            return refused("unavailable", self.status)
        if not set(body) >= MEETING or body["bootstrap_port"] != KV_TRANSFER_PORT:
            return refused("Disaggregated request received without bootstrap room id.")
        if body.get("stream_options") and not body.get("stream"):
            return refused("stream_options needs stream")
        room = self.rooms.setdefault((body["bootstrap_host"], body["bootstrap_room"]), Room())
        return await (self.prefill(body, room) if self.prefills else self.decode(request, body, room))

    async def prefill(self, body: dict[str, Any], room: Room) -> web.StreamResponse:
        if body["bootstrap_host"] != self.host:
            return refused("this is another prefill pod's room")
        if self.gate is not None:
            await self.gate.wait()
        await room.decode.wait()
        room.by = self.id
        room.computed.set()
        return web.json_response(completion("x"))

    async def decode(self, request: web.Request, body: dict[str, Any], room: Room) -> web.StreamResponse:
        room.decode.set()
        if not body.get("stream"):
            await room.computed.wait()
            return web.json_response(completion(room.by))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if self.headers_first:
            await response.prepare(request)
        await room.computed.wait()
        if not self.headers_first:
            await response.prepare(request)
        for token in (room.by, " and", " more"):
            await response.write(b"data: " + json.dumps(chunk(token)).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


@dataclass
class Pairs:
    """A fleet whose revisions have decode and prefill pods of SGLang. All prefill engines have one port, as in a cluster."""

    fleet: Fleet
    timeout: float = 5.0
    port: int = field(default_factory=free_port)
    rooms: dict[tuple[str, int], Room] = field(default_factory=dict)
    sidecars: list[AtOnce] = field(default_factory=list)

    async def decode(self, revision: str, **options: Any) -> SGLang:
        engine = await self._engine(revision, prefills=False, **options)
        settings = Settings(revision, engine.port, self.timeout, prefill_port=self.port, engine_host=engine.host)
        sidecar = AtOnce(settings)
        self.sidecars.append(sidecar)
        port = await self.fleet.stack.enter_async_context(listening(sidecar, engine.host, 0))
        pod = self._pod(engine, port, ready=True)
        self.fleet.state.put_pod(pod)
        await until(lambda: pod in self.fleet.serving())
        return engine

    async def prefill(self, revision: str, ready: bool = True, **options: Any) -> SGLang:
        engine = await self._engine(revision, prefills=True, port=self.port, **options)
        self.fleet.state.put_pod(self._pod(engine, engine.port, ready=ready))
        return engine

    async def ask(self, **options: Any) -> tuple[int, str, dict[str, str]]:
        """Ask for a stream. Return the status, the engine that has computed the prompt, or the error's text, and the headers."""
        body = {"model": "smol", "messages": [{"role": "user", "content": "hi"}], "stream": True, **options}
        url = f"{self.fleet.url}/team/chat/v1/chat/completions"
        async with self.fleet.http.post(url, json=body) as response:
            text = (await response.read()).decode()
            headers = {name.lower(): value for name, value in response.headers.items()}
        if response.status != 200:
            return response.status, text, headers
        if not body["stream"]:
            return 200, json.loads(text)["choices"][0]["message"]["content"], headers
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        return 200, events[0]["choices"][0]["delta"]["content"], headers

    async def _engine(self, revision: str, *, prefills: bool, **options: Any) -> SGLang:
        self.fleet.hosts += 1
        engine = SGLang(f"127.0.0.{self.fleet.hosts}", revision, rooms=self.rooms, prefills=prefills, **options)
        await engine.start(self.fleet.stack)
        return engine

    def _pod(self, engine: SGLang, port: int, *, ready: bool) -> Pod:
        uid = f"{engine.revision}-{engine.host}"
        metrics = Metrics(port, scraped=False, prefill_from=0)
        address = f"{engine.host}:{port}"
        return Pod(
            uid, f"chat-{uid}", "team", "chat", engine.revision, address, ready, metrics, prefills=engine.prefills
        )
