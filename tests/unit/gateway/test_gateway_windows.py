"""Protects /windows: a request counts once, in the slice it ended in; a closed slice never changes."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import msgspec

from pagefleet_contract.sketch import bucket_of
from pagefleet_gateway.measuring.windows import Outcome, Windows

ONE = Outcome("team", "chat", "a", "s", ended=1001.0, failed=False, ttft=0.2, e2e=0.9)


def slices(windows: Windows, now: float, since: float = 0.0) -> list[dict[str, object]]:
    document: list[dict[str, object]] = shown(windows, "chat", now, since)["slices"]
    return document


def shown(windows: Windows, service: str, now: float, since: float = 0.0) -> Any:
    return msgspec.json.decode(msgspec.json.encode(windows.document("team", service, since, now)))


def test_a_slice_shows_two_seconds_after_its_end_and_holds_what_was_measured() -> None:
    windows = Windows("gateway-1")
    windows.record(ONE, 1001.1)
    windows.record(replace(ONE, failed=True, ttft=None), 1001.2)
    windows.record(replace(ONE, ttft=None, e2e=0.0), 1001.3)
    assert slices(windows, 1003.9) == []
    assert slices(windows, 1004.0) == [
        {
            "start": 1000,
            "revision": "a",
            "stratum": "s",
            "requests": 3,
            "errors": 1,
            "ttft": {str(bucket_of(0.2)): 1},
            "e2e": {"0": 1, str(bucket_of(0.9)): 1},
        }
    ]
    assert shown(windows, "chat", 1004.0)["instance"] == "gateway-1"
    assert slices(windows, 1004.0, since=1002) == []
    assert shown(windows, "absent", 1004.0)["slices"] == []


def test_a_late_request_counts_in_the_present_slice_not_in_a_closed_one() -> None:
    windows = Windows("g")
    windows.record(ONE, 1001.0)
    before = slices(windows, 1004.0)
    windows.record(ONE, 1004.5)
    assert slices(windows, 1005.0) == before
    assert [piece["start"] for piece in slices(windows, 1008.0)] == [1000, 1004]


def test_a_clock_that_steps_back_changes_no_closed_slice() -> None:
    windows = Windows("g")
    windows.record(ONE, 1001.0)
    before = slices(windows, 1010.0)
    windows.record(ONE, 1001.0)
    assert slices(windows, 1001.0) == before
    assert [piece["start"] for piece in slices(windows, 1014.0)] == [1000, 1010]


def test_a_request_from_the_future_counts_now() -> None:
    windows = Windows("g")
    windows.record(replace(ONE, ended=5000.0), 1001.0)
    assert [piece["start"] for piece in slices(windows, 1004.0)] == [1000]


def test_slices_are_kept_for_an_hour() -> None:
    windows = Windows("g")
    windows.record(ONE, 1001.0)
    windows.sweep(4599.0)
    assert len(slices(windows, 4600.0)) == 1
    windows.sweep(4601.0)
    assert slices(windows, 4601.0) == []


def test_an_hour_of_a_service_takes_little_memory_whether_anybody_reads_it_or_not() -> None:
    windows = Windows("g")
    tracemalloc.start()
    try:
        for second in range(3600):
            windows.record_arrival(("team", "chat"), second)
            windows.record(replace(ONE, ended=second, ttft=0.1 + second / 9000, e2e=1 + second / 900), second)
            if second % 10 == 0:
                windows.sweep(second)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1800 * 600, f"{taken / 1800:.0f} bytes a slice"
    assert len(slices(windows, 3602.0)) == 2 * 1800
