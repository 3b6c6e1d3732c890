"""The rollout while the spec cannot be used: nothing goes forward, but the way back stays open.

An abort, an alert and a rollback under way need nothing of the spec but the labels of alerts.
"""

from __future__ import annotations

from pagefleet_operator.domain.rollout import actions, alerts, promotion, rollback
from pagefleet_operator.domain.status.stage import Stage, stage_of
from pagefleet_operator.domain.status.status import Phase
from pagefleet_operator.domain.status.turn import Turn


def hold(turn: Turn, error: str) -> Stage:
    """Keep the stage, or go on with the way back. `error` is what is wrong with the spec."""
    observation = turn.observation
    stage = actions.act_without_spec(turn, stage_of(observation.status), error)
    if stage.record.phase is Phase.ROLLING_BACK:
        return rollback.move_traffic_back(turn, stage)
    bad, good = stage.canary, stage.stable
    if stage.record.phase is Phase.WATCHING and (previous := promotion.way_back(turn, stage)) is not None:
        bad, good = stage.stable, previous.revision
    if not bad:
        return stage
    labels, any_revision = alerts.rollback_labels_of(observation.spec), alerts.counts_without_revision(observation.spec)
    alert = alerts.firing_against(bad, observation.status.alerts, labels, stage.record.started, any_revision)
    if alert is None:
        return stage
    return rollback.give_up(turn, stage, bad, good, "Alert", alerts.sentence(alert, bad))
