"""Checks the two parts of a stored status that have no fixed fields: a revision's snapshot and a histogram.

An older operator, or any client that may write the status, can have written them. An unknown field is no reason to
refuse a snapshot, because another version may know it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pagefleet_operator.domain.base.json_text import decode, json_text
from pagefleet_operator.domain.base.revision import POD_AFFECTING
from pagefleet_operator.domain.spec.schema import structure
from pagefleet_operator.domain.spec.schema.fields import record
from pagefleet_operator.domain.spec.schema.spec import SPEC

SNAPSHOT = record("", {name: SPEC["properties"][name] for name in POD_AFFECTING}, ("model",))
MAX_REMEMBERED = 4096
BUCKETS = frozenset(map(str, range(5001)))


def snapshot_of(value: object) -> dict[str, Any]:
    """Return `value`, or {} when no pod can be built from it. The latest are remembered by their JSON."""
    text = json_text(value)
    return _checked(value) if text is None else dict(_remembered(text))


@functools.lru_cache(MAX_REMEMBERED)
def _remembered(text: bytes) -> dict[str, Any]:
    return _checked(decode(text))


def _checked(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or structure.check(structure.known(value, SNAPSHOT), SNAPSHOT, "spec"):
        return {}
    return dict(value)


def histogram_of(value: object) -> dict[str, int]:
    """Return {bucket: count} without entries that are neither; {} when `value` is no histogram at all."""
    if not isinstance(value, Mapping):
        return {}
    counts = value.values()
    if value.keys() <= BUCKETS and all(type(count) is int for count in counts) and min(counts, default=0) >= 0:
        return dict(value)
    return {bucket: count for bucket, count in value.items() if bucket in BUCKETS and type(count) is int and count >= 0}
