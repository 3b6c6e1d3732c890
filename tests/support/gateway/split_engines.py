"""Engines that keep to vLLM's `kv_transfer_params`, and decode pods made of one of them and the real routing sidecar.

An engine refuses what vLLM refuses. It keeps the KV pages of a prompt for the decode leg if it was asked for one token, and names them in
its answer. A decode engine fetches them from where the parameters say, if the other engine is of its own revision and still has them;
else it computes the prompt itself (`kv_load_failure_policy: recompute`). Source: vLLM, NixlConnector.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from support.gateway.engine_server import EngineServer, refused
from support.gateway.fleet import Fleet, chunk, completion, until

from pagefleet_gateway.cluster.engines import Engine as Metrics
from pagefleet_gateway.cluster.state import Pod
from pagefleet_sidecar.in_turn import InTurn
from pagefleet_sidecar.main import listening
from pagefleet_sidecar.proxy import Settings

PARAMS = "kv_transfer_params"
LEAST = 64  # uncached prompt tokens from which on a prefill pod is asked
LONG = "word " * 400
NETWORK: dict[str, VLLM] = {}  # engines by id, as the NIXL library reaches them


@dataclass
class VLLM(EngineServer):
    """An HTTP server. `computed` are the prompts that it has computed, `fetched` those whose KV pages came from another engine."""

    prefill_seconds: float = 0.0
    dies_after: int = 0  # tokens of a stream after which it cuts the connection; 0: never
    computed: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    pages: dict[str, str] = field(default_factory=dict)  # prompts that wait for their decode leg, by request
    ids: Any = field(default_factory=itertools.count)

    async def start(self, stack: AsyncExitStack) -> None:
        await super().start(stack)
        NETWORK[self.id] = self
        stack.callback(NETWORK.pop, self.id, None)

    async def die(self) -> None:
        """End as a process that is killed: its pages are lost."""
        NETWORK.pop(self.id, None)
        for handler in list(self.runner.server.connections if self.runner.server else ()):
            if handler.transport is not None:
                handler.transport.abort()
        await super().die()

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0")

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.bodies.append(body)
        if self.status != 200:
            return refused("unavailable", self.status)
        if body.get("stream_options") and not body.get("stream"):
            return refused("stream_options needs stream")
        most = body.get("max_completion_tokens") or body.get("max_tokens") or 3
        if body.get("min_tokens", 0) > most:
            return refused("min_tokens must not be above max_tokens")
        prompt = json.dumps(body.get("messages") or body.get("prompt") or body.get("input"))
        params = body.get(PARAMS) or {}
        fetched = self.fetch(params) if params.get("do_remote_prefill") else None
        if fetched is None:
            if self.gate is not None:
                await self.gate.wait()
            await asyncio.sleep(self.prefill_seconds)
            self.computed.append(prompt)
        else:
            self.fetched.append(fetched)
        by = params.get("remote_engine_id") if fetched is not None else self.id
        if body.get("stream"):
            return await self.stream(request, str(by))
        answer = completion(f"{by}") | (
            {PARAMS: self.keep(prompt)} if params.get("do_remote_decode") and most == 1 else {}
        )
        return web.json_response(answer)

    def keep(self, prompt: str) -> dict[str, Any]:
        request = f"cmpl-{next(self.ids)}"
        self.pages[request] = prompt
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": list(range(len(prompt) // 64)),
            "remote_engine_id": self.id,
            "remote_request_id": request,
            "remote_host": self.host,
            "remote_port": 5600,
            "tp_size": 1,
        }

    def fetch(self, params: Mapping[str, Any]) -> str | None:
        other = NETWORK.get(str(params["remote_engine_id"]))
        if other is None or other.revision != self.revision:  # the handshake compares versions and models
            return None
        return other.pages.pop(str(params["remote_request_id"]), None)

    async def stream(self, request: web.Request, by: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for index, token in enumerate((by, " and", " more")):
            if self.dies_after and index == self.dies_after and request.transport is not None:
                request.transport.abort()
                return response
            await response.write(b"data: " + json.dumps(chunk(token)).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Split:
    """A fleet whose revisions have decode and prefill pods. All prefill engines have one port, as in a cluster."""

    fleet: Fleet
    timeout: float = 5.0
    port: int = field(default_factory=free_port)
    proxies: list[InTurn] = field(default_factory=list)

    async def decode(self, revision: str, **options: Any) -> VLLM:
        engine = await self._engine(revision, **options)
        proxy = InTurn(Settings(revision, engine.port, self.timeout, prefill_port=self.port, engine_host=engine.host))
        self.proxies.append(proxy)
        port = await self.fleet.stack.enter_async_context(listening(proxy, engine.host, 0))
        pod = self._pod(engine, port, prefills=False)
        self.fleet.state.put_pod(pod)
        await until(lambda: pod in self.fleet.serving())
        return engine

    async def prefill(self, revision: str, ready: bool = True, **options: Any) -> VLLM:
        engine = await self._engine(revision, port=self.port, **options)
        self.fleet.state.put_pod(self._pod(engine, engine.port, prefills=True, ready=ready))
        return engine

    async def ask(self, text: str = LONG, **options: Any) -> tuple[int, str, dict[str, str]]:
        """Ask for a stream. Return the status, the engine that has computed the prompt, and the headers."""
        body = {"model": "smol", "messages": [{"role": "user", "content": text}], "stream": True, **options}
        status, answer, headers = await self.raw(json.dumps(body).encode())
        events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: {")]
        return status, events[0]["choices"][0]["delta"]["content"] if status == 200 else answer.decode(), headers

    async def raw(self, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, bytes, dict[str, str]]:
        url = f"{self.fleet.url}/team/chat/v1/chat/completions"
        sent = {"content-type": "application/json", **(headers or {})}
        async with self.fleet.http.post(url, data=body, headers=sent) as response:
            return response.status, await response.read(), {k.lower(): v for k, v in response.headers.items()}

    async def _engine(self, revision: str, **options: Any) -> VLLM:
        self.fleet.hosts += 1
        engine = VLLM(f"127.0.0.{self.fleet.hosts}", revision, **options)
        await engine.start(self.fleet.stack)
        return engine

    def _pod(self, engine: VLLM, port: int, *, prefills: bool, ready: bool = True) -> Pod:
        uid = f"{engine.revision}-{engine.host}"
        metrics = Metrics(port, prefill_from=LEAST)
        address = f"{engine.host}:{port}"
        return Pod(uid, f"chat-{uid}", "team", "chat", engine.revision, address, ready, metrics, prefills=prefills)
