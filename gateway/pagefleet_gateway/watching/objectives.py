"""InferenceObjectives (Gateway API Inference Extension, v1alpha2): the priority of requests that name one. Pure.

An objective belongs to one InferencePool of its namespace. It counts only for requests to that pool: one of another pool, or of a
pool that names another picker, is as if it were not there, and such requests have priority 0.
Source: llm-d's schema of the kind, which was the extension's own until v1.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pagefleet_gateway.cluster.objects import map_of
from pagefleet_gateway.cluster.service import ServiceKey

GROUP, VERSION, PLURAL, KIND = "inference.networking.x-k8s.io", "v1alpha2", "inferenceobjectives", "InferenceObjective"
POOL_GROUP, POOL_KIND = "inference.networking.k8s.io", "InferencePool"
MOST = 2**31 - 1  # of an int32 whose negative is one too

Raw = Mapping[str, object]
Name = tuple[str, str]  # namespace, name


def name_of(raw: Raw) -> Name:
    """Return an object's namespace and name."""
    metadata = map_of(raw, "metadata")
    return (str(metadata.get("namespace")), str(metadata.get("name")))


@dataclass(frozen=True)
class Objective:
    """The priority of requests to `pool`: the higher, the more important, and below 0 they give way under load."""

    namespace: str
    name: str
    pool: str
    priority: int


def objective_from(raw: Raw) -> Objective | None:
    """Return an objective; None where it refers to no InferencePool. Total: a field of a wrong type counts as absent, and a
    priority that is absent is 0."""
    metadata, spec = map_of(raw, "metadata"), map_of(raw, "spec")
    reference, priority = map_of(spec, "poolRef"), spec.get("priority")
    if reference.get("group", POOL_GROUP) != POOL_GROUP or reference.get("kind", POOL_KIND) != POOL_KIND:
        return None
    names = (metadata.get("namespace"), metadata.get("name"), reference.get("name"))
    namespace, name, pool = (value if isinstance(value, str) else "" for value in names)
    if not (namespace and name and pool):
        return None
    return Objective(namespace, name, pool, max(-MOST, min(MOST, priority)) if type(priority) is int else 0)


class Objectives:
    """The objectives of all pools, as the watch feeds them."""

    def __init__(self) -> None:
        self._objectives: dict[Name, Objective] = {}

    def replace(self, items: Iterable[Raw]) -> None:
        read = (objective_from(raw) for raw in items)
        self._objectives = {(one.namespace, one.name): one for one in read if one is not None}

    def put(self, raw: Raw) -> None:
        objective = objective_from(raw)
        if objective is None:
            self.remove(raw)
        else:
            self._objectives[objective.namespace, objective.name] = objective

    def remove(self, raw: Raw) -> None:
        self._objectives.pop(name_of(raw), None)

    def by_service(self, pools: Mapping[Name, ServiceKey]) -> dict[ServiceKey, tuple[tuple[str, int], ...]]:
        """Return the priorities by objective's name of each service; `pools` are the pools that name this picker."""
        found: dict[ServiceKey, list[tuple[str, int]]] = {}
        for objective in self._objectives.values():
            key = pools.get((objective.namespace, objective.pool))
            if key is not None:
                found.setdefault(key, []).append((objective.name, objective.priority))
        return {key: tuple(sorted(priorities)) for key, priorities in found.items()}
