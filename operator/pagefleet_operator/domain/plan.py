"""What a decision asks the shell to bring about. Pure data; `cluster.apply` carries it out, in the order given here.

Order matters: the status (and so the weights) is written before children are scaled down or deleted, and after the
children that the new weights need are Ready: `decide` never puts weight on a revision without a ready pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagefleet_operator.domain.status import Status


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event on the InferenceService. `type` is "Normal" or "Warning"."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """The next state of one InferenceService.

    `children`: complete manifests (apiVersion, kind, metadata, spec) to server-side-apply, in order. An abstract
    PodDisruptionBudget has apiVersion "policy/v1"; the shell rewrites it to what the API server serves.
    `delete`: revisions whose children are to be deleted (Deployment, Service, PDB; background propagation), after
    the status was written.
    `requeue`: seconds until the next decision is due even if nothing happens.
    `victims`: deletion costs by pod, to be written before a Deployment shrinks.
    `needed`: replicas that the load needs, not rounded, by revision. `replica_cost`: of one for an hour, if known.
    """

    status: Status
    children: tuple[Mapping[str, object], ...] = ()
    delete: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    requeue: float = 5.0
    victims: Mapping[str, int] = field(default_factory=dict)
    needed: Mapping[str, float] = field(default_factory=dict)
    replica_cost: float | None = None

    @property
    def asleep(self) -> bool:
        """Whether the service is at zero, and a request that waits for it wakes it."""
        return bool(self.status.traffic) and not any(record.desired for record in self.status.revisions)
