"""The cluster as the gateway knows it: services and pods, and the immutable snapshot that the picker reads.

The watch (or a test) feeds `State`, the only mutable object here; a snapshot never changes. Decides nothing about a request
and does no I/O.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pagefleet_gateway.cluster.engines import OWN_ENGINE, Engine
from pagefleet_gateway.cluster.service import Service, ServiceKey
from pagefleet_gateway.cluster.steps import Steps, finish, parts

RevisionKey = tuple[str, str, str]  # namespace, service, revision


@dataclass(frozen=True)
class Pod:
    """An engine pod that has an address. `ready` is false as soon as it terminates or its Ready condition is
    not True. `silent`: the pod is not Ready only because its node stopped reporting; its containers were ready.
    """

    uid: str
    name: str
    namespace: str
    service: str
    revision: str
    address: str  # ip:port
    ready: bool = True
    engine: Engine = OWN_ENGINE
    silent: bool = False
    key_secret: tuple[str, str] | None = None  # name and key of the Secret with its engine's API key
    # The running engine container. Not compared, because Envoy does not know it and its pod is the same one after a restart.
    container: str = field(default="", compare=False)
    prefills: bool = False  # it computes prompts for the decode pods of its revision; no request is sent to it by Envoy

    @cached_property
    def cache(self) -> str:
        """Return the name of the prefix cache in the pod: a container that started again has an empty one."""
        return f"{self.uid}/{self.container}"

    @property
    def may_answer(self) -> bool:
        return self.ready or self.silent


class KnownPods:
    """The pods with an address, by what is asked of them. Only its owner changes it: for all others it shows what there is now."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self.by_uid: dict[str, Pod] = {}
        self.by_service: dict[ServiceKey, dict[str, Pod]] = {}  # and uid
        self.revisions: Counter[RevisionKey] = Counter()  # how many pods each has; none has 0
        self.caches: set[str] = set()
        for pod in pods:
            self.put(pod)

    def put(self, pod: Pod) -> bool:
        """Add a pod, or replace the one with its uid. Return whether that changes anything."""
        known = self.by_uid.get(pod.uid)
        if known == pod and known.container == pod.container:
            return False
        if known is not None:
            self._uncount(known, moved=service_of(known) != service_of(pod))
        self.by_uid[pod.uid] = pod
        self.by_service.setdefault(service_of(pod), {})[pod.uid] = pod
        self.revisions[revision_key(pod)] += 1
        self.caches.add(pod.cache)
        return True

    def remove(self, uid: str) -> Pod | None:
        """Remove a pod and return it; None where there is none."""
        pod = self.by_uid.pop(uid, None)
        if pod is not None:
            self._uncount(pod, moved=True)
        return pod

    def _uncount(self, pod: Pod, *, moved: bool) -> None:
        self.caches.discard(pod.cache)
        self.revisions[revision_key(pod)] -= 1
        if not self.revisions[revision_key(pod)]:
            del self.revisions[revision_key(pod)]
        if moved:
            of_service = self.by_service[service_of(pod)]
            del of_service[pod.uid]
            if not of_service:
                del self.by_service[service_of(pod)]


@dataclass(frozen=True)
class Snapshot:
    """One consistent view. `pods` has only pods that may get requests now, by service and revision: the ready ones.

    Where no revision with traffic has a ready pod, it has the silent ones too. After an outage the API server marks the pods
    of every node as silent, one node after another. Pods that may answer are then better than an error for every request.
    `prefill` has the ready prefill pods likewise.
    """

    services: Mapping[ServiceKey, Service] = field(default_factory=dict)
    # in the order of their claims on the name
    by_model: Mapping[str, tuple[ServiceKey, ...]] = field(default_factory=dict)
    pods: Mapping[ServiceKey, Mapping[str, tuple[Pod, ...]]] = field(default_factory=dict)
    prefill: Mapping[ServiceKey, Mapping[str, tuple[Pod, ...]]] = field(default_factory=dict)


