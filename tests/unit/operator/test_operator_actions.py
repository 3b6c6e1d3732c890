"""Protects the actions that people write as an annotation: every action once per id, each refusal with a reason, undo to
any stored revision. Protects the end of each kind of step, also when the clock jumps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.virtual.cluster import Cluster, started

from pagefleet_operator.domain.rollout.actions import Request, Unreadable, parse
from pagefleet_operator.domain.status.status import AlertRecord, Phase


@pytest.mark.parametrize(
    "text",
    ["no", "[]", "null", "{}", '{"id": 5, "action": "pause"}', '{"id": "", "action": "pause"}', '{"id": "a"}',
     '{"id": "a", "action": "destroy"}', '{"id": "a", "action": "pause", "revision": "b"}',
     '{"id": "a", "action": "undo", "revision": 5}', '{"id": "a", "action": "pause", "more": 1}', "[" * 100_000],
)  # fmt: skip
def test_an_annotation_that_is_no_action_is_refused_once(text: str) -> None:
    assert isinstance(parse(text), Unreadable)
    cluster = started()
    cluster.action = text
    status = cluster.tick()
    assert status.action is not None
    assert status.action.outcome == "Refused"
    cluster.tick()
    assert cluster.status.action == status.action


def test_an_action_is_read() -> None:
    assert parse("") is None
    assert parse('{"id": "a", "action": "undo", "revision": "b", "by": "c"}') == Request("a", "undo", "b", "c")


def test_pause_holds_the_step_and_resume_begins_it_again() -> None:
    cluster = started([{"weight": 10, "hold": "20s"}, {"weight": 50, "hold": "20s"}])
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    cluster.act("pause")
    for _ in range(60):
        cluster.tick()
    assert cluster.status.rollout.step == 0
    assert cluster.status.rollout.paused
    assert cluster.condition("Progressing").reason == "Paused"
    cluster.act("pause")
    assert cluster.answer() == ("Refused", cluster.status.rollout.paused in cluster.status.action.message)  # type: ignore[union-attr]
    cluster.act("resume")
    assert cluster.answer()[0] == "Done"
    assert not cluster.status.rollout.paused
    cluster.until(lambda status: not status.canary)
    assert cluster.status.rollout.phase is Phase.IDLE


def test_an_untimed_pause_waits_for_resume() -> None:
    cluster = started([{"weight": 10}, {"pause": {}}, {"weight": 50}])
    cluster.until(lambda status: status.rollout.phase is Phase.PAUSED)
    for _ in range(60):
        cluster.tick()
    assert (cluster.status.rollout.phase, cluster.weight()) == (Phase.PAUSED, 10)
    cluster.act("resume")
    cluster.until(lambda status: not status.canary)
    assert cluster.status.rollout.phase is Phase.IDLE


def test_promote_skips_the_rest_but_not_the_capacity() -> None:
    cluster = started([{"weight": 10}, {"pause": {}}])
    cluster.until(lambda status: status.rollout.phase is Phase.PAUSED)
    canary = cluster.status.canary
    cluster.act("promote")
    assert cluster.answer()[0] == "Done"
    cluster.until(lambda status: status.stable == canary)
    assert cluster.status.previous is not None


def test_skip_goes_to_the_next_step() -> None:
    cluster = started([{"weight": 10, "hold": "1h"}, {"weight": 50, "hold": "1h"}])
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    cluster.act("skip")
    assert (cluster.answer()[0], cluster.status.rollout.step) == ("Done", 1)


def test_abort_then_retry() -> None:
    cluster = started()
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    stable, canary = cluster.status.stable, cluster.status.canary
    cluster.act("abort")
    assert cluster.answer()[0] == "Done"
    assert cluster.status.rollout.phase is Phase.ROLLED_BACK
    assert [(one.hash, one.reason) for one in cluster.status.rejected] == [(canary, "Aborted")]
    for _ in range(30):
        cluster.tick()
    assert (cluster.status.stable, cluster.status.canary) == (stable, "")
    cluster.act("retry")
    cluster.until(lambda status: status.canary == canary)
    assert cluster.status.rejected == ()


def test_undo_raises_the_earlier_revision_before_it_gets_traffic() -> None:
    cluster = started([])
    first = cluster.status.stable
    cluster.until(lambda status: status.stable != first and not status.draining and first not in cluster.replicas)
    bad = cluster.status.stable
    cluster.act("undo")
    assert cluster.answer()[0] == "Done"
    assert cluster.status.rollout.phase is Phase.ROLLING_BACK
    assert {entry.revision: entry.weight for entry in cluster.status.traffic} == {bad: 100}
    assert cluster.condition("RolledBack").status == "True"
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert (cluster.status.stable, cluster.weights()) == (first, {first: 100})
    for _ in range(30):
        cluster.tick()
    assert cluster.status.stable == first, "the spec's own revision is not tried again"
    cluster.act("undo", revision=bad)
    assert "is what the spec asks for" in cluster.status.action.message  # type: ignore[union-attr]


def test_undo_goes_to_any_stored_revision() -> None:
    cluster = started([])
    revisions = [cluster.status.stable]
    for number in (2, 3, 4):
        cluster.edit(number)
        cluster.until(lambda status: status.stable not in revisions)
        revisions.append(cluster.status.stable)
    cluster.act("undo", revision="nothing")
    assert "is not stored" in cluster.status.action.message  # type: ignore[union-attr]
    cluster.act("undo", revision=revisions[0])
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert cluster.weights() == {revisions[0]: 100}


def test_history_has_its_limit_and_the_specs() -> None:
    cluster = started([], historyLimit=5)
    for number in range(12, 20):
        cluster.edit(number)
        before = cluster.status.stable
        cluster.until(lambda status, before=before: status.stable != before)
    for _ in range(10):
        cluster.tick()
    assert 4 <= len(cluster.status.revisions) <= 5
    assert all(record.spec["engine"] for record in cluster.status.revisions)


@pytest.mark.parametrize("action", ["promote", "pause", "resume", "abort", "retry", "skip", "undo"])
def test_nothing_to_act_on_is_a_refusal(action: str) -> None:
    cluster = Cluster(1)
    cluster.until(lambda status: status.rollout.phase is Phase.IDLE and bool(status.traffic))
    before = cluster.status
    cluster.act(action)
    assert cluster.answer()[0] == "Refused"
    assert (cluster.status.stable, cluster.status.traffic) == (before.stable, before.traffic)


def test_with_an_invalid_spec_only_the_way_back_is_open() -> None:
    for way in ("abort", "alert"):
        cluster = started()
        cluster.until(lambda status: status.rollout.phase is Phase.STEP)
        stable, canary = cluster.status.stable, cluster.status.canary
        cluster.spec["scaling"]["min"] = 99
        cluster.act("promote")
        assert cluster.answer() == ("Refused", True)
        assert "the spec is invalid" in cluster.status.action.message  # type: ignore[union-attr]
        assert cluster.weight() == 10
        if way == "abort":
            cluster.act("abort")
            assert cluster.answer() == ("Done", True)
        else:
            alert = AlertRecord("f", "Bad", cluster.now, canary, cluster.now, {"severity": "page"})
            cluster.status = replace(cluster.status, alerts=(alert,))
            cluster.tick()
        assert (cluster.weights(), cluster.status.rollout.phase) == ({stable: 100}, Phase.ROLLED_BACK)
        assert cluster.status.rejected[-1].hash == canary


def test_a_rollback_under_way_goes_on_with_an_invalid_spec() -> None:
    cluster = started([])
    first = cluster.status.stable
    cluster.until(lambda status: status.stable != first and not status.draining and first not in cluster.replicas)
    cluster.act("undo")
    assert cluster.status.rollout.phase is Phase.ROLLING_BACK
    cluster.spec["scaling"]["min"] = 99
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert cluster.weights() == {first: 100}
