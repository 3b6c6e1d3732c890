"""What the class of a request (`spec.traffic.priorities`) means to the engines: the priority that it has there, and whether the class
is saturated, so that the cap of new tokens applies (`spec.traffic.peak`) or background work gives way. Pure.

A class of requests is saturated while a request of it or of a more important class waits in a gateway for an engine pod, and
every class is while each pod of the revision has requests waiting in its engine. Lower classes are therefore capped before
higher ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagefleet_contract.engine_metrics import HIGHER_FIRST
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod


def engine_priority(service: Service, priority: int, pods: Iterable[Pod]) -> int | None:
    """Return the priority that a request of a class has in the engines of all pods that may get it or a copy of it. None: the
    service has no classes and no InferenceObjectives and this is no background work, or these engines take no priority, or not all
    the same one.

    A request of no class has 0, which is what an engine takes for a request without a priority. Background work comes after it.
    A request that names an InferenceObjective has that one's priority.
    """
    ordered = service.priorities or service.request_priorities or priority
    orders = {pod.engine.priority for pod in pods} if ordered else {""}
    order = orders.pop()
    if orders or not order:
        return None
    above = len(service.priorities) - priority
    return above if order == HIGHER_FIRST else -above


def saturated(priority: int, held: int | None, waiting: Sequence[float]) -> bool:
    """Return whether a class is saturated.

    `held`: the most important class of which a request waits in a gateway, None for none. `waiting`: the requests that wait in
    the engine of each pod of the revision.
    """
    return (held is not None and held <= priority) or (bool(waiting) and min(waiting) > 0)


def gives_way(priority: int, held: int | None, waiting: Sequence[float]) -> bool:
    """Return whether a request of background work finds no idle capacity: a more important one waits in a gateway, or each pod
    of the revision has requests waiting in its engine. Arguments as of `saturated`. Work of its own class that is held waits
    for the same pods, so it alone is no reason.
    """
    return saturated(priority - 1, held, waiting)
