"""What the cluster has of the Gateway API, as far as one service needs to know: which kinds are served and what their
schemas have, the live HTTPRoute and InferencePool, and what gateways say of them. Pure data; nothing here does I/O."""

from __future__ import annotations

from dataclasses import dataclass

ROUTE_GROUP, ROUTE_KIND = "gateway.networking.k8s.io", "HTTPRoute"
POOL_GROUP, POOL_KIND = "inference.networking.k8s.io", "InferencePool"


@dataclass(frozen=True)
class Features:
    """`route` and `pool` are served versions, "" when the kind is not served; the rest are fields of HTTPRoute's schema
    that came after v1.0 (an API server drops fields that a schema has not: they must not be written then)."""

    route: str = ""
    pool: str = ""
    timeouts: bool = False  # rules[].timeouts: Gateway API v1.2
    mirror_share: bool = False  # requestMirror.percent and .fraction: Gateway API v1.3


@dataclass(frozen=True)
class Answer:
    """What one controller says of a route or pool for one parent. None: it has not said. `observed`: the generation
    that it has seen, None when it does not tell."""

    parent: str  # name
    namespace: str  # "" is the route's own
    section: str
    port: int | None
    observed: int | None
    accepted: bool | None
    resolved: bool | None
    reason: str  # of what is not true
    message: str


@dataclass(frozen=True)
class Live:
    """An object as it is on the API server. `owner` is the uid of its controller, "" without one."""

    name: str
    uid: str
    owner: str
    generation: int
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class GatewayApiReading:
    features: Features
    route: Live | None = None
    pool: Live | None = None


@dataclass(frozen=True)
class FallbackReading:
    """A service in the chain of fallbacks. `exists` is False for the last one when it is not there."""

    name: str
    exists: bool
    served_name: str = ""
    fallback: str = ""
