"""Keeps the state that of the cluster: lists and watches InferenceServices and engine pods. Never writes to
the API.

A watch that fails begins again where it stopped, after a growing pause; one that is too old (410) lists anew;
one that is silently dead ends after its guard. While the API server is away the last state stays in force.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
from kubernetes.aio import client, config

from .metrics import Metrics
from .objects import GROUP, PLURAL, POD_SELECTOR, VERSION, pod_from, service_from
from .state import State

log = logging.getLogger(__name__)

WATCH_SECONDS = 30  # the server ends a watch after this; the next goes on from there
GUARD_SECONDS = 35.0  # no byte for this long: the connection is dead
PAGE = 500
FIRST_PAUSE, LAST_PAUSE = 0.2, 5.0  # seconds

Raw = Mapping[str, object]


class WatchError(RuntimeError):
    """The API server answered with an error, or not with JSON."""


class GoneError(WatchError):
    """The resourceVersion is too old: list anew."""


@dataclass(frozen=True)
class Feed:
    """One kind of object: how to ask for it and where it goes."""

    kind: str
    ask: Callable[..., Awaitable[aiohttp.ClientResponse]]
    replace: Callable[[list[Raw]], None]
    put: Callable[[Raw], None]
    remove: Callable[[Raw], None]


class Watch:
    """Follows one feed for ever. `synced` once a list has been applied."""

    def __init__(self, feed: Feed, metrics: Metrics) -> None:
        self.synced = False
        self._feed = feed
        self._metrics = metrics
        self._version = ""
        self._pause = FIRST_PAUSE  # grows with each failure, until the server says something again

    async def follow(self) -> None:
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                self._pause = FIRST_PAUSE
                continue
            except GoneError as error:
                log.info("%s: listing anew: %s", self._feed.kind, error)
                self._version = ""
            except (WatchError, aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                self._metrics.watch_restarts.labels(self._feed.kind).inc()
                log.warning("%s: watch interrupted: %s", self._feed.kind, error or type(error).__name__)
            await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads reconnects
            self._pause = min(self._pause * 2, LAST_PAUSE)

    async def _list(self) -> None:
        items: list[Raw] = []
        token: str | None = None
        while True:
            async with asyncio.timeout(GUARD_SECONDS):
                async with await self._feed.ask(limit=PAGE, _continue=token) as response:
                    document = await _checked(response)
            page, metadata = document.get("items"), document.get("metadata")
            if not isinstance(page, list) or not isinstance(metadata, dict) or "resourceVersion" not in metadata:
                raise WatchError(f"not a list: {str(document)[:200]}")
            items.extend(page)
            token = metadata.get("continue")
            if not token:
                break
        self._feed.replace(items)
        self._version = str(metadata["resourceVersion"])
        self.synced = True
        self._metrics.watch_synced.labels(self._feed.kind).set(1)
        log.info("%s: %d listed at resourceVersion %s", self._feed.kind, len(items), self._version)

    async def _watch(self) -> None:
        async with asyncio.timeout(GUARD_SECONDS):
            response = await self._feed.ask(
                watch=True,
                resource_version=self._version,
                allow_watch_bookmarks=True,
                timeout_seconds=WATCH_SECONDS,
            )
        async with response:
            if response.status != 200:
                await _checked(response)
            while True:
                async with asyncio.timeout(GUARD_SECONDS):
                    line = await response.content.readline()
                if not line:
                    return
                self._apply(json.loads(line))
                self._pause = FIRST_PAUSE

    def _apply(self, event: object) -> None:
        raw = event.get("object") if isinstance(event, Mapping) else None
        if not isinstance(event, Mapping) or not isinstance(raw, Mapping):
            raise WatchError(f"an event without an object: {str(event)[:200]}")
        match event.get("type"):
            case "ADDED" | "MODIFIED":
                self._feed.put(raw)
            case "DELETED":
                self._feed.remove(raw)
            case "BOOKMARK":
                pass
            case "ERROR":
                code = raw.get("code")
                _raise(code if isinstance(code, int) else 0, str(raw.get("message")))
            case kind:
                raise WatchError(f"an event of unknown type {kind!r}")
        metadata = raw.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
        if isinstance(version, str) and version:
            self._version = version


async def _checked(response: aiohttp.ClientResponse) -> dict[str, object]:
    text = await response.text()
    if response.status != 200:
        _raise(response.status, text[:300])
    document = json.loads(text)
    if not isinstance(document, dict):
        raise WatchError(f"not an object: {text[:200]}")
    return document


def _raise(code: int, message: str) -> None:
    if code == 410:
        raise GoneError(message)
    raise WatchError(f"{code}: {message}")


class ClusterWatch:
    """Both watches. Use as `async with`; `reason` says what readiness still waits for."""

    def __init__(self, state: State, metrics: Metrics, kubeconfig: Path | None) -> None:
        self._state = state
        self._metrics = metrics
        self._kubeconfig = kubeconfig
        self._stack = AsyncExitStack()
        self._watches: list[Watch] = []

    async def __aenter__(self) -> ClusterWatch:
        settings = client.Configuration()
        try:
            if self._kubeconfig is None:
                config.load_incluster_config(client_configuration=settings)
            else:
                await config.load_kube_config(config_file=str(self._kubeconfig), client_configuration=settings)
        except config.ConfigException as error:
            raise WatchError(f"no way to the API server (PAGEFLEET_KUBECONFIG, KUBECONFIG): {error}") from error
        api = await self._stack.enter_async_context(client.ApiClient(settings))
        self._watches = [Watch(feed, self._metrics) for feed in _feeds(api, self._state)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def reason(self) -> str:
        return "" if self._watches and all(watch.synced for watch in self._watches) else "the watch has not listed yet"

    async def follow(self) -> None:
        async with asyncio.TaskGroup() as group:
            for watch in self._watches:
                group.create_task(watch.follow())


def _feeds(api: client.ApiClient, state: State) -> list[Feed]:
    custom = client.CustomObjectsApi(api).list_cluster_custom_object_without_preload_content
    pods = client.CoreV1Api(api).list_pod_for_all_namespaces_without_preload_content

    def put_pod(raw: Raw) -> None:
        pod = pod_from(raw)
        if pod is None:
            remove_pod(raw)
        else:
            state.put_pod(pod)

    def remove_pod(raw: Raw) -> None:
        metadata = raw.get("metadata")
        if isinstance(metadata, Mapping):
            state.remove_pod(str(metadata.get("uid")))

    return [
        Feed(
            kind="InferenceService",
            ask=partial(custom, GROUP, VERSION, PLURAL),
            replace=lambda items: state.replace_services(service_from(raw) for raw in items),
            put=lambda raw: state.put_service(service_from(raw)),
            remove=lambda raw: state.remove_service(service_from(raw).key),
        ),
        Feed(
            kind="Pod",
            ask=partial(pods, label_selector=POD_SELECTOR),
            replace=lambda items: state.replace_pods(pod for raw in items if (pod := pod_from(raw)) is not None),
            put=put_pod,
            remove=remove_pod,
        ),
    ]
