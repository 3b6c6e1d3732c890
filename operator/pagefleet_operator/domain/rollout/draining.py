"""When the pods of a revision without traffic may go: not before every gateway has heard that it has none. From then on
the engine drains by itself: its open streams end, then its process does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.status import DrainRecord

HEARD_SECONDS = 5.0


@dataclass(frozen=True)
class Drained:
    """`replicas` of what is left as it is for now, `records` of when that began, `gone` to be deleted now."""

    replicas: Mapping[str, int]
    records: tuple[DrainRecord, ...]
    gone: tuple[str, ...]


def decide(seen: Observation, wanted: Mapping[str, int], now: float) -> Drained:
    """`wanted` are the replicas of the revisions in use; every other one drains."""
    known = {record.revision: record.since for record in seen.status.draining}
    replicas, records, gone = {}, [], []
    for name, found in sorted(seen.revisions.items()):
        if name in wanted:
            continue
        since = known.get(name, now)
        since = now if since > now else since
        records.append(DrainRecord(name, since))
        if now - since >= HEARD_SECONDS:
            gone.append(name)
        else:
            replicas[name] = found.replicas or 0
    return Drained(replicas, tuple(records), tuple(gone))
