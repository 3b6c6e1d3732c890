"""The objects of every revision in use. While there is a canary, a revision whose part of a decision is the same as before keeps those
that are in the memo."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.manifests import workload
from pagefleet_operator.domain.manifests.disruption_budget import disruption_budget
from pagefleet_operator.domain.manifests.prefill import prefill_deployment, prefill_disruption_budget, prefill_pods
from pagefleet_operator.domain.manifests.retained import Templates, with_templates
from pagefleet_operator.domain.manifests.service import service
from pagefleet_operator.domain.manifests.spare import spare_deployment
from pagefleet_operator.domain.status.observation import Observation, RevisionReading
from pagefleet_operator.domain.status.status import RevisionRecord

MEMO = "children"
Manifest = Mapping[str, object]


@dataclass(frozen=True)
class _Revision:
    """All that the objects of a revision depend on. The templates are those that were applied to each of its workloads."""

    child: Child
    replicas: int
    prefill: int
    spares: int
    groups: bool
    dropped: frozenset[str]
    templates: Templates | None
    prefill_templates: Templates | None
    spare_templates: Templates | None

    def objects(self) -> Iterator[Manifest]:
        """The objects, in the order in which they are applied."""
        child = self.child
        made = workload.workload(child, self.replicas, served=self.groups, dropped=self.dropped)
        if made is None:
            return  # a deleted revision is known by its Deployment or LeaderWorkerSet: no other child without one
        yield with_templates(made, self.templates)
        yield service(child)
        yield disruption_budget(child)
        if child.spec.prefill_replicas:
            yield with_templates(prefill_deployment(child, self.prefill, self.templates), self.prefill_templates)
            yield prefill_disruption_budget(child)
        if self.spares:
            yield with_templates(spare_deployment(child, self.spares, self.templates), self.spare_templates)


def child_of(observation: Observation, record: RevisionRecord) -> Child:
    """A revision as its objects need it."""
    spec: Mapping[str, Any] = record.spec
    return Child(
        observation.namespace,
        observation.name,
        observation.uid,
        record.hash,
        spec,
        observation.image,
        observation.engine_address,
    )


def children(
    observation: Observation,
    history: Iterable[RevisionRecord],
    replicas: Mapping[str, int],
    spares: Mapping[str, int],
) -> tuple[Manifest, ...]:
    """The objects of every revision in use, in the order in which they are applied."""
    stored = observation.memo.pop(MEMO, None)
    known = stored if isinstance(stored, dict) else {}
    made: dict[str, tuple[_Revision, tuple[Manifest, ...]]] = {}
    for record in history:
        if record.hash not in replicas or not record.spec:
            continue
        reading = observation.revisions.get(record.hash) or RevisionReading(record.hash, None)
        wanted = _Revision(
            child=child_of(observation, record),
            replicas=replicas[record.hash],
            prefill=prefill_pods((record,), replicas).get(record.hash, 0),
            spares=spares.get(record.hash, 0),
            groups=observation.groups,
            dropped=observation.dropped,
            templates=reading.templates,
            prefill_templates=reading.prefill_templates,
            spare_templates=reading.spare_templates,
        )
        before = known.get(record.hash)
        made[record.hash] = before if before and before[0] == wanted else (wanted, tuple(wanted.objects()))
    if observation.status.canary:  # other services are decided about rarely
        observation.memo[MEMO] = made
    return tuple(manifest for _, manifests in made.values() for manifest in manifests)
