"""Which open parts of a stored status can be used: a revision's snapshot that pods can be built from, and a histogram.

A status may have been written by an older operator, or by anybody who may write it. Fields that are not known are no
reason to refuse a snapshot: another version may know them. Decides nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_operator.domain.base.revision import POD_AFFECTING
from pagefleet_operator.domain.spec import structure
from pagefleet_operator.domain.spec.schema import root
from pagefleet_operator.domain.spec.schema.fields import record

SNAPSHOT = record("", {name: root.SPEC["properties"][name] for name in POD_AFFECTING}, ("model",))
MOST_BUCKET = 5000


def snapshot_of(value: object) -> dict[str, Any]:
    """`value`, or {} when no pod can be built from it."""
    if not isinstance(value, Mapping) or structure.check(structure.known(value, SNAPSHOT), SNAPSHOT, "spec"):
        return {}
    return dict(value)


def histogram_of(value: object) -> dict[str, int]:
    """{bucket: count} without what is neither; {} when it is no histogram at all."""
    if not isinstance(value, Mapping):
        return {}
    return {
        bucket: count
        for bucket, count in value.items()
        if isinstance(bucket, str) and bucket.isascii() and bucket.isdigit() and len(bucket) < 6
        if int(bucket) <= MOST_BUCKET and isinstance(count, int) and not isinstance(count, bool) and count >= 0
    }
