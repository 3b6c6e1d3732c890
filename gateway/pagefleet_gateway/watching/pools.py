"""InferencePools that name this gateway as their endpoint picker: their services, and the pods of foreign pools (any model
server with vLLM's metrics). Never chooses a pod.

A pool whose selector has the label pagefleet.io/service is an InferenceService's: the gateway knows its pods and its split
already. Any other pool is foreign. It becomes a service `~<pool>` of its own with one revision. The endpoint-picker protocol
does not name the pool of a request. The gateway finds it by path, by host name, or by the body's `model`. Else it is the
only foreign pool, if there is only one. A route may give a pool any path, and rewrites it after the pick.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pagefleet_contract.addresses import authority
from pagefleet_contract.names import SERVICE_LABEL
from pagefleet_gateway.bodies.fields import BodyError, document
from pagefleet_gateway.cluster.objects import container_of, is_ready, map_of
from pagefleet_gateway.cluster.service import Service, ServiceKey
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.picking.pick import Request
from pagefleet_gateway.watching.objectives import POOL_GROUP, Name, Objectives, Raw, name_of

GROUP, VERSION, PLURAL = POOL_GROUP, "v1", "inferencepools"
REVISION = "pool"  # the only revision of a foreign pool
MARK = "~"  # not allowed in names of objects, so such a service hides no other
SERVICE_PATH = re.compile("^/([^/]+)/([^/]+)/v1/")


@dataclass(frozen=True)
class Pool:
    """A foreign pool. It selects pods that have all of `labels`; each of `ports` is an endpoint of its own on every pod."""

    namespace: str
    name: str
    labels: tuple[tuple[str, str], ...]
    ports: tuple[int, ...]

    @property
    def key(self) -> ServiceKey:
        return (self.namespace, MARK + self.name)

    def service(self) -> Service:
        return Service(self.namespace, MARK + self.name, weights=((REVISION, 100),))

    def pods(self, raw: Raw) -> list[Pod]:
        """Return a pod's endpoints in the pool; none when it is not selected, has no address or has ended."""
        metadata, status = map_of(raw, "metadata"), map_of(raw, "status")
        labels, address = map_of(metadata, "labels"), status.get("podIP")
        if metadata.get("namespace") != self.namespace or any(labels.get(k) != v for k, v in self.labels):
            return []
        if not isinstance(address, str) or not address or status.get("phase") in ("Succeeded", "Failed"):
            return []
        uid, name = str(metadata.get("uid")), str(metadata.get("name"))
        return [
            Pod(
                f"{uid}/{self.name}/{port}",
                name,
                self.namespace,
                MARK + self.name,
                REVISION,
                authority(address, port),
                is_ready(raw),
                container=container_of(status),
            )
            for port in self.ports
        ]


def names(raw: Raw, picker: str) -> bool:
    """Whether a pool names the Service `picker` of its namespace as its picker."""
    reference = map_of(map_of(raw, "spec"), "endpointPickerRef")
    return (
        reference.get("name") == picker and reference.get("kind", "Service") == "Service" and not reference.get("group")
    )


def service_of(raw: Raw) -> ServiceKey | None:
    """Return the InferenceService that a pool is; None for a foreign pool."""
    service = map_of(map_of(map_of(raw, "spec"), "selector"), "matchLabels").get(SERVICE_LABEL)
    return (name_of(raw)[0], service) if isinstance(service, str) else None


