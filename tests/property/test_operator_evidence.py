"""Protects a rollout from bad input: one outlier decides nothing, impossible or missing numbers promote no revision, a
payload that is no alert changes nothing, and however alerts are grouped, repeated, reordered and resolved, one revision
is rolled back once. Rows 17 to 20 of the reliability table."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.virtual.cluster import TICK, Cluster
from support.virtual.traffic import lognormal, outcome, traffic

from pagefleet_contract import sketch
from pagefleet_contract.names import is_namespace, is_object_name
from pagefleet_operator.alerts.payload import MAX_STORED, PayloadError, merge, parse
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.status import gateway_slices
from pagefleet_operator.domain.status.observation import GateReading, Slice
from pagefleet_operator.domain.status.status import AlertRecord, Phase, Status

NAMES = st.sampled_from(
    ["instance", "sliceSeconds", "slices", "start", "requests", "errors", "revision", "ttft", "stratum"]
)
NUMBERS = st.integers(-5, 10**9) | st.floats() | st.sampled_from([math.nan, math.inf, -math.inf])
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=8), inner, max_size=6),
    max_leaves=12,
)
HISTOGRAMS = JUNK | st.dictionaries(st.text("0123456789-", max_size=6), st.integers(-3, 50) | NUMBERS, max_size=4)
ANSWERS = JUNK | st.fixed_dictionaries(
    {"instance": st.text(max_size=3) | JUNK, "sliceSeconds": st.just(TICK) | JUNK, "now": NUMBERS,
     "slices": JUNK | st.lists(st.fixed_dictionaries({
         "start": NUMBERS, "requests": NUMBERS, "errors": NUMBERS, "stratum": st.text(max_size=2) | JUNK,
         "revision": st.sampled_from(["STABLE", "CANARY", ""]) | JUNK, "ttft": HISTOGRAMS}), max_size=6)},
)  # fmt: skip


@settings(max_examples=60)
@given(st.integers(0, 99), st.floats(0, 1), st.floats(10.0, 1e5), st.integers(1, 3))
def test_one_outlier_never_decides(seed: int, place: float, factor: float, copies: int) -> None:
    """Row 17, on traces of identical revisions that are not convicted without it. `copies`: told by so many gateways."""
    slices = traffic(seed, lognormal, slices=60)
    before = outcome(slices)
    at = math.floor(place * 59) * 2.0
    slow = {"ttft": {sketch.bucket_of(0.1 * factor): 1}}
    odd = [Slice(f"o{n}", at, 2.0, "c", "s", 1, 0, slow) for n in range(copies)]
    after = outcome(sorted([*slices, *odd], key=lambda piece: piece.start))
    assert (after is Outcome.REGRESSED) is (before is Outcome.REGRESSED)


@pytest.mark.parametrize("start", [1e12, 1e200, 1.7e308])
def test_slices_that_claim_to_be_of_the_far_future_decide_nothing(start: float) -> None:
    slices = [Slice("o", start, 2.0, name, "s", 100, 0, {"ttft": {sketch.bucket_of(0.1): 100}}) for name in "cs"]
    assert outcome(slices) is Outcome.INCONCLUSIVE


@settings(max_examples=25)
@given(
    st.integers(0, 2**32),
    st.lists(st.none() | ANSWERS, min_size=1, max_size=4),
    st.none() | NUMBERS,
    st.sampled_from(["hold", "rollback"]),
)
def test_impossible_numbers_promote_no_revision(
    seed: int, answers: list[Any], number: float | None, inconclusive: str
) -> None:
    """Row 18: the gateways' answers are anything JSON (and NaN) may hold, or do not come; so does the gate's number."""
    cluster = Cluster(seed)
    rollout = cluster.spec["rollout"]
    rollout["steps"] = [{"weight": 10, "hold": "10s"}, {"weight": 50, "hold": "10s"}]
    rollout["guard"].update(onInconclusive=inconclusive, deadline="40s")
    rollout["guard"]["promql"] = [{"name": "gate", "query": "up", "max": 1}]
    cluster.until(lambda status: bool(status.traffic))
    stable = cluster.status.stable
    cluster.edit(2)
    cluster.until(lambda status: bool(status.canary) and status.rollout.phase is not Phase.STARTING)
    canary, first = cluster.status.canary, cluster.weight()
    value = number if number is not None and number <= 1 else math.nan  # anything that does not convict by itself
    cluster.gates = {"gate": GateReading("gate", value)}
    for tick in range(40):
        text = json.dumps(answers[tick % len(answers)]).replace("STABLE", stable).replace("CANARY", canary)
        heard = json.loads(text)
        cluster.slices = None  # the virtual gateways measure nothing of their own
        cluster.wait()
        cluster.slices = None if heard is None else list(gateway_slices.slices(heard))
        cluster.apply(decide(cluster.observe(), cluster.now))
        assert cluster.status.stable == stable, "promoted without a measurement"
        assert cluster.weight() <= first, "went on without a measurement"


@settings(max_examples=300)
@given(JUNK | st.fixed_dictionaries({"version": st.just("4"), "alerts": JUNK | st.lists(st.fixed_dictionaries({
    "status": st.sampled_from(["firing", "resolved"]) | JUNK,
    "labels": JUNK | st.dictionaries(st.sampled_from(["namespace", "service", "revision", "severity"]), st.text(max_size=5)),
    "startsAt": st.just("2026-01-01T00:00:00Z") | JUNK}), max_size=4)}))  # fmt: skip
def test_a_payload_without_alerts_is_refused_or_matches_no_service(payload: Any) -> None:
    """Row 19: an error that says where, or alerts that name a service and hold bounded texts; never anything else."""
    try:
        found = parse(payload, 1.0)
    except PayloadError as error:
        assert str(error)
        return
    for alert in found.alerts:
        assert is_namespace(alert.namespace)
        assert is_object_name(alert.service)
        assert not alert.record.revision or is_object_name(alert.record.revision)
        assert len(alert.record.fingerprint) <= 64
        assert all(len(value) <= 253 for value in alert.record.labels.values())


@pytest.mark.parametrize("kept", [1, MAX_STORED])
@settings(max_examples=25)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 40))
def test_a_flood_rolls_one_revision_back_once(kept: int, seed: int, groups: list[int], others: int) -> None:
    """Row 20: `kept` true alerts among `others` about older revisions, each repeated, in any order and grouping, resolved
    copies after them; decisions fall between the groups."""
    cluster, source = Cluster(seed), random.Random(seed)
    cluster.spec["rollout"]["steps"] = [{"weight": 10, "hold": "1h"}]
    cluster.until(lambda status: bool(status.traffic))
    cluster.edit(2)
    cluster.until(lambda status: bool(status.canary) and status.rollout.phase is Phase.STEP)
    canary, now = cluster.status.canary, cluster.now
    page = {"severity": "page"}
    true = [AlertRecord(f"t{n}", "Bad", now, canary, now, page) for n in range(kept)]
    old = [AlertRecord(f"o{n}", "Old", now, "older", now, page) for n in range(others)]
    flood = [*true, *old] * 3
    source.shuffle(flood)
    flood += [replace(one, resolved=True) for one in source.sample(true, len(true) // 2)]
    while flood:
        size = source.choice(groups)
        batch, flood = flood[:size], flood[size:]
        cluster.status = merge(cluster.status, batch)
        assert len(cluster.status.alerts) <= MAX_STORED
        told = {(one.fingerprint, one.starts_at) for one in cluster.status.alerts}
        assert len(told) == len(cluster.status.alerts), "an alert is kept twice"
        again: Status = merge(cluster.status, batch)
        assert again == cluster.status, "the same once more is no change"
        cluster.tick()
    for _ in range(30):
        cluster.tick()
    assert [(one.hash, one.reason) for one in cluster.status.rejected] == [(canary, "Alert")]
    assert cluster.status.rollout.phase is Phase.ROLLED_BACK
    assert cluster.weight() == 0
