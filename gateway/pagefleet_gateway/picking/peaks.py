"""When a service is saturated, so that its cap of new tokens applies (`spec.traffic.peak`). Pure.

A class of requests is saturated while a request of it or of a more important class waits in a gateway for an engine pod, and
every class is while each pod of the revision has requests waiting in its engine. Lower classes are therefore capped before
higher ones.
"""

from __future__ import annotations

from collections.abc import Sequence


def saturated(priority: int, held: int | None, waiting: Sequence[float]) -> bool:
    """Return whether a class is saturated.

    `held`: the most important class of which a request waits in a gateway, None for none. `waiting`: the requests that wait in
    the engine of each pod of the revision.
    """
    return (held is not None and held <= priority) or (bool(waiting) and min(waiting) > 0)
