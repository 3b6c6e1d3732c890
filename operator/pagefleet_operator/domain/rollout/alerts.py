"""Finds the stored alert, if any, that is about the revision under judgement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.status.status import AlertRecord, Phase, Status


def labels_of(raw: object) -> Mapping[str, str] | None:
    """Read `spec.rollout.alerts.matchLabels` of a raw spec; None when it takes no alerts. Total.

    The spec may be invalid elsewhere: an alert must not be lost for that.
    """
    labels = _given(raw).get("matchLabels")
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        return None
    return {str(name): value for name, value in labels.items()}


def rollback_labels_of(raw: object) -> Mapping[str, str] | None:
    """The same; None also when alerts ask for a pause, and no rollback. Total."""
    return None if _given(raw).get("onAlert") == "pause" else labels_of(raw)


def matches(labels: Mapping[str, str], required: Mapping[str, str]) -> bool:
    """Whether an alert's labels have every required label."""
    return all(labels.get(name) == value for name, value in required.items())


def counts_without_revision(raw: object) -> bool:
    """Read `spec.rollout.alerts.withoutRevision` of a raw spec. Total."""
    return bool(_given(raw).get("withoutRevision") == "act")


def firing_against(
    revision: str,
    alerts: Iterable[AlertRecord],
    labels: Mapping[str, str] | None,
    since: float,
    without_revision: bool,
) -> AlertRecord | None:
    """The first firing alert that is about `revision` and came after `since`.

    An alert that names no revision may be true of every revision, as at a peak: it counts `without_revision` only.
    """
    if labels is None:
        return None
    for alert in alerts:
        about = alert.revision == revision or (not alert.revision and without_revision)
        if about and not alert.resolved and alert.received >= since and matches(alert.labels, labels):
            return alert
    return None


def decides(status: Status, raw: object, rollout: Rollout | None) -> bool:
    """Whether a stored alert alone gives up the revision under judgement, so that no measurement needs to be awaited.

    `rollout` is None when the spec `raw` cannot be used.
    """
    if rollout is not None and rollout.alerts_pause:
        return False
    record = status.rollout
    revision = status.canary if record.phase is not Phase.ROLLING_BACK else ""
    if record.phase is Phase.WATCHING:
        revision = status.stable
    labels = rollout.alert_labels if rollout is not None else rollback_labels_of(raw)
    any_revision = rollout.alerts_without_revision if rollout is not None else counts_without_revision(raw)
    return bool(revision) and firing_against(revision, status.alerts, labels, record.started, any_revision) is not None


def _given(raw: object) -> Mapping[str, Any]:
    """`spec.rollout.alerts` of a raw spec; {} where there is none."""
    for name in ("rollout", "alerts"):
        raw = raw.get(name) if isinstance(raw, Mapping) else None
    return raw if isinstance(raw, Mapping) else {}


def sentence(alert: AlertRecord, revision: str) -> str:
    """State that an alert fires, for messages."""
    return f"alert {alert.name} fires for revision {revision}"
