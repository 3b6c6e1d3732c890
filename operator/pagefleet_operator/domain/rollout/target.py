"""The target: the revision that a spec asks for.

An edit that changes only the way in which a spec is written asks for the revision that there is. So does an upgrade of the
operator. Earlier operators named a revision by the hash of the spec as it is written, later ones by a meaning in which a default
that is written counted. A spec that is written as its meaning has the same hash then and now. Any other spec finds its revision
because the names under which it may be stored are looked for first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_operator.domain.base.revision import earlier_hashes, meaning, revision_hash
from pagefleet_operator.domain.status.status import RevisionRecord, Status


def target_of(raw: Mapping[str, Any], status: Status) -> str:
    """The known revision that a spec (defaults filled in) asks for by its writing or by its meaning, else a new name.

    Of several known revisions with its meaning it is the stable one, then the canary, then the latest.
    """
    sought, names, (written, earlier) = meaning(raw), _names(status), earlier_hashes(raw)
    if written in names:
        return written
    same = [record for record in status.revisions if record.spec and meaning(record.spec) == sought]
    if not same:
        return earlier if earlier in names else revision_hash(raw)

    def preference(record: RevisionRecord) -> tuple[bool, bool, float]:
        return record.hash == status.stable, record.hash == status.canary, record.created

    return max(same, key=preference).hash


def _names(status: Status) -> set[str]:
    stored, rejected = (one.hash for one in status.revisions), (one.hash for one in status.rejected)
    return {status.stable, status.canary, *stored, *rejected}
