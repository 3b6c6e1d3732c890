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

from pagefleet_contract.names import ENGINE_POD_SELECTOR, GROUP, KIND, PLURAL, VERSION
from pagefleet_gateway.cluster.objects import pod_from, service_from
from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.watching import pools as pool_kind
from pagefleet_gateway.watching.pools import Pools, hostnames_of

log = logging.getLogger(__name__)

WATCH_SECONDS = 30  # the server ends a watch after this; the next goes on from there
GUARD_SECONDS = 35.0  # no byte for this long: the connection is dead
PAGE = 500
# Seconds. What became ready while the API server was away is not served before it is heard of: no long pauses.
FIRST_PAUSE, GONE_PAUSE, LAST_PAUSE = 0.2, 0.5, 2.0

Raw = Mapping[str, object]
Ask = Callable[..., Awaitable[aiohttp.ClientResponse]]


class WatchError(RuntimeError):
    """The API server answered with an error, or not with JSON."""


class GoneError(WatchError):
    """The resourceVersion is too old: list anew."""


@dataclass(frozen=True)
class Feed:
    """One kind of object: how to ask for it and where it goes."""

    kind: str
    ask: Ask
    replace: Callable[[list[Raw]], None]
    put: Callable[[Raw], None]
    remove: Callable[[Raw], None]
    needed: bool = True  # whether readiness waits for its first list


class Watch:
    """Follows one feed for ever. `synced` once a list has been applied."""

    def __init__(self, feed: Feed, metrics: Metrics) -> None:
        self.synced = not feed.needed
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
                self._pause = min(self._pause, GONE_PAUSE)  # it answers
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
    """The watches. Use as `async with`; `reason` says what readiness still waits for. `namespace` "" is all; with
    `pools` InferencePools are followed too, and every pod of the namespace."""

    def __init__(
        self,
        state: State,
        metrics: Metrics,
        kubeconfig: Path | None,
        namespace: str = "",
        pools: Pools | None = None,
    ) -> None:
        self._state = state
        self._namespace, self._pools = namespace, pools
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
        feeds = _feeds(api, self._state, self._namespace)
        if self._pools is not None:
            feeds = _with_pools(api, self._state, self._namespace, self._pools, feeds)
        self._watches = [Watch(feed, self._metrics) for feed in feeds]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def reason(self) -> str:
        return "" if self._watches and all(watch.synced for watch in self._watches) else "the watch has not listed yet"

    async def follow(self) -> None:
        async with asyncio.TaskGroup() as group:
            for watch in self._watches:
                group.create_task(watch.follow())


def _custom(api: client.ApiClient, namespace: str, group: str, version: str, plural: str) -> Ask:
    objects = client.CustomObjectsApi(api)
    if namespace:
        one = objects.list_namespaced_custom_object_without_preload_content
        return partial(one, group, version, namespace, plural)
    return partial(objects.list_cluster_custom_object_without_preload_content, group, version, plural)


def _pods(api: client.ApiClient, namespace: str) -> Ask:
    core = client.CoreV1Api(api)
    if namespace:
        return partial(core.list_namespaced_pod_without_preload_content, namespace)
    return partial(core.list_pod_for_all_namespaces_without_preload_content)


def _feeds(api: client.ApiClient, state: State, namespace: str) -> list[Feed]:

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
            kind=KIND,
            ask=_custom(api, namespace, GROUP, VERSION, PLURAL),
            replace=lambda items: state.replace_services(service_from(raw) for raw in items),
            put=lambda raw: state.put_service(service_from(raw)),
            remove=lambda raw: state.remove_service(service_from(raw).key),
        ),
        Feed(
            kind="Pod",
            ask=partial(_pods(api, namespace), label_selector=ENGINE_POD_SELECTOR),
            replace=lambda items: state.replace_pods(pod for raw in items if (pod := pod_from(raw)) is not None),
            put=put_pod,
            remove=remove_pod,
        ),
    ]


def _with_pools(api: client.ApiClient, state: State, namespace: str, pools: Pools, feeds: list[Feed]) -> list[Feed]:
    """The same feeds with what InferencePools add: host names, all pods, and the pools themselves."""
    services, pods = feeds

    def replace_services(items: list[Raw]) -> None:
        for raw in items:
            pools.put_hosts(service_from(raw).key, hostnames_of(raw))
        state.replace_services([*(service_from(raw) for raw in items), *pools.services])

    def put_service(raw: Raw) -> None:
        pools.put_hosts(service_from(raw).key, hostnames_of(raw))
        services.put(raw)

    def remove_service(raw: Raw) -> None:
        pools.remove_hosts(service_from(raw).key)
        services.remove(raw)

    def replace_pods(items: list[Raw]) -> None:
        pools.replace_pods(items)
        own = [pod for raw in items if (pod := pod_from(raw)) is not None and pod.service]
        state.replace_pods([*own, *pools.pods])

    def put_pod(raw: Raw) -> None:
        pools.put_pod(raw)
        pod = pod_from(raw)
        if pod is not None and pod.service:
            state.put_pod(pod)
        else:
            pods.remove(raw)

    def remove_pod(raw: Raw) -> None:
        pools.remove_pod(raw)
        pods.remove(raw)

    asked = _custom(api, namespace, pool_kind.GROUP, pool_kind.VERSION, pool_kind.PLURAL)
    return [
        Feed(services.kind, services.ask, replace_services, put_service, remove_service),
        Feed(pods.kind, _pods(api, namespace), replace_pods, put_pod, remove_pod),
        # A cluster may not serve it (yet): InferenceServices are picked for all the same.
        Feed("InferencePool", asked, lambda items: pools.replace(items), pools.put, pools.remove, needed=False),
    ]
