"""kopf, which only watches: it tells what it saw, and writes to no object.

A watcher of kopf's that meets an ERROR event other than 410 ends, and nobody starts it again: the operator would go
blind for that kind and still look alive. So watchers are looked after here: when one has ended, kopf is started anew.

kopf lives in a thread with an event loop of its own: when it ends it cancels every task of its loop, whoever made it,
and it takes the process' signals over. What it saw is told in the loop of `run`, and nowhere else.
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

from pagefleet_operator.domain.base.names import GROUP, KIND, MANAGED, MANAGED_LABEL, PLURAL, VERSION

OURS = {MANAGED_LABEL: MANAGED}
WATCH_SECONDS = 60
LOOK_SECONDS = 0.5
END_SECONDS = 5.0
Seen = Callable[[str, str | None, dict[str, Any]], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watching:
    """`seen` takes kind, event type (None: listed) and object. `ready` is set while kopf watches; `again` hears of each
    new start. Without `namespaces` the whole cluster is watched."""

    seen: Seen
    namespaces: Collection[str]
    ready: asyncio.Event
    again: Callable[[], None]

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while True:
            watcher = _Watcher(asyncio.get_running_loop(), self.seen, self.namespaces, self.ready)
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
            log.error("a watch has ended for good: watching is begun anew")
            self.again()


@dataclass(eq=False)
class _Watcher:
    """One life of kopf's. After `end` it tells nothing more, however long its thread takes to come to its end."""

    loop: asyncio.AbstractEventLoop
    seen: Seen
    namespaces: Collection[str]
    ready: asyncio.Event
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _over: bool = False
    _stop: Callable[[], None] = lambda: None

    def start(self) -> None:
        threading.Thread(target=self._thread, name="kopf", daemon=True).start()

    def end(self) -> None:
        self._over = True
        self._stop()

    def _thread(self) -> None:
        """Not asyncio.run: that waits for every task's end, and kopf's watchers outlive a cancellation that meets them
        while they begin a request."""
        own = asyncio.new_event_loop()
        try:
            own.run_until_complete(self._watch())
        except Exception as error:
            log.error("kopf has ended: %s", error or type(error).__name__)
        finally:
            self._over = True
            self._tell(self.ended.set)
            own.set_exception_handler(lambda *_: None)  # what is left is given up
            if left := asyncio.all_tasks(own):
                for task in left:
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):  # ending, kopf cancels whatever its loop has
                    own.run_until_complete(asyncio.wait(left, timeout=END_SECONDS))
            own.close()

    async def _watch(self) -> None:
        own, stop, ready = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def end() -> None:
            with contextlib.suppress(RuntimeError):  # its loop is closed already
                own.call_soon_threadsafe(stop.set)

        self._stop = end
        if self._over:
            return
        tasks = [
            asyncio.create_task(work)
            for work in (self._kopf(ready), _watcher_ended(), stop.wait(), self._announce(ready))
        ]
        await asyncio.wait(tasks[:3], return_when=asyncio.FIRST_COMPLETED)

    async def _announce(self, ready: asyncio.Event) -> None:
        await ready.wait()
        self._tell(self.ready.set)

    def _tell(self, what: Callable[..., None], *words: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the operator's loop is closed already
            self.loop.call_soon_threadsafe(what, *words)

    def _saw(self, kind: str, event: str | None, document: dict[str, Any]) -> None:
        if not self._over:
            self.seen(kind, event, document)

    async def _kopf(self, ready: asyncio.Event) -> None:
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        _handlers(registry, lambda *words: self._tell(self._saw, *words))
        settings.scanning.disabled = True
        await kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            clusterwide=not self.namespaces,
            namespaces=tuple(self.namespaces),
            ready_flag=ready,
        )


async def _watcher_ended() -> None:
    """Returns when one of kopf's watchers that once ran has ended. kopf names its tasks "watcher for KIND@NAMESPACE"."""
    known: set[asyncio.Task[Any]] = set()
    while not any(task.done() for task in known):
        known |= {task for task in asyncio.all_tasks() if task.get_name().startswith("watcher for ")}
        await asyncio.sleep(LOOK_SECONDS)


def _handlers(registry: kopf.OperatorRegistry, seen: Seen) -> None:
    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> Any:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.watching.server_timeout = WATCH_SECONDS
        settings.watching.client_timeout = WATCH_SECONDS + 10
        settings.networking.request_timeout = 30

    def watch(kind: str, *resource: str, **filters: Any) -> None:
        # A coroutine: what is no coroutine kopf runs in a thread, and what hears of events belongs to the loop.
        @kopf.on.event(*resource, id=kind, registry=registry, **filters)
        async def event(event: Any, **_: Any) -> None:
            seen(kind, event["type"], dict(event["object"]))

    watch(KIND, GROUP, VERSION, PLURAL)
    watch("Deployment", "apps", "v1", "deployments", labels=OURS)
    watch("Service", "", "v1", "services", labels=OURS)
    watch("PodDisruptionBudget", "policy", "poddisruptionbudgets", labels=OURS)
    watch("Pod", "", "v1", "pods", labels=OURS)
