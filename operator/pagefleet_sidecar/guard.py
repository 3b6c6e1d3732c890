"""The sidecar of a warm spare whose engine has the routes of its developers open: vLLM has no others for sleep. It lets through what a
replica's clients, monitoring and the operator need, and answers everything else itself.

Where our engine would refuse, the sidecar does: an engine that computes requests is not put to sleep, and one that sleeps is asked
nothing. vLLM would abort the first and let the others wait. Source: vLLM's documentation, "Sleep mode" and "Security".
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

import aiohttp
from aiohttp import hdrs, web

from pagefleet_contract.disaggregation import SIDECAR_READY_PATH
from pagefleet_contract.names import IS_SLEEPING_PATH, SLEEP_LEVEL, SLEEP_PATH, WAKE_PATH
from pagefleet_sidecar.proxy import Handler, Proxy, refusal

log = logging.getLogger("pagefleet-sidecar")

READY_SECONDS = 4.0  # below the probe's 5 s
# What vLLM serves whether or not it is in its developers' mode, but what ends others' requests or is for the engine's owner alone.
READ = frozenset({"/health", "/ping", "/load", "/version", "/metrics", "/tokenizer_info", "/kv_event_sources"})
COMPUTED = frozenset(
    {"/tokenize", "/detokenize", "/pooling", "/classify", "/score", "/rerank", "/v2/rerank", "/v2/embed", "/cohere/v2/chat",
     "/cohere/v2/chat/render", "/invocations", "/ping", "/inference/v1/generate", "/generative_scoring"}
)  # fmt: skip
API = "/v1/"  # OpenAI's routes, of which none is a developer's
# A path that no server reads otherwise than this one: nothing is encoded, no segment is empty or made of dots alone.
PLAIN = re.compile(r"(?:/(?!\.+(?:/|$))[A-Za-z0-9._~:@-]+)+")
# The routes of sleep, and what the engine is asked. A client chooses neither the level nor what becomes of open requests.
CONTROLS = {
    (hdrs.METH_POST, SLEEP_PATH): f"{SLEEP_PATH}?level={SLEEP_LEVEL}&mode=wait",
    (hdrs.METH_POST, WAKE_PATH): WAKE_PATH,
    (hdrs.METH_GET, IS_SLEEPING_PATH): IS_SLEEPING_PATH,
}


def is_open(method: str, path: str) -> bool:
    """Whether a request may reach the engine as it is."""
    if PLAIN.fullmatch(path) is None:
        return False
    return path.startswith(API) or path in {hdrs.METH_GET: READ, hdrs.METH_POST: COMPUTED}.get(method, frozenset())


@dataclass
class Guard(Proxy):
    """`computing` is the number of open requests that compute. `asleep`: as far as known, the engine sleeps or is about to. `ordered` counts
    the orders that the engine has not answered."""

    computing: int = 0
    asleep: bool = False
    ordered: int = 0

    def answered(self) -> dict[str, Handler]:
        return {SIDECAR_READY_PATH: self._ready}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, _, query = request.raw_path.partition("?")
        target = CONTROLS.get((request.method, path))
        if target is not None:
            return await self._control(request, path, query, target)
        if not is_open(request.method, path):
            return refusal(404, "not_found", f"{request.method} {path[:80]} is not open to clients of this pod")
        if request.method != hdrs.METH_POST:
            return await self.pass_on(request, await request.read())
        if self.asleep:
            return refusal(503, "sleeping", f"this server sleeps: POST {WAKE_PATH}")
        self.computing += 1
        try:
            return await self.pass_on(request, await request.read())
        finally:
            self.computing -= 1

    async def _control(self, request: web.Request, path: str, query: str, target: str) -> web.StreamResponse:
        if path == SLEEP_PATH and query not in ("", f"level={SLEEP_LEVEL}"):
            return refusal(400, "invalid_level", f"only level={SLEEP_LEVEL} retains the weights")
        if path == SLEEP_PATH and self.computing:
            return refusal(409, "busy", f"{self.computing} requests are open")
        if path == IS_SLEEPING_PATH:
            return await self.pass_on(request, b"", target=target)
        self.ordered += 1
        self.asleep = self.asleep or path == SLEEP_PATH
        try:
            response = await self.pass_on(request, b"", target=target)
        finally:
            self.ordered -= 1
        if response.status < 300:
            self.asleep = path == SLEEP_PATH
        log.info("the engine answers %s with %d", target, response.status)
        return response

    async def _ready(self, _: web.Request) -> web.Response:
        """Whether the engine is awake. The kubelet asks every second, so this also corrects what is known of it."""
        try:
            timeout = aiohttp.ClientTimeout(total=READY_SECONDS)
            async with self.engine.get(self.settings.engine + IS_SLEEPING_PATH, timeout=timeout) as answer:
                asleep = (await answer.json())["is_sleeping"]
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, KeyError):
            return web.Response(status=503, text="the engine does not say whether it sleeps\n")
        if not self.ordered:
            self.asleep = asleep is not False
        return web.Response(status=503, text="asleep\n") if self.asleep else web.Response(text="ok\n")
