"""What a decision asks the shell to bring about. Pure data; `cluster.apply` carries it out, in the order given here.

Order matters: the status (and so the weights) is written before children are scaled down or deleted, and after the
children that the new weights need are Ready: `decide` never puts weight on a revision without a ready pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagefleet_operator.domain.status.status import Status


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event on the InferenceService. `type` is "Normal" or "Warning"."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True)
class Withdrawal:
    """An object of the service as a whole that is to go: this very one, by uid."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class SpareOrder:
    """What one spare is told. `opened`: what its readiness gate becomes, None: it stays. `asleep`: what its engine is
    asked to be, None: nothing. An engine with open requests refuses to sleep; it is asked again later."""

    pod: str
    address: str
    opened: bool | None = None
    asleep: bool | None = None


@dataclass(frozen=True)
class Plan:
    """The next state of one InferenceService.

    `children`: complete manifests (apiVersion, kind, metadata, spec) to server-side-apply, in order. An abstract
    PodDisruptionBudget has apiVersion "policy/v1"; the shell rewrites it to what the API server serves.
    `job`: a Job that must exist (a load test); it is created once and never changed.
    `delete`: revisions whose children are to be deleted (Deployment, Service, PDB; background propagation), after
    the status was written, and not in a round that also wrote a route: who serves the old one must see the new one.
    `routes`: manifests that carry the split to other gateways (provider GatewayAPI), applied right after the status;
    `withdrawn`: those that are to go, after them.
    `requeue`: seconds until the next decision is due even if nothing happens.
    `victims`: deletion costs by pod, to be written before a Deployment shrinks.
    `spares`: what warm spares are told, last of all.
    `needed`: replicas that the load needs, not rounded, by revision. `replica_cost`: of one for an hour, if known.
    """

    status: Status
    children: tuple[Mapping[str, object], ...] = ()
    delete: tuple[str, ...] = ()
    routes: tuple[Mapping[str, object], ...] = ()
    withdrawn: tuple[Withdrawal, ...] = ()
    job: Mapping[str, object] | None = None
    events: tuple[Event, ...] = ()
    requeue: float = 5.0
    victims: Mapping[str, int] = field(default_factory=dict)
    needed: Mapping[str, float] = field(default_factory=dict)
    replica_cost: float | None = None
    spares: tuple[SpareOrder, ...] = ()

    @property
    def asleep(self) -> bool:
        """Whether the service is at zero, and a request that waits for it wakes it."""
        return bool(self.status.traffic) and not any(record.desired for record in self.status.revisions)
