"""Chooses the kind of object that makes a revision's pods, and states the problem where the cluster lacks that kind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.manifests import pod_fields, retained
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.leaderworkerset import GROUP, VERSION, leader_worker_set
from pagefleet_operator.domain.status.condition import Problem
from pagefleet_operator.domain.status.observation import RevisionReading
from pagefleet_operator.domain.status.status import RevisionRecord

UNAVAILABLE, DROPPED = "MultiNodeUnavailable", "PodFieldDropped"


def workload(
    child: Child, replicas: int, *, served: bool, dropped: Collection[str] = ()
) -> Mapping[str, object] | None:
    """The object that makes a revision's pods; None where that is a LeaderWorkerSet and the cluster does not serve it, or
    where the API server would drop a field that the pods need."""
    if pod_fields.lacking(child.spec, dropped) is not None:
        return None
    if child.spec.nodes == 1:
        return deployment(child, replicas)
    return leader_worker_set(child, replicas) if served else None


def older_defaults(child: Child, reading: RevisionReading, *, served: bool, dropped: Collection[str] = ()) -> str:
    """The first field in which a running revision has other defaults than it would get today; "" when none has."""
    made = workload(child, 0, served=served, dropped=dropped) if reading.templates else None
    return "" if made is None else retained.difference(made, reading.templates)


def problem(
    known: Iterable[RevisionRecord], in_use: Iterable[str], *, served: bool, dropped: Collection[str] = ()
) -> Problem | None:
    """The problem of the first revision in `in_use` that can have no pods."""
    if served and not dropped:
        return None
    specs = {record.hash: revision_spec(record.spec) for record in known if record.spec}
    for revision, spec in ((name, specs[name]) for name in in_use if name in specs):
        if lack := pod_fields.lacking(spec, dropped):
            field, asked_by = lack
            return Problem(
                DROPPED,
                f"revision {revision}: {asked_by}: this API server drops {field} of pods, so they would start without it; "
                f"it needs {pod_fields.FIELDS[field].needs}",
            )
        if spec.nodes > 1 and not served:
            return Problem(
                UNAVAILABLE,
                f"revision {revision}: spec.engine.nodes: needs LeaderWorkerSet ({GROUP}/{VERSION}), which this cluster "
                "does not serve; install it (https://lws.sigs.k8s.io), or remove the field",
            )
    return None
