"""What is recorded: one record for each revision of the history and for each rejected one. Pure.

Records follow the status: they are written after it, and not before something serves or is known. The record of a revision
that is no longer in the status is deleted. So `spec.rollout.historyLimit` bounds their number, together with the rejected
revisions, of which a status has the ten latest.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagefleet_contract.names import is_object_name
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.records import restoring
from pagefleet_operator.domain.records.manifest import API_VERSION, KIND, PREVIOUS, STABLE, manifest
from pagefleet_operator.domain.status.observation import Observation, RecordReading
from pagefleet_operator.domain.status.plan import Plan, Withdrawal
from pagefleet_operator.domain.status.status import Phase, Status


def add(observation: Observation, plan: Plan) -> Plan:
    """Add to the plan the records that must exist, and the deletion of the others."""
    made = _records(observation, plan.status)
    desired = tuple(record for record in made if is_object_name(f"{observation.name}-{record.revision}"))
    if not desired:
        return plan
    names = {record.revision for record in desired}
    gone = tuple(
        Withdrawal(API_VERSION, KIND, f"{observation.name}-{record.revision}", record.object)
        for record in observation.records
        # A record that cannot be used here is retained: it may be usable after a change of the operator's policy.
        if record.revision not in names and (record.uid == observation.uid or restoring.is_usable(observation, record))
    )
    manifests = tuple(manifest(observation.namespace, observation.name, record) for record in desired)
    return replace(plan, records=manifests, withdrawn=(*plan.withdrawn, *gone))


def _records(observation: Observation, status: Status) -> Iterator[RecordReading]:
    rejections = {rejection.hash: rejection for rejection in status.rejected}
    stored = {record.revision: record for record in observation.records}
    for revision in status.revisions:
        spec = revision.spec or (stored[revision.hash].spec if revision.hash in stored else {})
        role, since = _role(status, revision.hash)
        rejection = rejections.pop(revision.hash, None)
        version = stored[revision.hash].version if revision.hash in stored else ""
        yield RecordReading(
            revision.hash, revision.created, spec, role, since, rejection, observation.uid, version=version
        )
    for name, rejection in rejections.items():
        known = stored.get(name) or RecordReading(name, rejection.time)
        yield replace(known, role="", since=0.0, rejection=rejection, uid=observation.uid)


def _role(status: Status, revision: str) -> tuple[str, float]:
    """Return the role and the time since which the revision has it. A first revision is stable only when it has served."""
    has_served = bool(status.traffic) or status.rollout.phase is Phase.RESTORING
    if revision == status.stable and has_served:
        return STABLE, 0.0
    if status.previous is not None and revision == status.previous.revision:
        return PREVIOUS, status.previous.since
    return "", 0.0
