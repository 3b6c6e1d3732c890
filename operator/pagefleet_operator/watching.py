"""kopf, which only watches: it tells what it saw, and writes to no object.

A watcher of kopf's that meets an ERROR event other than 410 ends, and nobody starts it again: the operator would go
blind for that kind and still look alive. So watchers are looked after here: when one has ended, kopf is started anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import kopf

from pagefleet_operator.domain.build.names import GROUP, KIND, MANAGED, MANAGED_LABEL, PLURAL, VERSION

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
        """Until `stop`, or until kopf ends by itself (a signal)."""
        while True:
            ended = asyncio.Event()
            kopf_itself = asyncio.create_task(self._kopf(ended))
            lookout = asyncio.create_task(_watcher_ended())
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait((kopf_itself, lookout, stopping), return_when=asyncio.FIRST_COMPLETED)
                failed = lookout.done() or (kopf_itself.done() and kopf_itself.exception() is not None)
                if stop.is_set():
                    ended.set()
                    await asyncio.wait((kopf_itself,), timeout=END_SECONDS)
            finally:
                for task in (kopf_itself, lookout, stopping):
                    task.cancel()
                await asyncio.wait((kopf_itself, lookout, stopping), timeout=END_SECONDS)
            if stop.is_set() or not failed:
                return
            log.error("a watch has ended for good: watching is begun anew")
            self.again()

    async def _kopf(self, stop: asyncio.Event) -> None:
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        _handlers(registry, self.seen)
        settings.scanning.disabled = True
        await kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            clusterwide=not self.namespaces,
            namespaces=tuple(self.namespaces),
            ready_flag=self.ready,
            stop_flag=stop,
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
