"""Protects that an Api leaves no connection behind: also those of requests that were given up, whose TLS is still being
taken down when the Api, and at once its event loop, are closed."""

from __future__ import annotations

import asyncio
import gc
import ssl
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from pagefleet_local.base.certificates import Authority
from pagefleet_operator.kube.client import Api


class Slow:
    """An API server, in a thread of its own, that begins its answers (/begun) or not even that, and never ends them."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder / "pki")
        self._authority.ensure()
        self._folder, self.asked, self._ready = folder, threading.Semaphore(0), threading.Event()
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self.kubeconfig = ""

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(20)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        pair = self._authority.issue("server", "server", hosts=["127.0.0.1"])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.certificate, pair.key)
        application = web.Application()
        application.router.add_get("/{path}", self._answer)
        runner = web.AppRunner(application, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        server = f"https://127.0.0.1:{runner.addresses[0][1]}"
        client = self._authority.issue("client", "client")
        self.kubeconfig = str(self._authority.kubeconfig(self._folder / "kubeconfig", server, client))
        self._ready.set()
        await self._end.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        if request.path == "/begun":
            await answer.prepare(request)
        self.asked.release()
        await self._end.wait()
        return answer


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    server = Slow(tmp_path)
    server.start()
    yield server
    server.stop()


async def given_up(slow: Slow) -> None:
    async with Api(slow.kubeconfig) as api:
        tasks = [asyncio.create_task(api.get(path)) for path in ("/begun", "/silent") * 4]
        for _ in tasks:
            assert await asyncio.to_thread(slow.asked.acquire, timeout=20)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_requests_that_were_given_up_leave_no_connection(slow: Slow) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(given_up(slow))
        gc.collect()
    assert [str(one.message) for one in caught if issubclass(one.category, ResourceWarning)] == []
