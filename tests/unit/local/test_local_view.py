"""Protects what a failed scene shows: the conditions, the latest decisions and the scaler's record, and no histograms."""

from __future__ import annotations

from pagefleet_local.fleet.view import View

STATUS = {
    "stable": "a",
    "traffic": [{"revision": "a", "weight": 100}],
    "revisions": [{"hash": "a", "ready": 2, "desired": 2}],
    "conditions": [{"type": "Scaling", "status": "True", "reason": "SignalsMissing", "message": "no gateway answers"}],
    "decisions": [
        {"time": f"2026-11-26T10:00:{second:02}Z", "kind": "Scaled", "message": f"{second} -> {second + 1} replicas"}
        for second in range(10)
    ],
    "scaling": [{"revision": "a", "startup": 12.5}],
    "baseline": [{"revision": "a", "histogram": {"338": 4}}],
}


def test_a_report_says_what_the_operator_did_last_and_why() -> None:
    lines = View({"status": STATUS}).report().splitlines()
    assert lines[0].endswith("replicas a 2/2")
    assert lines[1] == "Scaling=True SignalsMissing: no gateway answers"
    assert [line.split(" ", 1)[1] for line in lines[2:10]] == [
        f"Scaled: {number} -> {number + 1} replicas" for number in range(2, 10)
    ]
    assert lines[10:] == ['scaling {"revision": "a", "startup": 12.5}']


def test_a_service_without_a_status_has_one_line() -> None:
    assert View({}).report() == "starting | no traffic | replicas 0"
