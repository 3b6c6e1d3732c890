"""Keeps the state equal to the cluster's: reflects InferenceServices, engine pods, InferencePools and InferenceObjectives. Never writes to the API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
from kubernetes.aio import client, config

from pagefleet_contract.addresses import authority
from pagefleet_contract.names import (
    GATEWAY,
    GATEWAY_INTERNAL_PORT,
    GROUP,
    KIND,
    NAME_LABEL,
    PLURAL,
    REVISION_POD_SELECTOR,
    VERSION,
)
from pagefleet_contract.reflector import Feed, Raw, Reflector, Request
from pagefleet_gateway.cluster.objects import is_ready, pod_from, service_from
from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.sharing.members import Members
from pagefleet_gateway.watching import objectives
from pagefleet_gateway.watching import pools as pool_kind
from pagefleet_gateway.watching.pools import Pools, hostnames_of


class WatchError(RuntimeError):
    """The gateway has no configuration with which it can reach the API server."""


class ClusterWatch:
    """The watches of all kinds. Use as `async with`. `namespace` "" means all. With `pools` it watches InferencePools and
    InferenceObjectives too, and every pod of the namespace.
    """

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
        self._members: tuple[str, Members] | None = None
        self.api: client.ApiClient | None = None  # set while entered
        self._stack = AsyncExitStack()
        self._reflectors: dict[str, Reflector] = {}  # by kind

    def find_members(self, namespace: str, members: Members) -> None:
        """Follow the gateway pods of this namespace too. Call it before `async with`. Without a namespace there are none."""
        self._members = (namespace, members) if namespace else None

    async def __aenter__(self) -> ClusterWatch:
        settings = client.Configuration()
        try:
            if self._kubeconfig is None:
                config.load_incluster_config(client_configuration=settings)
            else:
                await config.load_kube_config(config_file=str(self._kubeconfig), client_configuration=settings)
        except config.ConfigException as error:
            raise WatchError(
                f"cannot reach the API server: set PAGEFLEET_KUBECONFIG or KUBECONFIG, or run in a pod with a service account: {error}"
            ) from error
        api = self.api = await self._stack.enter_async_context(client.ApiClient(settings))
        feeds = _feeds(api, self._state, self._namespace)
        if self._pools is not None:
            feeds = _with_pools(api, self._state, self._namespace, self._pools, feeds)
        if self._members is not None:
            feeds = [*feeds, gateways_feed(api, *self._members)]
        self._reflectors = {feed.kind: Reflector(self._counted(feed), aiohttp.ClientError) for feed in feeds}
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def unsynced_reason(self) -> str:
        """Return why the state is not the cluster's yet, "" when it is."""
        missing = [kind for kind, reflector in self._reflectors.items() if not reflector.synced]
        if self._reflectors and not missing:
            return ""
        return f"the API server has not sent the first list of {', '.join(missing) or 'any kind'} yet"

    async def follow(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors.values():
                group.create_task(reflector.run())

    def _counted(self, feed: Feed) -> Feed:
        """Return the feed with the gateway's metrics. A kind has a series after its first list or restart."""
        return replace(
            feed,
            on_list=lambda: self._metrics.watch_synced.labels(feed.kind).set(1),
            on_restart=lambda: self._metrics.watch_restarts.labels(feed.kind).inc(),
        )


def _custom(api: client.ApiClient, namespace: str, group: str, version: str, plural: str) -> Request:
    objects = client.CustomObjectsApi(api)
    if namespace:
        namespaced = objects.list_namespaced_custom_object_without_preload_content
        return partial(namespaced, group, version, namespace, plural)
    return partial(objects.list_cluster_custom_object_without_preload_content, group, version, plural)


def _pods(api: client.ApiClient, namespace: str) -> Request:
    core = client.CoreV1Api(api)
    if namespace:
        return partial(core.list_namespaced_pod_without_preload_content, namespace)
    return partial(core.list_pod_for_all_namespaces_without_preload_content)


def _feeds(api: client.ApiClient, state: State, namespace: str) -> list[Feed]:
    """Return the feeds of InferenceServices and of their pods."""

    def upsert_pod(raw: Raw) -> None:
        pod = pod_from(raw)
        if pod is None or not pod.service:
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
            request=_custom(api, namespace, GROUP, VERSION, PLURAL),
            replace=lambda items: state.replace_services(service_from(raw) for raw in items),
            upsert=lambda raw: state.put_service(service_from(raw)),
            remove=lambda raw: state.remove_service(service_from(raw).key),
        ),
        Feed(
            kind="Pod",
            request=partial(_pods(api, namespace), label_selector=REVISION_POD_SELECTOR),
            replace=lambda items: state.replace_pods(
                pod for raw in items if (pod := pod_from(raw)) is not None and pod.service
            ),
            upsert=upsert_pod,
            remove=remove_pod,
        ),
    ]


