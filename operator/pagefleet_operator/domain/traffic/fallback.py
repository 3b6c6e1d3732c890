"""States as a condition whether the fallback service exists, and whether the chain of fallbacks is a circle.

It changes nothing: the gateway takes only one step of the chain.
"""

from __future__ import annotations

from pagefleet_operator.domain.status.condition import FALSE, TRUE, NewCondition
from pagefleet_operator.domain.status.gateway_api import FallbackReading

FIELD = "spec.traffic.fallback.service"
KIND = "FallbackReady"


def state(namespace: str, name: str, served_name: str, chain: tuple[FallbackReading, ...]) -> NewCondition | None:
    """`chain` begins with the service's own fallback; None when it has none."""
    if not chain:
        return None
    first, names = chain[0], [name, *(entry.name for entry in chain)]
    if first.name == name:
        return (KIND, FALSE, "FallbackLoops", f"{FIELD}: must name another service than {name} itself")
    if not first.exists:
        return (KIND, FALSE, "FallbackNotFound", f"{FIELD}: there is no InferenceService {namespace}/{first.name}")
    if names[-1] in names[:-1]:
        way = " -> ".join(names)
        return (KIND, FALSE, "FallbackLoops", f"{FIELD}: {way} leads in a circle; only its first step is ever taken")
    message = f"{namespace}/{first.name} answers when no pod of this service can"
    if first.served_name != served_name:
        message += f"; it serves {first.served_name or 'a model without a name'!r} and must accept {served_name!r} too"
    return (KIND, TRUE, "FallbackExists", message)
