"""Protects the messages that are read on call: they name the revision, the numbers, the limit, the time and the next
command, and a message that stays true does not change from decision to decision."""

from __future__ import annotations

import re
from dataclasses import replace

from support.virtual.cluster import Cluster, started

from pagefleet_operator.domain.status.codec import time_to_the_second
from pagefleet_operator.domain.status.observation import PodFault
from pagefleet_operator.domain.status.status import Phase

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


def last(cluster: Cluster, kind: str) -> str:
    return next(one.message for one in reversed(cluster.status.decisions) if one.kind == kind)


def test_a_rollback_names_both_revisions_the_numbers_the_limit_and_the_way_to_retry() -> None:
    cluster = started()
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    stable, canary = cluster.status.stable, cluster.status.canary
    cluster.factor = 3.0
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    message = last(cluster, "RolledBack")
    assert message.startswith(f"Rolled back {canary} -> {stable} (LatencyRegression: canary ttft p95 ")
    assert re.search(r"p95 \d+ ms, stable \d+ ms, \+\d+%, limit \+50%, \d+ requests;", message), message
    assert message.endswith("Not retried until the spec changes or `kubectl pagefleet rollout retry chat -n ns`."), (
        message
    )
    progressing = cluster.condition("Progressing")
    assert (progressing.status, progressing.reason) == ("False", "Rejected")
    assert re.match(rf"revision {canary} was rolled back at {TIME} \(LatencyRegression: ", progressing.message)
    assert "`kubectl pagefleet rollout retry chat -n ns`" in progressing.message


def test_the_rejection_of_the_spec_s_revision_is_stated_and_not_a_later_one() -> None:
    cluster = started()
    rejected = []
    for number in (2, 3):
        cluster.edit(number)
        cluster.until(lambda status: status.rollout.phase is Phase.STEP)
        rejected.append(cluster.status.canary)
        cluster.act("abort")
        cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    cluster.edit(2)
    cluster.tick()
    assert cluster.condition("Progressing").message.startswith(f"revision {rejected[0]} was rolled back")


def test_not_ready_names_the_revision_the_replicas_the_time_and_the_command_and_stays_the_same() -> None:
    cluster = Cluster(1)
    began = cluster.tick()
    message = cluster.condition("Ready").message
    assert re.match(rf"revision {began.stable}: 0 of [1-9]\d* replicas are ready since {TIME}; look at ", message)
    assert message.endswith(f"`kubectl get pods -n ns -l pagefleet.io/revision={began.stable}`")
    assert time_to_the_second(cluster.now) in message
    cluster.tick()
    assert cluster.condition("Ready").message == message, "a message with the present time would be written for ever"


def test_a_second_pause_names_the_first_one_its_person_and_its_time() -> None:
    cluster = started()
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    cluster.act("pause")
    paused_at = time_to_the_second(cluster.now)
    cluster.act("pause")
    assert cluster.answer() == ("Refused", True)
    assert cluster.status.action is not None
    assert cluster.status.action.message == (
        f"the rollout is paused already (action a1 by anna, since {paused_at}); "
        "resume it with `kubectl pagefleet rollout resume chat -n ns`"
    )


def test_a_missing_verdict_names_the_deadline_the_hold_the_step_and_the_requests() -> None:
    cluster = started(steps=[{"weight": 10, "hold": "10s"}])
    cluster.spec["rollout"]["guard"] |= {"onInconclusive": "rollback", "deadline": "60s"}
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    cluster.slices = None
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    rejection = cluster.status.rejected[-1]
    assert rejection.reason == "DeadlineExceeded"
    assert rejection.message.startswith("no verdict within 60 s after the hold of 10 s in step 1 of 1, with ")
    assert "no gateway answered the operator" in rejection.message


def test_a_step_that_ends_unproven_says_so_and_waits_for_its_requests() -> None:
    step = {"weight": 10, "hold": "10s"}
    cluster = started(steps=[step, step | {"weight": 20, "minRequests": 100_000}])
    cluster.spec["rollout"]["guard"] |= {"onInconclusive": "promote", "deadline": "60s"}
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    cluster.slices = None
    cluster.until(lambda status: status.rollout.step == 1)
    decision = next(entry for entry in cluster.status.decisions if entry.kind == "StepUnproven")
    assert decision.message.startswith(
        f"the step ends although nothing was shown about revision {cluster.status.canary} (onInconclusive: promote): no "
        "verdict within 60 s after the hold of 10 s in step 1 of 2, with "
    )
    for _ in range(60):
        cluster.tick()
    assert (cluster.status.rollout.step, cluster.status.rollout.phase) == (1, Phase.STEP)


def test_no_time_is_not_shown_as_one() -> None:
    assert time_to_the_second(0.0) == "an unknown time"
    assert time_to_the_second(float("nan")) == "an unknown time"
    assert time_to_the_second(1e15) == "an unknown time"
    assert time_to_the_second(1_763_723_055.9) == "2025-11-21 11:04:15 UTC"


def test_a_fault_with_two_names_in_turn_does_not_fill_the_log() -> None:
    """An image that cannot be pulled is ErrImagePull after each try, and ImagePullBackOff until the next one."""
    tried = PodFault("ErrImagePull", "rpc error: code = NotFound", "spec.engine.image")
    waits = PodFault("ImagePullBackOff", "Back-off pulling image", "spec.engine.image")
    cluster = Cluster(1)
    revision = cluster.tick().stable

    def decided(fault: PodFault | None) -> list[str]:
        cluster.wait()
        seen = cluster.observe()
        one = replace(seen.revisions[revision].pods[0], ready=False, fault=fault)
        reading = replace(seen.revisions[revision], pods=(one,))
        status = cluster.decided(replace(seen, revisions={revision: reading}))
        return [entry.kind for entry in status.decisions if entry.kind in (tried.reason, waits.reason)]

    for _ in range(3):
        told = [decided(tried), decided(waits)]
        assert cluster.condition("Degraded").reason == "ImagePullBackOff"
    assert told == [["ErrImagePull", "ImagePullBackOff"]] * 2
    decided(None)
    assert decided(tried) == ["ErrImagePull", "ImagePullBackOff", "ErrImagePull"], "it had gone, and is there again"