def gateways_feed(api: client.ApiClient, namespace: str, members: Members) -> Feed:
    """Return the feed of the gateway pods, with which loads and quotas are shared."""

    def name(raw: Raw) -> str:
        metadata = raw.get("metadata")
        return str(metadata.get("name")) if isinstance(metadata, Mapping) else ""

    def address(raw: Raw) -> str:
        status = raw.get("status")
        host = str(status.get("podIP") or "") if isinstance(status, Mapping) and is_ready(raw) else ""
        return authority(host, GATEWAY_INTERNAL_PORT) if host else ""

    def upsert(raw: Raw) -> None:
        if address(raw):
            members.put(name(raw), address(raw))
        else:
            members.remove(name(raw))

    return Feed(
        kind="gateway Pod",
        request=partial(_pods(api, namespace), label_selector=f"{NAME_LABEL}={GATEWAY}"),
        replace=lambda items: members.replace({name(raw): address(raw) for raw in items if address(raw)}),
        upsert=upsert,
        remove=lambda raw: members.remove(name(raw)),
    )


def _with_pools(api: client.ApiClient, state: State, namespace: str, pools: Pools, feeds: list[Feed]) -> list[Feed]:
    """Return the same feeds with the additions for InferencePools: host names, all pods, the pools
    themselves and their InferenceObjectives."""
    services, pods = feeds

    def replace_services(items: list[Raw]) -> None:
        pools.replace_hosts({service_from(raw).key: hostnames_of(raw) for raw in items})
        state.replace_services([*(service_from(raw) for raw in items), *pools.services])

    def upsert_service(raw: Raw) -> None:
        pools.put_hosts(service_from(raw).key, hostnames_of(raw))
        services.upsert(raw)

    def remove_service(raw: Raw) -> None:
        pools.remove_hosts(service_from(raw).key)
        services.remove(raw)

    def replace_pods(items: list[Raw]) -> None:
        pools.replace_pods(items)
        own = [pod for raw in items if (pod := pod_from(raw)) is not None and pod.service]
        state.replace_pods([*own, *pools.pods])

    def upsert_pod(raw: Raw) -> None:
        pools.put_pod(raw)
        pod = pod_from(raw)
        if pod is not None and pod.service:
            state.put_pod(pod)
        else:
            pods.remove(raw)

    def remove_pod(raw: Raw) -> None:
        pools.remove_pod(raw)
        pods.remove(raw)

    pool_request = _custom(api, namespace, pool_kind.GROUP, pool_kind.VERSION, pool_kind.PLURAL)
    return [
        Feed(services.kind, services.request, replace_services, upsert_service, remove_service),
        Feed(pods.kind, _pods(api, namespace), replace_pods, upsert_pod, remove_pod),
        # Not required: a cluster without that kind still has InferenceServices.
        Feed(
            "InferencePool", pool_request, lambda items: pools.replace(items), pools.put, pools.remove, required=False
        ),
        # Nor is this one, an experimental kind of llm-d's. A Role of an older version does not name it.
        Feed(
            objectives.KIND,
            _custom(api, namespace, objectives.GROUP, objectives.VERSION, objectives.PLURAL),
            lambda items: pools.replace_objectives(items),
            pools.put_objective,
            pools.remove_objective,
            required=False,
            may_be_forbidden=True,
            on_absent=lambda: pools.replace_objectives(()),
        ),
    ]
