"""The plan: the changes that a decision asks the shell to make. Pure data; `kube.apply` makes them in a fixed order.

The order matters. The status, and with it the weights, is written before children are scaled down or deleted, and
after the children that the new weights need are Ready: `decide` never puts weight on a revision without a ready pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagefleet_operator.domain.spec.schema.slo import Owner
from pagefleet_operator.domain.status.status import Status


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event on the InferenceService. `type` is "Normal" or "Warning"."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True)
class Withdrawal:
    """An object of the whole service that must be deleted: exactly the one with this uid."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class SpareOrder:
    """The order to one warm spare.

    `opened` is the new value of its readiness gate, None to leave it. `asleep` is the state that its engine shall
    take, None to leave it. An engine with open requests refuses to sleep; the order is then repeated later.
    """

    pod: str
    address: str
    opened: bool | None = None
    asleep: bool | None = None


@dataclass(frozen=True)
class Plan:
    """The next state of one InferenceService.

    `document`: the JSON of the status; None: nothing is decided yet, and the stored status stays.
    `children`: complete manifests (apiVersion, kind, metadata, spec) to server-side-apply, in order. An abstract
    PodDisruptionBudget has apiVersion "policy/v1"; the shell rewrites it to what the API server serves.
    `job`: a Job that must exist (a load test); it is created once and never changed.
    `delete`: revisions whose children are deleted (Deployment, Service, PDB; background propagation) after the status
    is written. They are not deleted in a round that also writes a route: the gateways must see the new route first.
    `routes`: manifests that carry the split to other gateways (provider GatewayAPI), applied right after the status.
    `withdrawn`: objects that are deleted after the routes are applied.
    `records`: ControllerRevisions that must exist, written after the status (`domain.records`).
    `requeue`: seconds until the next decision is due even if nothing happens.
    `deletion_costs`: costs by pod, written before a Deployment shrinks.
    `spares`: orders to warm spares, carried out last.
    `needed`: replicas that the load needs, not rounded, by revision.
    `replica_cost`: the price of one replica for an hour, None when it is not known.
    `replica_costs`: the same by revision, as each has its own pods. `model`: the name that clients put into `model`.
    `owner`: who is responsible for the service, for metrics; Events have it already.
    """

    status: Status
    document: Mapping[str, Any] | None = field(default=None, repr=False)
    children: tuple[Mapping[str, object], ...] = ()
    delete: tuple[str, ...] = ()
    routes: tuple[Mapping[str, object], ...] = ()
    withdrawn: tuple[Withdrawal, ...] = ()
    records: tuple[Mapping[str, object], ...] = ()
    job: Mapping[str, object] | None = None
    events: tuple[Event, ...] = ()
    requeue: float = 5.0
    deletion_costs: Mapping[str, int] = field(default_factory=dict)
    needed: Mapping[str, float] = field(default_factory=dict)
    replica_cost: float | None = None
    replica_costs: Mapping[str, float] = field(default_factory=dict)
    model: str = ""
    spares: tuple[SpareOrder, ...] = ()
    owner: Owner = field(default_factory=Owner)

    @property
    def asleep(self) -> bool:
        """Whether the service is scaled to zero, so that the next request must wake it."""
        return bool(self.status.traffic) and not any(record.desired for record in self.status.revisions)
