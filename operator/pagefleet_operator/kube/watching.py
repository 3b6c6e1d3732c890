"""kopf's watches on InferenceServices and on the child objects that carry our label. kopf reports events here and writes
to no object.

Why kopf runs in a thread of its own and is started again:
- A watcher of kopf's that receives an ERROR event other than 410 ends, and kopf does not start it again (the fault
  campaign found this). The operator would be blind for that kind of object and still look alive. So this module waits
  for the first watcher to end, stops kopf, and starts it again.
- kopf cancels every task of its event loop when it stops, whoever started the task, and it takes over the signals of the
  process. In a loop and a thread of its own it can do neither to the operator.
- kopf may need long to stop, because a watcher that is cancelled while it begins a request goes on. The thread is
  therefore a daemon, its events are dropped after `end`, and nobody waits for it longer than END_SECONDS.
Events travel to the loop of `run` by call_soon_threadsafe; the operator's own state is touched in that loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import kopf

from pagefleet_contract.names import GROUP, KIND, PLURAL, VERSION
from pagefleet_contract.reflector import CHUNK
from pagefleet_operator.kube import credentials
from pagefleet_operator.kube.paths import WATCHED

WATCH_SECONDS = 60
POLL_SECONDS = 0.5
END_SECONDS = 5.0
OnEvent = Callable[[str, str | None, dict[str, Any]], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watching:
    """Watches until it is stopped.

    `on_event` is called with the kind, the event's type (None: from a list) and the object. `ready` is set while kopf
    watches. `on_restart` is called at each new start of kopf. Without `namespaces` the whole cluster is watched.
    `kubeconfig` is a file's path; None means the pod's service account.
    """

    on_event: OnEvent
    namespaces: Collection[str]
    kubeconfig: str | None
    ready: asyncio.Event
    on_restart: Callable[[], None]

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until `stop` is set."""
        while True:
            watcher = _Watcher(asyncio.get_running_loop(), self)
            watcher.start()
            ended, stopping = (asyncio.create_task(event.wait()) for event in (watcher.ended, stop))
            try:
                await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
                watcher.end()
                await asyncio.wait((ended,), timeout=END_SECONDS)
            finally:
                watcher.end()
                ended.cancel()
                stopping.cancel()
            if stop.is_set():
                return
            log.error("a watch of the API server has ended; kopf is started again and lists every object")
            self.on_restart()


@dataclass(eq=False)
class _Watcher:
    """One run of kopf, in a thread. After `end` it reports nothing more, however long its thread takes to end."""

    loop: asyncio.AbstractEventLoop
    watching: Watching
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _over: bool = False
    _stop: Callable[[], None] = lambda: None

    def start(self) -> None:
        threading.Thread(target=self._thread, name="kopf", daemon=True).start()

    def end(self) -> None:
        self._over = True
        self._stop()

    def _thread(self) -> None:
        """Run kopf in a loop of its own. asyncio.run would wait for every task to end, and kopf's may not."""
        own = asyncio.new_event_loop()
        try:
            own.run_until_complete(self._watch())
        except Exception as error:
            log.error("kopf has ended: %s", error or type(error).__name__)
        finally:
            self._over = True
            self._report(self.ended.set)
            own.set_exception_handler(lambda *_: None)  # errors of tasks that are given up
            if remaining := asyncio.all_tasks(own):
                for task in remaining:
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):  # kopf cancels every task of its loop when it stops
                    own.run_until_complete(asyncio.wait(remaining, timeout=END_SECONDS))
            own.close()

    async def _watch(self) -> None:
        own, stop, ready = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def end() -> None:
            with contextlib.suppress(RuntimeError):  # kopf's loop is closed already
                own.call_soon_threadsafe(stop.set)

        self._stop = end
        if self._over:
            return
        tasks = [
            asyncio.create_task(work)
            for work in (self._kopf(ready), _watcher_ended(), stop.wait(), self._announce(ready))
        ]
        done, _ = await asyncio.wait(tasks[:3], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # raises why kopf has ended: without valid credentials, for example

    async def _announce(self, ready: asyncio.Event) -> None:
        await ready.wait()
        self._report(self.watching.ready.set)

    def _report(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the operator's loop is closed already
            self.loop.call_soon_threadsafe(callback, *arguments)

    def _event(self, kind: str, event: str | None, document: dict[str, Any]) -> None:
        if not self._over:
            self.watching.on_event(kind, event, document)

    async def _kopf(self, ready: asyncio.Event) -> None:
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        register(registry, self.watching.kubeconfig, lambda *event: self._report(self._event, *event))
        configure(settings)
        namespaces = tuple(self.watching.namespaces)
        await kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            ready_flag=ready,
        )


async def _watcher_ended() -> None:
    """Return when one of kopf's watchers that once ran has ended. kopf names its tasks "watcher for KIND@NAMESPACE"."""
    known: set[asyncio.Task[Any]] = set()
    while not any(task.done() for task in known):
        known |= {task for task in asyncio.all_tasks() if task.get_name().startswith("watcher for ")}
        await asyncio.sleep(POLL_SECONDS)


def register(registry: kopf.OperatorRegistry, kubeconfig: str | None, on_event: OnEvent) -> None:
    """Register the login and one event handler for each kind.

    Each handler is a coroutine: kopf runs plain functions in a pool of threads.
    """

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await credentials.for_kopf(kubeconfig)

    def watch(kind: str, *resource: str) -> None:
        @kopf.on.event(*resource, id=kind, registry=registry)
        async def event(event: Any, **_: Any) -> None:
            on_event(kind, event["type"], dict(event["object"]))

    watch(KIND, GROUP, VERSION, PLURAL)
    for kind in WATCHED:
        watch(kind.name, *kind.resource)


def configure(settings: kopf.OperatorSettings) -> None:
    """Have kopf list in chunks, and ask only for objects that carry our label: other people's objects cost nothing."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 10
    settings.watching.chunk_size = CHUNK
    for kind in WATCHED:
        settings.watching.label_selectors[kind.resource] = kind.selector
