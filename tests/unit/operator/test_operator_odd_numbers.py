"""Protects decisions from numbers that are none, where a tenant writes them: in an argument of the engine, in the result of a load test,
on a pod and on an engine's page. One of them made every decision about its service fail, without a condition."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.virtual.cluster import Cluster

from pagefleet_contract.engine_metrics import OURS
from pagefleet_operator.domain.rollout.loadtest import compare, parse_result
from pagefleet_operator.domain.spec.rollout import Guard
from pagefleet_operator.domain.spec.schema.rollout import OnInconclusive
from pagefleet_operator.kube import group_members, readings
from pagefleet_operator.metrics import cumulative
from pagefleet_operator.metrics.cumulative import Pod

GUARD = Guard((), 0.01, 0, OnInconclusive.HOLD, 60.0)
HUGE = 10**400
TTFT, FINISHED = OURS.ttft, OURS.finished[0]
DONE = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}


@pytest.mark.parametrize("number", ["\u00b2", "9" * 400, "-1", "1e3", ""])
def test_an_argument_that_is_no_number_is_left_to_the_engine(number: str) -> None:
    cluster = Cluster(1)
    cluster.spec["engine"]["args"] = [f"--max-num-seqs={number}"]
    cluster.spec["scaling"] = {"min": 1, "max": 4}
    cluster.until(lambda status: bool(status.traffic))
    assert cluster.condition("Ready").status == "True"


@pytest.mark.parametrize(
    "result",
    [
        {"requests": HUGE, "errors": 0},
        {"requests": HUGE, "errors": HUGE},
        {"requests": 1, "errors": 0, "ttft": {"\u00b2": 1}},
        {"requests": 1, "errors": 0, "e2e": {"300": HUGE}},
        {"requests": 1, "errors": 0, "seconds": HUGE},
    ],
)
def test_a_result_of_a_load_test_with_absurd_numbers_is_none_or_without_them(result: dict[str, Any]) -> None:
    parsed = parse_result(result)
    assert parsed in (None, {"requests": 1, "errors": 0})
    good = {"requests": 10, "errors": 0}
    assert compare(good, result, GUARD).failure == ""
    assert bool(compare(result, good, GUARD).failure) == (parsed is None)
    ended = {"state": {"terminated": {"exitCode": 0, "message": json.dumps(result)}}}
    reading = readings.load_test(DONE, [{"status": {"containerStatuses": [ended]}}])
    assert reading.result == parsed and bool(reading.failure) == (parsed is None)


@pytest.mark.parametrize("size", ["\u00b2", "9" * 5000])
def test_a_group_s_size_that_is_no_number_names_no_fault(size: str) -> None:
    labels = {group_members.GROUP_LABEL: "0", "pagefleet.io/revision": "a"}
    metadata = {
        "name": "a-0",
        "labels": labels,
        "annotations": {group_members.SIZE_ANNOTATION: size},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    leader = readings.pod({"metadata": metadata, "status": {}})
    assert group_members.with_fault_of_workers(leader, {"metadata": metadata}, [], leader.created + 1e6) == leader


def page(finished: str, slow: str) -> str:
    series = f'{TTFT}_bucket{{le="0.1"}} 0\n{TTFT}_bucket{{le="+Inf"}} {slow}\n'
    ended = "".join(f'{FINISHED}{{finished_reason="{reason}"}} {finished}\n' for reason in ("stop", "length"))
    return f"{series}{ended}"


@pytest.mark.parametrize(
    ("finished", "slow"), [("1.7e308", "9"), ("9", "1.7e308"), ("1e15", "1"), ("inf", "1"), ("-1", "1"), ("NaN", "1")]
)
def test_an_engine_s_page_of_absurd_counts_is_not_read(finished: str, slow: str) -> None:
    """Two finite numbers whose sum is not ended the reading of the service, and with it every decision."""
    usual = cumulative.parse(page("3", "6"), 1.0, OURS, ("ttft",))
    assert usual is not None and usual.finished == 6.0
    assert cumulative.parse(page(finished, slow), 2.0, OURS, ("ttft",)) is None
    largest = cumulative.parse(page("5e14", "1e15"), 2.0, OURS, ("ttft",))
    assert largest is not None
    piece = cumulative.difference(usual, largest, Pod("a", "", "r"), 0.0)
    assert piece is not None and piece.requests == 10**15 - 6
