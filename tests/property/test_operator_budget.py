"""Protects the size of a status: whatever legal specs, alerts, decisions and measurements it holds, it is within 256 KiB as the API
server stores it, a new decision and a new alert are in it, the snapshots of the revisions in use are complete, and its condition
names what was dropped and stays while the status is near the limit. A spec whose snapshot is too large is refused by its field."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sample_service import sample
from support.virtual.cluster import Cluster

from pagefleet_contract.slo import MAX_OBJECTIVES
from pagefleet_operator.alerts.payload import MAX_STORED, MAX_STORED_BYTES, bounded, merge, parse
from pagefleet_operator.domain.base.stored_size import MAX_MATCH_BYTES, MAX_SNAPSHOT_BYTES, size
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.slo.attainment import MAX_DAYS
from pagefleet_operator.domain.spec.parse import Spec, SpecErrors
from pagefleet_operator.domain.spec.parse import parse as parse_spec
from pagefleet_operator.domain.status import budget, codec
from pagefleet_operator.domain.status.budget import MAX_BYTES, TRIMMED
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.records.slo import DayRecord, ObjectiveRecord, SLORecord
from pagefleet_operator.domain.status.stage import MAX_REJECTIONS
from pagefleet_operator.domain.status.status import (
    ActionRecord,
    AlertRecord,
    BaselineRecord,
    Condition,
    DecisionRecord,
    Phase,
    PreviousRecord,
    Rejection,
    RevisionRecord,
    RolloutRecord,
    Status,
    VerdictRecord,
    Weight,
)
from pagefleet_operator.domain.status.turn import MAX_DECISIONS, MAX_MESSAGE

NOW = 1_800_000_000.0
DAYS = tuple(DayRecord(f"2026-11-{day % 30 + 1:02}", 10**9, 10**8) for day in range(MAX_DAYS))
LARGEST_SLO = SLORecord(
    NOW,
    NOW,
    90 * 86400.0,
    "-999.0%",
    tuple(
        ObjectiveRecord("n" * 63, f"{n}{'n' * 150}", "p" * 150, 10**10, 10**9, -9.9999, 1234.56, NOW, DAYS)
        for n in range(MAX_OBJECTIVES)
    ),
)
WIDE = st.sampled_from(["x", "<", "é", "\u2028", "\U0001f600", '"'])  # 1 to 6 bytes in etcd


def snapshot(length: int, letter: str = "x") -> dict[str, Any]:
    """The pod-affecting part of a spec, with one variable of the engine that fills it up."""
    spec = {
        name: part for name, part in sample()["spec"].items() if name in ("model", "engine", "resources", "placement")
    }
    width = size(letter) - 2
    characters = max(0, min(4000, (length - size(spec) - 60 * 40) // (60 * width)))
    env = [{"name": f"V{number}", "value": letter * characters} for number in range(60 if characters else 0)]
    return {**spec, "engine": {**(spec.get("engine") or {}), "env": env}}


@st.composite
def statuses(draw: st.DrawFn) -> Status:
    """Everything that a status may hold, up to its own limits."""
    letter, names = draw(WIDE), [f"{n:08x}" for n in range(draw(st.integers(2, 51)))]
    large = snapshot(draw(st.sampled_from([0, 4 << 10, MAX_SNAPSHOT_BYTES])), letter)
    stable, canary, previous = names[-1], names[0], names[len(names) // 2]
    labels = {f"l{n}": letter * 100 for n in range(draw(st.integers(0, 60)))}
    record = AlertRecord("", letter * 253, NOW, canary, NOW, {**labels, "severity": "page"})
    alerts = [bounded(record, {"severity": "page"}) for _ in range(draw(st.integers(0, MAX_STORED)))]
    histogram = {str(bucket): 1_000_000 for bucket in range(draw(st.integers(0, 1164)))}
    text = letter * MAX_MESSAGE
    verdict = VerdictRecord("Regressed", "ttft", 1.0, 1.0, 1.0, 1.0, 1.0, 9, 1.0, message=text)
    return Status(
        stable=stable,
        canary=canary,
        traffic=(Weight(stable, 100),),
        rollout=RolloutRecord(Phase.STEP, started=NOW - 9, verdict=verdict),
        revisions=tuple(RevisionRecord(name, float(n + 1), large) for n, name in enumerate(names)),
        rejected=tuple(
            Rejection(f"r{n}", "Gate", text, NOW, verdict) for n in range(draw(st.integers(0, MAX_REJECTIONS)))
        ),
        conditions=tuple(
            Condition(f"C{n}", "True", "R", letter * 2000, NOW, 1) for n in range(draw(st.integers(0, 12)))
        ),
        decisions=tuple(DecisionRecord(NOW, "K", text) for _ in range(draw(st.integers(0, MAX_DECISIONS)))),
        alerts=tuple(AlertRecord(f"f{n}", *_rest(one)) for n, one in enumerate(alerts)),
        previous=PreviousRecord(previous, NOW) if draw(st.booleans()) else None,
        slo=draw(st.sampled_from([None, LARGEST_SLO])),
        baseline=tuple(BaselineRecord(previous, "ttft", f"s{n}", histogram) for n in range(draw(st.integers(0, 16)))),
    )


def _rest(record: AlertRecord) -> tuple[Any, ...]:
    return record.name, record.starts_at, record.revision, record.received, record.labels


@settings(max_examples=150)
@given(statuses())
def test_every_legal_status_fits_and_what_is_in_use_is_complete(status: Status) -> None:
    fitted = budget.fit(status, (), NOW).status
    assert size(codec.dump(fitted)) <= MAX_BYTES
    stated = [one for one in fitted.conditions if one.type == TRIMMED]
    assert bool(stated) == (fitted != status)
    if stated:
        assert "dropped: " in stated[0].message and stated[0].status == "True"
    before = {record.hash: record for record in status.revisions}
    in_use = {status.stable, status.canary, status.previous.revision if status.previous else status.stable}
    for record in fitted.revisions:
        if record.hash in in_use:
            assert record.spec == before[record.hash].spec
        elif record.spec != before[record.hash].spec:
            assert record.hash in stated[0].message or len(stated[0].message) == 2000
    assert [one.message[:100] for one in fitted.decisions[-10:]] == [
        one.message[:100] for one in status.decisions[-10:]
    ]
    assert len(fitted.decisions) >= min(10, len(status.decisions))
    assert fitted.slo == status.slo, "counts that are lost are an error budget that is lost"
    again = budget.fit(fitted, fitted.conditions, NOW + 5).status
    assert size(codec.dump(again)) <= MAX_BYTES
    assert {one.hash for one in again.revisions if one.spec} == {one.hash for one in fitted.revisions if one.spec}, (
        "it settles"
    )


@settings(max_examples=40)
@given(statuses())
def test_a_decision_and_an_alert_are_recorded_in_a_full_status(status: Status) -> None:
    spec = {**sample()["spec"], "rollout": {"historyLimit": 50}}
    plan = decide(Observation("team", "chat", "uid", 3, spec, codec.load(codec.dump(status))), NOW)
    assert plan.document == codec.dump(plan.status)
    assert size(codec.dump(plan.status)) <= MAX_BYTES
    assert plan.status.decisions[-1].time == NOW if plan.events else True
    labels = {"alertname": "New", "severity": "page", "namespace": "team", "service": "chat", "revision": status.canary}
    raw = {"status": "firing", "labels": labels, "startsAt": "2026-01-01T00:00:00Z", "fingerprint": "new"}
    (alert,) = parse({"version": "4", "alerts": [raw]}, NOW - 10).alerts
    stored = budget.fit(merge(status, [bounded(alert.record, {"severity": "page"})]), status.conditions, NOW).status
    assert size(codec.dump(stored)) <= MAX_BYTES
    assert any(one.revision == status.canary and not one.resolved for one in stored.alerts), "one that decides is there"


def test_names_are_whole_in_a_full_status() -> None:
    """The id of an action was cut, so that the action was new at every decision; and the name that a service owns, which it lost."""
    names = ("a" * 8, "b" * 8, "c" * 8)
    large, text, served = snapshot(MAX_SNAPSHOT_BYTES), "\U0001f600" * MAX_MESSAGE, "n" * 128
    status = Status(
        stable=names[0],
        canary=names[1],
        traffic=(Weight(names[0], 100),),
        rollout=RolloutRecord(Phase.STEP, started=NOW - 9, paused=f"alert {'A' * 253}"),
        revisions=tuple(RevisionRecord(name, 1.0, large) for name in names),
        rejected=tuple(Rejection(f"r{n}", "Gate", text, NOW) for n in range(MAX_REJECTIONS)),
        conditions=(
            Condition("ModelNameOwned", "False", "ModelNameTaken", f"spec.model.servedName {served!r}: {text}", NOW, 1),
        ),
        decisions=tuple(DecisionRecord(NOW, "K", text) for _ in range(MAX_DECISIONS)),
        previous=PreviousRecord(names[2], NOW),
        action=ActionRecord("i" * 128, "skip", "Done", text, NOW),
        model_name=served,
        slo=LARGEST_SLO,
    )
    fitted = budget.fit(status, (), NOW).status
    assert fitted.action is not None and len(fitted.action.message) < len(text), "it was too large"
    assert (fitted.action.id, fitted.model_name, fitted.rollout.paused) == ("i" * 128, served, status.rollout.paused)
    assert fitted.conditions[0].message.startswith(f"spec.model.servedName {served!r}: ")


def _promoted(before: str, status: Status) -> bool:
    return status.rollout.phase is Phase.IDLE and bool(status.stable) and status.stable != before


def test_a_canary_is_rolled_out_with_specs_of_the_largest_size() -> None:
    """Ten revisions of 48 KiB: each is promoted, the status stays within its budget, and the oldest cannot be gone back to."""
    cluster = Cluster(5)
    cluster.spec["rollout"] = {"steps": [{"weight": 50, "hold": "10s"}], "guard": {}, "historyLimit": 50}
    for number in range(10):
        cluster.spec.update(snapshot(MAX_SNAPSHOT_BYTES - 1000, "x"))
        cluster.spec["engine"]["env"].append({"name": "REVISION", "value": str(number)})
        cluster.until(functools.partial(_promoted, cluster.status.stable))
        assert size(codec.dump(cluster.status)) <= MAX_BYTES
    whole = [record.hash for record in cluster.status.revisions if record.spec]
    assert 2 <= len(whole) < 10 and cluster.status.stable in whole
    (stated,) = [one for one in cluster.status.conditions if one.type == TRIMMED]
    assert "cannot be gone back to" in stated.message
    assert any(record.hash in stated.message for record in cluster.status.revisions if not record.spec)


@pytest.mark.parametrize("letter", ["x", "<"])
def test_a_snapshot_that_is_too_large_is_refused_by_its_field(letter: str) -> None:
    """`<` takes one byte in the manifest and six in etcd."""
    spec = {**sample()["spec"], **snapshot(MAX_SNAPSHOT_BYTES, letter)}
    assert isinstance(parse_spec(spec), Spec)
    spec["engine"]["env"].append({"name": "MORE", "value": letter * 4000})
    parsed = parse_spec(spec)
    assert isinstance(parsed, SpecErrors)
    assert [error.field for error in parsed.errors] == ["spec.engine"] and str(MAX_SNAPSHOT_BYTES) in parsed.message


def test_match_labels_that_are_too_large_are_refused_by_name() -> None:
    labels = {f"label{n}": "v" * 250 for n in range(MAX_MATCH_BYTES // 250)}
    parsed = parse_spec({**sample()["spec"], "rollout": {"alerts": {"matchLabels": labels}}})
    assert isinstance(parsed, SpecErrors)
    assert [error.field for error in parsed.errors] == ["spec.rollout.alerts.matchLabels"]


@settings(max_examples=100)
@given(st.dictionaries(st.text(min_size=1, max_size=400), st.text(max_size=400), max_size=60))
def test_an_alert_s_labels_are_bounded_and_those_that_decide_are_there(others: dict[str, str]) -> None:
    labels = {
        **others,
        "alertname": "A" * 1000,
        "severity": "page",
        "namespace": "ns",
        "service": "chat",
        "zone": "z" * 253,
    }
    raw = {"status": "firing", "labels": dict(list(labels.items())[-64:]), "startsAt": "2026-01-01T00:00:00Z"}
    (alert,) = parse({"version": "4", "alerts": [raw]}, 1.0).alerts
    stored = bounded(alert.record, {"zone": "z" * 253})
    assert stored.labels["zone"] == "z" * 253 and stored.labels["severity"] == "page"
    assert size({name: value for name, value in stored.labels.items() if name != "zone"}) <= MAX_STORED_BYTES
    assert len(stored.name) <= 253
    json.dumps(stored.labels)