class State:
    """The latest objects, by key. Writers call put/remove/replace; readers take `snapshot`.

    A pod enters the snapshot only after `confirm` has named it, because Envoy must know its address before the picker
    chooses it. The snapshot is rebuilt at the first read after a change, so a change is in force at the next request. Of it
    only what has changed is built again: with 10,000 pods the whole takes too long for one step of the loop.
    """

    def __init__(self) -> None:
        self.known = KnownPods()  # ready or not, confirmed or not
        self._services: dict[ServiceKey, Service] = {}
        self._by_model: dict[str, tuple[ServiceKey, ...]] = {}
        self._claims: dict[str, set[ServiceKey]] = {}  # the same services, by model name, in no order
        self._stale_models: set[str] = set()
        self._groups: dict[ServiceKey, Mapping[str, tuple[Pod, ...]]] = {}  # the snapshot's pods
        self._prefill: dict[ServiceKey, Mapping[str, tuple[Pod, ...]]] = {}  # and its prefill pods
        self._stale: set[ServiceKey] = set()  # services whose groups are to be built again
        self._request_priorities: Mapping[ServiceKey, tuple[tuple[str, int], ...]] = {}
        self._confirmed: dict[str, Pod] = {}
        self._stale_services = False  # whether one has changed, or its priorities
        self._last = Snapshot()  # as it was built last
        self._snapshot: Snapshot | None = self._last  # None: to be built again
        self.pods_changed = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None  # called when the next snapshot will differ

    @property
    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = self._build()
        return self._snapshot

    @property
    def services(self) -> Mapping[ServiceKey, Service]:
        """Return the services that there are at each moment, without the priorities of InferenceObjectives."""
        return self._services

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Return every pod with an address, ready or not, confirmed or not."""
        return tuple(self.known.by_uid.values())

    def put_service(self, service: Service) -> None:
        if self._put_service(service):
            self._invalidate()

    def remove_service(self, key: ServiceKey) -> None:
        if self._remove_service(key):
            self._invalidate()

    def replace_services(self, services: Iterable[Service]) -> None:
        listed = {service.key: service for service in services}
        gone = [key for key in self._services if key not in listed]
        changed = [*map(self._remove_service, gone), *map(self._put_service, listed.values())]
        if any(changed):
            self._invalidate()

    def set_request_priorities(self, priorities: Mapping[ServiceKey, tuple[tuple[str, int], ...]]) -> None:
        """Replace the priorities of all services' InferenceObjectives."""
        if self._request_priorities != priorities:
            self._request_priorities = priorities
            self._stale_services = True
            self._invalidate()

    def put_pod(self, pod: Pod) -> None:
        if self._put_pod(pod):
            self._invalidate_pods()

    def remove_pod(self, uid: str) -> None:
        if self._remove_pod(uid):
            self._invalidate_pods()

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        listed = {pod.uid: pod for pod in pods}
        gone = [uid for uid in self.known.by_uid if uid not in listed]
        changed = [*map(self._remove_pod, gone), *map(self._put_pod, listed.values())]
        if any(changed):
            self._invalidate_pods()

    def confirm(self, pods: Collection[Pod]) -> None:
        """Record that Envoy now knows exactly these pods."""
        finish(self.confirm_in_steps(pods))

    def confirm_in_steps(self, pods: Collection[Pod]) -> Steps:
        """Record the same: new pods may be chosen from their step on. A pod that is gone was in no snapshot any more."""
        for part in parts(pods):
            new = [pod for pod in part if self._confirmed.get(pod.uid) is not pod]
            self._confirmed.update((pod.uid, pod) for pod in new)
            self._touch(new)
            yield
        if len(self._confirmed) > len(pods):
            uids = {pod.uid for pod in pods}
            for some in parts(self._confirmed):
                self._touch([self._confirmed.pop(uid) for uid in some if uid not in uids])
                yield

    def are_confirmed(self, pods: Iterable[Pod]) -> bool:
        return all(map(self._is_confirmed, pods))

    def _is_confirmed(self, pod: Pod) -> bool:
        known = self._confirmed.get(pod.uid)
        return known is pod or (known is not None and _identity(known) == _identity(pod))

    def _touch(self, pods: Collection[Pod]) -> None:
        """Build the snapshot's part of these pods at once: all parts together are too much for the next request."""
        if pods:
            self._stale.update(map(service_of, pods))
            self._invalidate()
            self._snapshot = self._build()

    def _put_service(self, service: Service) -> bool:
        known = self._services.get(service.key)
        if known == service:
            return False
        self._services[service.key] = service
        self._stale.add(service.key)
        self._stale_services = True
        if known is None or (known.served_name, _claim(known)) != (service.served_name, _claim(service)):
            self._unclaim(known)
            self._claims.setdefault(service.served_name, set()).add(service.key)
            self._stale_models.add(service.served_name)
        return True

    def _remove_service(self, key: ServiceKey) -> bool:
        known = self._services.pop(key, None)
        if known is not None:
            self._unclaim(known)
            self._stale.add(key)
            self._stale_services = True
        return known is not None

    def _unclaim(self, service: Service | None) -> None:
        if service is not None:
            self._claims[service.served_name].discard(service.key)
            self._stale_models.add(service.served_name)

    def _put_pod(self, pod: Pod) -> bool:
        before = self.known.by_uid.get(pod.uid)
        if not self.known.put(pod):
            return False
        self._stale.update(service_of(one) for one in (before, pod) if one is not None)
        return True

    def _remove_pod(self, uid: str) -> bool:
        pod = self.known.remove(uid)
        if pod is not None:
            self._stale.add(service_of(pod))
        return pod is not None

    def _invalidate_pods(self) -> None:
        self.pods_changed.set()
        self._invalidate()

    def _invalidate(self) -> None:
        self._snapshot = None
        self.on_change()

    def _build(self) -> Snapshot:
        for model in self._stale_models:
            claims = self._claims[model]
            if claims and model:
                self._by_model[model] = tuple(sorted(claims, key=lambda key: _claim(self._services[key])))
            else:
                self._by_model.pop(model, None)
            if not claims:
                del self._claims[model]
        for key in self._stale:
            for groups, group in ((self._groups, self._group(key)), (self._prefill, self._prefill_group(key))):
                if group:
                    groups[key] = group
                else:
                    groups.pop(key, None)
        # What has not changed is shared with the last snapshot: the garbage collector reads every new table.
        services = self._last.services
        if self._stale_services:
            services = dict(self._services)
            for key, priorities in self._request_priorities.items():
                if key in services:
                    services[key] = replace(services[key], request_priorities=priorities)
        by_model = dict(self._by_model) if self._stale_models else self._last.by_model
        pods = dict(self._groups) if self._stale else self._last.pods
        prefill = dict(self._prefill) if self._stale else self._last.prefill
        self._stale_models.clear()
        self._stale.clear()
        self._stale_services = False
        self._last = Snapshot(services, by_model, pods, prefill)
        return self._last

    def _group(self, key: ServiceKey) -> Mapping[str, tuple[Pod, ...]]:
        own = (pod for pod in self.known.by_service.get(key, {}).values() if not pod.prefills)
        pods = [pod for pod in own if pod.may_answer and self._is_confirmed(pod)]
        if any(pod.ready and self._has_traffic(pod) for pod in pods):
            pods = [pod for pod in pods if pod.ready]
        return _by_revision(pods)

    def _prefill_group(self, key: ServiceKey) -> Mapping[str, tuple[Pod, ...]]:
        """Return prefill pods. Envoy need not know them: routing sidecars ask them."""
        return _by_revision(pod for pod in self.known.by_service.get(key, {}).values() if pod.prefills and pod.ready)

    def _has_traffic(self, pod: Pod) -> bool:
        service = self._services.get(service_of(pod))
        return service is not None and any(weight and revision == pod.revision for revision, weight in service.weights)


def _by_revision(pods: Iterable[Pod]) -> Mapping[str, tuple[Pod, ...]]:
    revisions: dict[str, list[Pod]] = {}
    for pod in pods:
        revisions.setdefault(pod.revision, []).append(pod)
    return {revision: tuple(group) for revision, group in revisions.items()}


def service_of(pod: Pod) -> ServiceKey:
    return (pod.namespace, pod.service)


def revision_key(pod: Pod) -> RevisionKey:
    return (pod.namespace, pod.service, pod.revision)


def _claim(service: Service) -> tuple[bool, bool, str, ServiceKey]:
    """Return the order of claims on a model name: the one that was granted, then the oldest, then those that lost it."""
    return (not service.owns_name, bool(service.name_lost), service.created, service.key)


def _identity(pod: Pod) -> Pod:
    """Return the pod without its readiness, which Envoy's endpoints do not have."""
    return pod if pod.ready else replace(pod, ready=True, silent=False)
