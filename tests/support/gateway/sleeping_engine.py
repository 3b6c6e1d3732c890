"""An engine that sleeps as vLLM does with VLLM_SERVER_DEV_MODE=1. It answers every other path too, as one of its developers' or clients'.

`/sleep` aborts the requests in flight if its mode is `abort`, which is the default, and waits for them if it is `wait`. While it sleeps, a
request waits until somebody wakes it. Level 2 discards the weights, so nothing wakes it. Source: vLLM's documentation, "Sleep mode" and
"Security", and its `record_sleep_state` for the metric.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from aiohttp import web
from support.gateway.fleet import until


@dataclass
class Sleeper:
    """`asked` has every request as it arrived, with its query. `gate` holds requests that compute; None: none is held."""

    port: int = 0
    level: int = 0  # of its sleep; 0: awake
    gate: asyncio.Event | None = None
    asked: list[str] = field(default_factory=list)
    running: set[asyncio.Task[None]] = field(default_factory=set)
    awake: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, stack: AsyncExitStack) -> None:
        self.awake.set()
        app = web.Application()
        app.router.add_post("/sleep", self.sleep)
        app.router.add_post("/wake_up", self.wake)
        app.router.add_get("/is_sleeping", self.is_sleeping)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_route("*", "/{path:.*}", self.other)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        self.port = runner.addresses[0][1]

    def note(self, request: web.Request) -> None:
        self.asked.append(f"{request.method} {request.raw_path}")

    async def sleep(self, request: web.Request) -> web.Response:
        self.note(request)
        self.awake.clear()
        if request.query.get("mode", "abort") == "abort":
            for task in self.running:
                task.cancel()
        await until(lambda: not self.running)
        self.level = int(request.query.get("level", "1"))
        return web.Response()

    async def wake(self, request: web.Request) -> web.Response:
        self.note(request)
        if self.level == 2:
            return web.Response(status=500)
        self.level = 0
        self.awake.set()
        return web.Response()

    async def is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": not self.awake.is_set()})

    async def metrics(self, request: web.Request) -> web.Response:
        self.note(request)
        states = {"awake": not self.level, "weights_offloaded": self.level == 1, "discard_all": self.level == 2}
        label = 'engine="0",model_name="m"'
        lines = [f'vllm:engine_sleep_state{{{label},sleep_state="{name}"}} {float(on)}' for name, on in states.items()]
        lines += [f"vllm:num_requests_{name}{{{label}}} 0.0" for name in ("running", "waiting")]
        lines += [f"vllm:kv_cache_usage_perc{{{label}}} 0.0", 'vllm:cache_config_info{num_gpu_blocks="100"} 1.0']
        return web.Response(text="\n".join(lines) + "\n")

    async def other(self, request: web.Request) -> web.Response:
        self.note(request)
        if request.method == "POST":
            await self.awake.wait()
            task = asyncio.create_task(self.compute())
            self.running.add(task)
            try:
                await task
            except asyncio.CancelledError:
                return web.Response(status=500, text="aborted")
            finally:
                self.running.discard(task)
        return web.json_response({"served": request.path})

    async def compute(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
