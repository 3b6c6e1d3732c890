"""What still happens to a rollout while the spec cannot be used: nothing goes forward, but the way back stays open.

An abort, an alert and a rollback under way need nothing of the spec but the labels of alerts.
"""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.domain.rollout import actions, alerts, rollback
from pagefleet_operator.domain.status.journal import Journal
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.stage import Stage, stage_of
from pagefleet_operator.domain.status.status import Phase


def keep(seen: Observation, reason: str, now: float, journal: Journal) -> Stage:
    """`reason` says what is wrong with the spec."""
    stage = actions.without_spec(stage_of(seen.status), seen, reason, now, journal)
    if stage.record.phase is Phase.ROLLING_BACK:
        return rollback.retreat(stage, seen, now, journal)
    labels = alerts.labels_of(seen.spec)
    alert = alerts.against(stage.canary, seen.status.alerts, labels, stage.record.started) if stage.canary else None
    if alert is None:
        return stage
    message = f"alert {alert.name} fires for revision {stage.canary}"
    return replace(rollback.reject(stage, seen, "Alert", message, now, journal), mirror=None)
