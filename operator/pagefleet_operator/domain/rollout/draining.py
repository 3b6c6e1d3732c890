"""Decides when the pods of a revision without traffic may be deleted: not before every gateway has the new weights.

From then on the engine drains by itself: its open streams end, then its process does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_operator.domain.status.status import DrainRecord
from pagefleet_operator.domain.status.turn import Turn

WEIGHTS_PROPAGATE_SECONDS = 5.0  # the time in which every gateway receives new weights


@dataclass(frozen=True)
class Draining:
    """The revisions without traffic.

    `replicas` of those that keep their pods for now, `records` of the time since which each drains, and the revisions
    to `delete` now.
    """

    replicas: Mapping[str, int]
    records: tuple[DrainRecord, ...]
    delete: tuple[str, ...]


def decide(turn: Turn, in_use: Mapping[str, int]) -> Draining:
    """`in_use` has the replicas of the revisions in use; every other one drains."""
    started = {record.revision: record.since for record in turn.observation.status.draining}
    replicas, records, delete = {}, [], []
    for revision, reading in sorted(turn.observation.revisions.items()):
        if revision in in_use:
            continue
        since = min(started.get(revision, turn.now), turn.now)
        records.append(DrainRecord(revision, since))
        if turn.now - since >= WEIGHTS_PROPAGATE_SECONDS:
            delete.append(revision)
        else:
            replicas[revision] = reading.replicas or 0
    return Draining(replicas, tuple(records), tuple(delete))
