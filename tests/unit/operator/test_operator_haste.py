"""Protects the fast path of an alert: where it decides by itself nothing is measured for it, and its service is decided
before all services that are late already."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.sample_service import sample

from pagefleet_operator.controller import Queue
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.rollout import alerts
from pagefleet_operator.domain.spec import parse
from pagefleet_operator.domain.spec.parse import Spec
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.status import AlertRecord, Phase, RolloutRecord, Status, Weight
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.web.own_metrics import Metrics

PAGE = {"severity": "page"}
FIRING = AlertRecord("f", "Bad", 10.0, "c", 10.0, PAGE)
IGNORE, ACT = {"withoutRevision": "ignore"}, {"withoutRevision": "act"}
STEP = Status(
    stable="s", canary="c", traffic=(Weight("s", 50), Weight("c", 50)),
    rollout=RolloutRecord(Phase.STEP, started=5.0), alerts=(FIRING,),
)  # fmt: skip


def rollout(**alert_fields: object) -> Rollout:
    raw = sample()["spec"]
    raw["rollout"] = {"alerts": {"matchLabels": PAGE, **alert_fields}}
    parsed = parse.parse(raw)
    assert isinstance(parsed, Spec)
    return parsed.rollout


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (STEP, True),
        (replace(STEP, alerts=()), False),
        (replace(STEP, alerts=(replace(FIRING, resolved=True),)), False),
        (replace(STEP, alerts=(replace(FIRING, revision="other"),)), False),
        (replace(STEP, alerts=(replace(FIRING, labels={}),)), False),
        (replace(STEP, alerts=(replace(FIRING, received=4.0),)), False),
        (replace(STEP, rollout=RolloutRecord(Phase.ROLLING_BACK, started=5.0)), False),
        (replace(STEP, canary="", rollout=RolloutRecord(Phase.ROLLED_BACK)), False),
        (replace(STEP, stable="c", canary="", rollout=RolloutRecord(Phase.WATCHING, started=5.0)), True),
        (replace(STEP, stable="c", canary="", rollout=RolloutRecord(Phase.IDLE, started=5.0)), False),
    ],
)
def test_an_alert_decides_when_it_is_about_the_revision_under_judgement(status: Status, expected: bool) -> None:
    assert alerts.decides(status, {}, rollout()) is expected
    assert not alerts.decides(status, {}, rollout(onAlert="pause")), "a pause goes on being judged"


def test_an_invalid_spec_loses_no_alert() -> None:
    assert alerts.decides(STEP, {"rollout": {"alerts": {"matchLabels": PAGE}}}, None)
    assert not alerts.decides(STEP, {"rollout": {"alerts": {"matchLabels": PAGE, "onAlert": "pause"}}}, None)


@pytest.mark.parametrize(("choice", "counts"), [({}, False), (IGNORE, False), (ACT, True)], ids=str)
def test_an_alert_that_names_no_revision_counts_only_where_the_spec_asks_for_it(
    choice: dict[str, str], counts: bool
) -> None:
    """A service's alert is true of every revision at a peak: it must not roll a good canary back."""
    everybody = replace(STEP, alerts=(replace(FIRING, revision=""),))
    assert alerts.decides(everybody, {}, rollout(**choice)) is counts
    assert alerts.decides(everybody, {"rollout": {"alerts": {"matchLabels": PAGE, **choice}}}, None) is counts
    raw = {**sample()["spec"], "rollout": {"steps": [{"weight": 50, "hold": "1h"}], "alerts": {"matchLabels": PAGE}}}
    raw["rollout"]["alerts"] |= choice
    unusable = {**raw, "scaling": "many"}
    for spec in (raw, unusable):
        assert (given_up(spec, "").phase is Phase.ROLLED_BACK) is counts
        assert given_up(spec, "the canary").phase is Phase.ROLLED_BACK


def given_up(raw: dict[str, Any], about: str) -> RolloutRecord:
    """The rollout of a canary in a step after one decision with a firing alert, which names it or nothing."""
    usable = {**raw, "scaling": {"min": 1}}
    target = decide(Observation("ns", "chat", "uid", 1, usable, Status()), 1.0).status.stable
    pod = PodReading("p", True, False, 0.0, 1.0)
    firing = replace(FIRING, revision=target if about else "")
    status = replace(STEP, canary=target, traffic=(Weight("s", 50), Weight(target, 50)), alerts=(firing,))
    readings = {name: RevisionReading(name, 1, (pod,)) for name in ("s", target)}
    return decide(Observation("ns", "chat", "uid", 1, raw, status, revisions=readings), 20.0).status.rollout


def test_an_alert_rolls_back_without_any_measurement() -> None:
    raw = sample()["spec"]
    raw["rollout"] = {"alerts": {"matchLabels": PAGE}}
    bare = Observation("ns", "chat", "uid", 1, raw, Status())
    target = decide(bare, 1.0).status.stable
    pod = PodReading("p", True, False, 0.0, 1.0)  # ready, as the watch says; nothing asked of it
    observation = replace(
        bare,
        status=replace(
            STEP,
            canary=target,
            traffic=(Weight("s", 50), Weight(target, 50)),
            alerts=(replace(FIRING, revision=target),),
        ),
        revisions={name: RevisionReading(name, 1, (pod,)) for name in ("s", target)},
    )
    plan = decide(observation, 20.0)
    assert plan.status.rollout.phase is Phase.ROLLED_BACK
    assert plan.status.traffic == (Weight("s", 100),)


async def test_what_is_first_is_done_before_what_is_late() -> None:
    done, all_done = list[ServiceKey](), asyncio.Event()

    async def work(key: ServiceKey) -> None:
        done.append(key)
        if len(done) == 21:
            all_done.set()

    queue = Queue(work, Metrics())
    for number in range(20):
        queue.add(("ns", f"late-{number:02}"), delay=-100.0 + number)
    queue.add(("ns", "alerted"), first=True)
    running = asyncio.create_task(queue.run())
    async with asyncio.timeout(5):
        await all_done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert done[0] == ("ns", "alerted")
    assert done[1] == ("ns", "late-00")