def pool_from(raw: Raw, picker: str) -> Pool | None:
    """Return a foreign pool that names the Service `picker` of its namespace as its picker; else None. Total."""
    metadata, spec = map_of(raw, "metadata"), map_of(raw, "spec")
    if not names(raw, picker):
        return None
    labels = {k: v for k, v in map_of(map_of(spec, "selector"), "matchLabels").items() if isinstance(v, str)}
    listed = spec.get("targetPorts")
    numbers = (
        [entry.get("number") for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    )
    ports = tuple(number for number in numbers if isinstance(number, int) and 0 < number < 65536)
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if (
        not labels
        or not ports
        or SERVICE_LABEL in labels
        or not isinstance(namespace, str)
        or not isinstance(name, str)
    ):
        return None
    return Pool(namespace, name, tuple(sorted(labels.items())), ports)


def hostnames_of(raw: Raw) -> tuple[str, ...]:
    """Return the host names of an InferenceService's HTTPRoute."""
    traffic = map_of(map_of(raw, "spec"), "traffic")
    names = map_of(traffic, "gatewayAPI").get("hostnames")
    if traffic.get("provider") != "GatewayAPI" or not isinstance(names, list):
        return ()
    return tuple(name.lower() for name in names if isinstance(name, str))


class Pools:
    """The foreign pools, and the host names of InferenceServices. The watch feeds it InferencePools, every pod,
    InferenceServices and InferenceObjectives. It keeps `state` as if the foreign pools were services."""

    def __init__(self, state: State, picker: str) -> None:
        self._state, self._picker = state, picker
        self._pools: dict[Name, Pool] = {}
        self._own: dict[Name, ServiceKey] = {}  # pools that are InferenceServices
        self._objectives = Objectives()
        self._raw: dict[str, Raw] = {}  # pods of no InferenceService, by uid
        self._hosts: dict[ServiceKey, tuple[str, ...]] = {}

    @property
    def services(self) -> list[Service]:
        return [pool.service() for pool in self._pools.values()]

    @property
    def pods(self) -> list[Pod]:
        return [pod for raw in self._raw.values() for pod in self._endpoints(raw)]

    def replace(self, items: list[Raw]) -> None:
        listed = [pool for raw in items if (pool := pool_from(raw, self._picker)) is not None]
        pools = {(pool.namespace, pool.name): pool for pool in listed}
        for name in set(self._pools) - set(pools):
            self._remove_pool(name)
        for pool in pools.values():
            self._upsert_pool(pool)
        ours = [raw for raw in items if names(raw, self._picker)]
        self._own = {name_of(raw): key for raw in ours if (key := service_of(raw)) is not None}
        self._prioritize()

    def put(self, raw: Raw) -> None:
        pool, key = pool_from(raw, self._picker), service_of(raw)
        if pool is None:
            self._remove_pool(name_of(raw))
        else:
            self._upsert_pool(pool)
        if key is not None and names(raw, self._picker):
            self._own[name_of(raw)] = key
        else:
            self._own.pop(name_of(raw), None)
        self._prioritize()

    def remove(self, raw: Raw) -> None:
        self._remove_pool(name_of(raw))
        self._own.pop(name_of(raw), None)
        self._prioritize()

    def replace_objectives(self, items: Iterable[Raw]) -> None:
        self._objectives.replace(items)
        self._prioritize()

    def put_objective(self, raw: Raw) -> None:
        self._objectives.put(raw)
        self._prioritize()

    def remove_objective(self, raw: Raw) -> None:
        self._objectives.remove(raw)
        self._prioritize()

    def _prioritize(self) -> None:
        """Have the state know the priorities of the pools that there are now."""
        foreign = {name: pool.key for name, pool in self._pools.items()}
        self._state.set_request_priorities(self._objectives.by_service(self._own | foreign))

    def replace_pods(self, items: Iterable[Raw]) -> None:
        """Replace the pods of foreign pools. The caller then replaces the state's pods by a list that has `self.pods`."""
        self._raw = {_uid(raw): raw for raw in items if SERVICE_LABEL not in map_of(map_of(raw, "metadata"), "labels")}

    def put_pod(self, raw: Raw) -> None:
        if SERVICE_LABEL in map_of(map_of(raw, "metadata"), "labels"):
            self.remove_pod(raw)
            return
        old, endpoints = self._raw.get(_uid(raw)), self._endpoints(raw)
        present = {pod.uid for pod in endpoints}
        for pod in self._endpoints(old) if old is not None else ():
            if pod.uid not in present:
                self._state.remove_pod(pod.uid)
        self._raw[_uid(raw)] = raw
        for pod in endpoints:
            self._state.put_pod(pod)

    def remove_pod(self, raw: Raw) -> None:
        old = self._raw.pop(_uid(raw), None)
        for pod in self._endpoints(old) if old is not None else ():
            self._state.remove_pod(pod.uid)

    def replace_hosts(self, hosts: Mapping[ServiceKey, tuple[str, ...]]) -> None:
        self._hosts = dict(hosts)

    def put_hosts(self, key: ServiceKey, names: tuple[str, ...]) -> None:
        self._hosts[key] = names

    def remove_hosts(self, key: ServiceKey) -> None:
        self._hosts.pop(key, None)

    def with_service_path(self, request: Request) -> Request:
        """Return the request with a path that names its service, where the host name or the lack of another choice gives it.

        What its path begins with is the route's: the endpoint begins at the last `/v1/`, or is the whole path.
        """
        path, mark, query = request.path.partition("?")
        named = SERVICE_PATH.match(path)
        if named and (named[1], named[2]) in self._state.snapshot.services:
            return request
        key = self._by_host(request.headers.get(":authority", "")) or self._only_pool(request)
        if key is None and (named or not (self._pools or self._own)):
            return request
        at = path.rfind("/v1/")
        endpoint = path if at < 0 else path[at + len("/v1") :]
        service = "" if key is None else f"/{key[0]}/{key[1]}"
        return replace(request, path=f"{service}/v1{endpoint}{mark}{query}")

    def _by_host(self, authority: str) -> ServiceKey | None:
        """Return the most specific match, in the order of HTTPRoutes: a whole name first, then the longest `*.` suffix."""
        host = authority.rsplit(":", 1)[0].lower() if not authority.endswith("]") else authority
        matches = [(name, key) for key, names in self._hosts.items() for name in names if _matches(name, host)]
        best = max(matches, key=lambda match: (not match[0].startswith("*"), len(match[0])), default=None)
        return best[1] if best else None

    def _only_pool(self, request: Request) -> ServiceKey | None:
        """Return the foreign pool when it is the only one and no InferenceService serves the body's model."""
        if len(self._pools) != 1 or _model(request.body) in self._state.snapshot.by_model:
            return None
        return next(iter(self._pools.values())).key

    def _endpoints(self, raw: Raw) -> list[Pod]:
        return [pod for pool in self._pools.values() for pod in pool.pods(raw)]

    def _upsert_pool(self, pool: Pool) -> None:
        key = (pool.namespace, pool.name)
        if self._pools.get(key) == pool:
            return
        self._remove_pool(key)
        self._pools[key] = pool
        self._state.put_service(pool.service())
        for raw in self._raw.values():
            for pod in pool.pods(raw):
                self._state.put_pod(pod)

    def _remove_pool(self, key: Name) -> None:
        pool = self._pools.pop(key, None)
        if pool is not None:
            self._state.remove_service(pool.key)
            for raw in self._raw.values():
                for pod in pool.pods(raw):
                    self._state.remove_pod(pod.uid)


def _matches(name: str, host: str) -> bool:
    return host.endswith(name[1:]) and host != name[2:] if name.startswith("*.") else host == name


def _model(body: bytes) -> str:
    try:
        fields = document(body) if body else None
    except BodyError:
        return ""
    model = None if fields is None else fields.get("model")
    return model if isinstance(model, str) else ""


def _uid(raw: Raw) -> str:
    return str(map_of(raw, "metadata").get("uid"))
