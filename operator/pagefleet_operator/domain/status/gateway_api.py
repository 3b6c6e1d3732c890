"""The part of the cluster's Gateway API that one service needs to know. Pure data: nothing here does I/O.

It holds the kinds that the API server serves, the fields of their schemas, the service's own HTTPRoute and
InferencePool, and what gateway controllers report about both.
"""

from __future__ import annotations

from dataclasses import dataclass

ROUTE_GROUP, ROUTE_KIND = "gateway.networking.k8s.io", "HTTPRoute"
POOL_GROUP, POOL_KIND = "inference.networking.k8s.io", "InferencePool"


@dataclass(frozen=True)
class Features:
    """Served versions of HTTPRoute (`route`) and InferencePool (`pool`), "" when the kind is not served.

    The other fields are fields of HTTPRoute's schema that came after v1.0. An API server drops a field that its schema
    lacks, so such a field must not be written.
    """

    route: str = ""
    pool: str = ""
    timeouts: bool = False  # rules[].timeouts: Gateway API v1.2
    mirror_share: bool = False  # requestMirror.percent and .fraction: Gateway API v1.3


@dataclass(frozen=True)
class ParentStatus:
    """The report of one controller about a route or pool at one parent; None where it has reported nothing.

    `observed_generation` is the generation that the report is about, None when the controller does not state it.
    """

    parent: str  # name
    namespace: str  # "" is the route's own
    section: str
    port: int | None
    observed_generation: int | None
    accepted: bool | None
    resolved: bool | None
    reason: str  # of the condition that is not True
    message: str


@dataclass(frozen=True)
class LiveObject:
    """An object as the API server has it. `owner` is the uid of its controlling owner, "" without one."""

    name: str
    uid: str
    owner: str
    generation: int
    parent_statuses: tuple[ParentStatus, ...] = ()


@dataclass(frozen=True)
class GatewayApiReading:
    """The Gateway API's kinds and the service's objects of them; None for an object that does not exist."""

    features: Features
    route: LiveObject | None = None
    pool: LiveObject | None = None


@dataclass(frozen=True)
class FallbackReading:
    """A service in the chain of fallbacks. `exists` is False for the last one when there is no such service."""

    name: str
    exists: bool
    served_name: str = ""
    fallback: str = ""
