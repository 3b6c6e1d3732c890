"""Which stored alert, if any, is about the revision under judgement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.status.status import AlertRecord, Phase, Status


def labels_of(raw: object) -> Mapping[str, str] | None:
    """`spec.rollout.alerts.matchLabels` of a spec that may be invalid elsewhere: an alert must not be lost for that.
    Total; None when alerts ask for no rollback."""
    for name in ("rollout", "alerts"):
        raw = raw.get(name) if isinstance(raw, Mapping) else None
    if not isinstance(raw, Mapping) or raw.get("onAlert") == "pause":
        return None
    labels = raw.get("matchLabels")
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        return None
    return {str(name): value for name, value in labels.items()}


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


def decides(status: Status, raw: object, rollout: Rollout | None) -> bool:
    """Whether a stored alert gives the revision under judgement up by itself, so that nobody needs to wait for
    measurements. `rollout` None: the spec `raw` cannot be used."""
    if rollout is not None and rollout.alerts_pause:
        return False
    record = status.rollout
    judged = status.canary if record.phase is not Phase.ROLLING_BACK else ""
    if record.phase is Phase.WATCHING:
        judged = status.stable
    wanted = rollout.alert_labels if rollout is not None else labels_of(raw)
    return bool(judged) and against(judged, status.alerts, wanted, record.started) is not None
