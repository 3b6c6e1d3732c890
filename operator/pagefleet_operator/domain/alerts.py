"""Which stored alert, if any, is about the revision under judgement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pagefleet_operator.domain.status import AlertRecord


def matches(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())


def against(
    canary: str, alerts: Iterable[AlertRecord], wanted: Mapping[str, str] | None, since: float
) -> AlertRecord | None:
    """The first firing alert that is about `canary` (or names no revision) and came after `since`."""
    if wanted is None:
        return None
    for alert in alerts:
        about = alert.revision in ("", canary)
        if about and not alert.resolved and alert.received >= since and matches(alert.labels, wanted):
            return alert
    return None
