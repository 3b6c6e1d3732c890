"""Protects /windows: an event counts once, in the slice in which the gateway learns of it; a closed slice never changes;
a wall clock that jumps moves no slice; memory is bounded however many strata there are."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import msgspec

from pagefleet_contract.sketch import bucket_of
from pagefleet_contract.strata import STRATA
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.measuring.slices import End, Outcome
from pagefleet_gateway.measuring.windows import Windows
from pagefleet_gateway.picking.ledger import Group

GROUP = Group("team", "chat", "a", "0-63")
ONE = Outcome(GROUP, End.ANSWERED, age=0.9, e2e=0.9, ttft=0.2)


def slices(windows: Windows, now: float, since: float = 0.0) -> list[dict[str, object]]:
    document: list[dict[str, object]] = shown(windows, "chat", now, since)["slices"]
    return document


def shown(windows: Windows, service: str, now: float, since: float = 0.0) -> Any:
    return msgspec.json.decode(msgspec.json.encode(windows.document("team", service, since, now)))


def test_a_slice_shows_at_its_end_and_holds_what_was_measured() -> None:
    windows = Windows("gateway-1")
    windows.record_end(ONE, 1001.1)
    windows.record_end(replace(ONE, end=End.FAILED, ttft=None), 1001.2)
    windows.record_end(replace(ONE, ttft=None, e2e=0.0), 1001.3)
    assert slices(windows, 1001.9) == []
    assert slices(windows, 1002.0) == [
        {
            "start": 1000,
            "revision": "a",
            "stratum": "0-63",
            "started": 0,
            "requests": 3,
            "errors": 1,
            "ttft": {str(bucket_of(0.2)): 1},
            "e2e": {"0": 1, str(bucket_of(0.9)): 1},
            "unmeasuredRunning": {str(bucket_of(0.9)): 1},
        }
    ]
    document = shown(windows, "chat", 1004.0)
    assert (document["instance"], document["version"], document["now"]) == ("gateway-1", 3, 1004.0)
    assert slices(windows, 1004.0, since=1002) == []
    assert shown(windows, "absent", 1004.0)["slices"] == []


def test_earlier_slices_than_those_whose_counts_are_asked_for_are_only_the_load_adjusted_ones() -> None:
    windows = Windows("g")
    for second in (1000.0, 1002.0, 1004.0):
        windows.record_arrival(("team", "chat"), second)
        windows.record_end(replace(ONE, expected=0.2, load="64-180", streams=True), second)
    document = windows.document("team", "chat", 1000.0, 1006.0, 1004.0)
    pieces = msgspec.json.decode(msgspec.json.encode(document))["slices"]
    assert [(piece["start"], "load" in piece) for piece in pieces] == [
        (1000, True), (1002, True), (1004, False), (1004, False), (1004, True),
    ]  # fmt: skip
    everything = slices(windows, 1006.0)
    assert len(everything) == 9 and [piece for piece in everything if piece in pieces] == pieces
    assert slices(windows, 1006.0, since=1004.0) == pieces[2:]


def test_a_closed_slice_never_changes() -> None:
    windows = Windows("g")
    windows.record_end(ONE, 1001.0)
    before = slices(windows, 1002.0)
    windows.record_end(ONE, 1002.5)
    assert slices(windows, 1003.0) == before
    assert [piece["start"] for piece in slices(windows, 1008.0)] == [1000, 1002]


def test_a_steady_clock_that_stands_still_or_steps_back_changes_no_closed_slice() -> None:
    windows = Windows("g")
    windows.record_end(ONE, 1001.0)
    before = slices(windows, 1010.0)
    windows.record_end(ONE, 1001.0)
    assert slices(windows, 1001.0) == before
    assert [piece["start"] for piece in slices(windows, 1014.0)] == [1000, 1010]


def test_slices_are_named_by_unix_time_through_one_offset() -> None:
    windows = Windows("g", offset=1_700_000_000.25)
    windows.record_end(ONE, 7.0)
    document = shown(windows, "chat", 9.0)
    assert document["now"] == 1_700_000_009.25
    assert [piece["start"] for piece in document["slices"]] == [1_700_000_006]


def test_slices_are_kept_for_an_hour() -> None:
    windows = Windows("g")
    windows.record_end(ONE, 1001.0)
    finish(windows.sweep(4599.0))
    assert len(slices(windows, 4600.0)) == 1
    finish(windows.sweep(4601.0))
    assert slices(windows, 4601.0) == []


def test_an_hour_of_a_service_takes_little_memory_whether_anybody_reads_it_or_not() -> None:
    windows = Windows("g")
    tracemalloc.start()
    try:
        for second in range(3600):
            windows.record_arrival(("team", "chat"), second)
            windows.record_end(replace(ONE, ttft=0.1 + second / 9000, e2e=1 + second / 900), second)
            if second % 10 == 0:
                finish(windows.sweep(second))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1800 * 600, f"{taken / 1800:.0f} bytes a slice"
    assert len(slices(windows, 3602.0)) == 2 * 1800


def test_many_strata_stay_within_the_bound_and_the_newest_slices_stay() -> None:
    """The service that stores most gives up its oldest slices; a small one beside it loses none."""
    windows = Windows("g", max_bytes=200_000)
    small = replace(ONE, group=Group("team", "small", "a", STRATA[0]))
    for second in range(1200):
        for revision in ("a", "b"):
            for stratum in STRATA:
                windows.record_end(replace(ONE, group=Group("team", "chat", revision, stratum)), second)
        if second % 100 == 0:
            windows.record_end(small, second)
        finish(windows.sweep(second))
    text = msgspec.json.encode(windows.document("team", "chat", 0.0, 1202.0))
    assert 150_000 < len(text) < 220_000
    starts = sorted({piece["start"] for piece in slices(windows, 1202.0)})
    assert starts[-1] == 1198
    assert starts == list(range(int(str(starts[0])), 1200, 2)), "no gap: only the oldest are gone"
    assert len(shown(windows, "small", 1202.0)["slices"]) == 12
