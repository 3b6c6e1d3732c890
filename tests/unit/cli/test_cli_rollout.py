"""Protects what `pagefleet rollout` and `status` make of an InferenceService: where it stands, why it does not move,
what differs between revisions, what is asked of the operator, and errors that name their cause."""

from __future__ import annotations

import copy
import datetime
import json
from typing import Any

import pytest
from rich.console import Console

from pagefleet_cli.base.errors import CommandError, api_error, unknown_service, unreachable
from pagefleet_cli.base.tables import details, services
from pagefleet_cli.base.words import binary, milliseconds, span
from pagefleet_cli.rollout.actions import Action, Answer, annotation, answer
from pagefleet_cli.rollout.live import picture
from pagefleet_cli.rollout.progress import End, Place, progress, sentence
from pagefleet_cli.rollout.revisions import changes, chosen, coloured, difference, history, pair, revisions
from pagefleet_cli.rollout.why import log, pending, waiting
from pagefleet_contract.names import ACTION_ANNOTATION

NOW = datetime.datetime(2026, 1, 2, 3, 10, 0, tzinfo=datetime.UTC).timestamp()
OLD, NEW = "aaaa1111", "bbbb2222"


def at(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(NOW - seconds, datetime.UTC).isoformat().replace("+00:00", "Z")


def service(phase: str = "Step", **rollout: Any) -> dict[str, Any]:
    verdict = {"outcome": "Inconclusive", "signal": "ttft p95", "statistic": 0.04, "message": "ttft p95: 120 of 200 requests",
               "samples": 120, "stableSeconds": 0.2, "canarySeconds": 0.21, "expectedSeconds": 240.0}  # fmt: skip
    return {
        "metadata": {"name": "chat", "namespace": "team-a", "generation": 2, "creationTimestamp": at(7200)},
        "spec": {
            "model": {"source": "hf://org/model", "servedName": "m"},
            "rollout": {
                "steps": [
                    {"weight": 10, "hold": "5m", "minRequests": 200}, {"pause": {}}, {"pause": {"duration": "10m"}},
                    {"mirror": "10%"}, {"loadTest": {}}, {"weight": 50},
                ]
            },
        },
        "status": {
            "observedGeneration": 2,
            "stable": OLD,
            "canary": NEW,
            "traffic": [{"revision": OLD, "weight": 90}, {"revision": NEW, "weight": 10}],
            "rollout": {"phase": phase, "step": 0, "since": at(60), "verdict": verdict, **rollout},
            "revisions": [
                {"hash": OLD, "created": at(7200), "ready": 2, "desired": 2, "spec": {"engine": {"args": ["--a"]}, "model": {"maxLength": 1}}},
                {"hash": NEW, "created": at(600), "ready": 1, "desired": 1, "spec": {"engine": {"args": ["--b"]}, "model": {"maxLength": 1}}},
            ],
            "decisions": [{"time": at(60), "kind": "StepAdvanced", "message": "step 1 of 6: revision bbbb2222 gets 10 % of requests"}],
        },
    }  # fmt: skip


VERDICTS = [
    {
        "signal": "ttft", "stratum": "s", "outcome": "Passed", "stableSamples": 900, "canarySamples": 110, "stableP50": 0.1,
        "canaryP50": 0.11, "stableP95": 0.2, "canaryP95": 0.21, "stableLow": 0.19, "stableHigh": 0.22, "canaryLow": 0.18,
        "evidence": 0.3, "message": "fine",
    }
]  # fmt: skip


def shown(renderable: Any) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_a_step_under_way_is_marked_with_what_is_left() -> None:
    shown_progress = progress(service(), NOW)
    assert [step.place for step in shown_progress.steps] == [Place.PRESENT, *[Place.COMING] * 5]
    assert (shown_progress.held, shown_progress.remaining, shown_progress.expected, shown_progress.end) == (
        60,
        240,
        240,
        End.UNDER_WAY,
    )
    assert progress(service(step=2), NOW).remaining == 540
    assert progress(service(step=1), NOW).remaining is None
    line = sentence(shown_progress)
    assert "step 1 of 6: 10 % (hold 5m, 200 requests), held 1m00s" in line
    assert f"stable {OLD} 90 %, canary {NEW} 10 %" in line
    assert "next move in 4m00s at the earliest" in line


def test_time_that_the_operator_watched_counts_rather_than_the_clock() -> None:
    shown_progress = progress(service(held=30.0, ticked=at(2), since=at(5000)), NOW)
    assert shown_progress.held == pytest.approx(32)


def test_the_picture_has_both_revisions_of_each_signal_with_their_intervals() -> None:
    text = shown(picture(progress(service(verdicts=VERDICTS), NOW)))
    assert "[>] 1: 10 %" in text
    assert "ttft (s)" in text
    assert "190 ms .. 220 ms" in text
    assert "180 ms .. no bound yet" in text
    assert "Inconclusive  ttft p95: 120 of 200 requests" in text
    assert "fine" not in text
    assert "fine" in shown(picture(progress(service(verdicts=VERDICTS), NOW), wide=True))
    one = shown(picture(progress(service(), NOW)))  # an operator without verdicts[]
    assert "210 ms" in one


@pytest.mark.parametrize(
    ("phase", "end"),
    [("Idle", End.PROMOTED), ("Watching", End.PROMOTED), ("RolledBack", End.ROLLED_BACK), ("RollingBack", End.UNDER_WAY),
     ("Promoting", End.UNDER_WAY), ("Starting", End.UNDER_WAY)],
)  # fmt: skip
def test_an_end_is_an_end_of_the_spec_as_it_stands(phase: str, end: End) -> None:
    assert progress(service(phase), NOW).end is end
    changed = service(phase)
    changed["metadata"]["generation"] = 3
    assert progress(changed, NOW).end is End.UNDER_WAY


def test_an_object_without_status_is_shown() -> None:
    bare = service()
    del bare["status"], bare["spec"]["rollout"]
    shown_progress = progress(bare, NOW)
    assert [step.text for step in shown_progress.steps] == ["10 % (hold 5m)", "50 % (hold 5m)"]  # the default rollout
    assert "no traffic" in sentence(shown_progress)
    assert "team-a/chat" in shown(picture(shown_progress))
    assert any("is it running?" in reason for reason in waiting(bare, NOW))
    assert log(bare, NOW) == []
    shown(services([bare], datetime.datetime.now(datetime.UTC), wide=True))
    assert details(bare)


@pytest.mark.parametrize("status", ["True", "False"])
def test_a_service_without_a_guard_is_seen_in_the_table(status: str) -> None:
    document = service()
    document["status"]["conditions"] = [{"type": "Guarded", "status": status, "reason": "NoGuard", "message": ""}]
    header, row = shown(services([document], datetime.datetime.now(datetime.UTC))).splitlines()
    assert row[header.index("GUARDED") :].split()[0] == status


def test_prefill_pods_are_shown_beside_their_revision_and_waited_for() -> None:
    document = service("Starting")
    document["status"]["revisions"][1]["prefill"] = {"ready": 1, "desired": 3}
    state = progress(document, NOW)
    for text in ("".join(shown(table) for table in details(document)), shown(picture(state))):
        (line,) = [line.split() for line in text.splitlines() if "prefill pods" in line]
        assert line == [NEW, "prefill", "pods", "1", "3"]
    assert any("1 of 1 pods and 1 of 3 prefill pods ready" in reason for reason in waiting(document, NOW))


def test_spares_are_shown_beside_the_revisions() -> None:
    document = service()
    document["status"]["spares"] = {"revision": "a" * 8, "desired": 2, "asleep": 1, "awake": 1}
    assert "spares, 1 asleep" in "".join(shown(table) for table in details(document))


def reasons(document: dict[str, Any]) -> str:
    return " ".join(waiting(document, NOW))


def test_a_step_says_everything_it_waits_for() -> None:
    text = reasons(service(requests=120))
    assert "held for another 4m00s (1m00s of 5m00s)" in text
    assert "needs 200 canary requests and has 120" in text
    assert "no verdict yet (Inconclusive): ttft p95: 120 of 200 requests; expected in about 4m00s" in text
    assert "pagefleet rollout resume chat -n team-a" in reasons(service(step=1))
    assert "paused by alert Slow" in reasons(service(paused="alert Slow"))
    paused = service(paused="action 7")
    assert "paused by action 7" in reasons(paused)
    paused["metadata"]["annotations"] = {ACTION_ANNOTATION: annotation(Action.PAUSE, "7", "ann")}
    assert "paused by ann" in reasons(paused)
    over = service(since=at(9999), requests=200)
    over["status"]["rollout"]["verdict"]["outcome"] = "Passed"
    assert "ends at the operator's next decision" in reasons(over)


def test_every_phase_says_why_nothing_moves() -> None:
    assert "there is nothing to do" in reasons(service("Idle"))
    assert "1 of 1 pods ready" in reasons(service("Starting"))
    assert "stable aaaa1111 has 2" in reasons(service("Promoting"))
    assert "still judged" in reasons(service("Watching"))
    assert "2 of 5 pods are ready" in reasons(service("RollingBack", needed=5))
    back = service("RolledBack")
    back["status"]["rejected"] = [{"hash": NEW, "reason": "LatencyRegression", "message": "ttft p95: 9 % of 400"}]
    assert "LatencyRegression: ttft p95: 9 % of 400" in reasons(back)
    assert "rollout retry" in reasons(back)


def test_alerts_degradation_and_unanswered_actions_are_reasons() -> None:
    document = service()
    document["status"]["alerts"] = [
        {"name": "Slow", "startsAt": at(9), "revision": NEW},
        {"name": "Old", "resolved": True},
    ]
    document["status"]["conditions"] = [
        {"type": "Degraded", "status": "True", "reason": "ImagePull", "message": "no such image"}
    ]
    document["metadata"]["annotations"] = {ACTION_ANNOTATION: annotation(Action.SKIP, "1", "ann")}
    text = reasons(document)
    assert "Alert Slow fires" in text
    assert "Old" not in text
    assert "ImagePull: no such image" in text
    assert "has not answered skip (asked by ann)" in text
    document["status"]["action"] = {"id": "1", "outcome": "Done"}
    assert pending(document) is None
    document["metadata"]["annotations"] = {ACTION_ANNOTATION: "not json"}
    assert pending(document) is None


def test_decisions_are_sentences_newest_last() -> None:
    assert log(service(), NOW) == [
        "2026-01-02 03:09:00 (1m00s ago)  StepAdvanced: Step 1 of 6: revision bbbb2222 gets 10 % of requests."
    ]


def test_an_action_is_the_contract_s_annotation() -> None:
    assert json.loads(annotation(Action.UNDO, "7", "ann", OLD)) == {
        "id": "7",
        "action": "undo",
        "by": "ann",
        "revision": OLD,
    }
    assert "revision" not in json.loads(annotation(Action.PROMOTE, "7", "ann"))
    document = service()
    assert answer(document, "7") is None
    document["status"]["action"] = {"id": "6", "outcome": "Done", "message": "old"}
    assert answer(document, "7") is None
    document["status"]["action"] = {"id": "7", "outcome": "Refused", "message": "no"}
    assert answer(document, "7") == Answer(False, "no")


def test_history_says_what_each_revision_changed() -> None:
    text = shown(history(service(), datetime.datetime.fromtimestamp(NOW, datetime.UTC)))
    assert "engine.args: ['--a'] -> ['--b']" in text
    assert text.index(OLD) < text.index(NEW)
    assert changes({"a": {"b": 1}}, {"a": {"c": 2}}) == ["a.b: 1 -> unset", "a.c: unset -> 2"]
    assert changes({"e": [{"name": "x"}]}, {"e": [{"name": "y"}]}) == ["e[0].name: x -> y"]


def test_a_diff_is_between_stable_and_canary_unless_told() -> None:
    document = service()
    old, new = pair(document, None, None)
    assert difference(old, new) == [
        f"--- {OLD}", f"+++ {NEW}", "@@ -1,5 +1,5 @@", " engine:", "   args:", "-  - --a", "+  - --b", " model:", "   maxLength: 1",
    ]  # fmt: skip
    assert coloured(difference(old, new)).plain.count("\n") == 8
    assert [one["hash"] for one in pair(document, "bbbb", None)] == [NEW, OLD]
    assert [one["hash"] for one in pair(document, "aa", "bb")] == [OLD, NEW]
    idle = copy.deepcopy(document)
    del idle["status"]["canary"]
    assert [one["hash"] for one in pair(idle, None, None)] == [OLD, NEW]
    assert difference(old, old) == []
    with pytest.raises(CommandError, match=f"no stored revision: {OLD}, {NEW}"):
        chosen(revisions(document), "cc")
    with pytest.raises(CommandError, match="no two revisions"):
        pair({"status": {}}, None, None)


def status_body(message: str, name: str = "") -> str:
    return json.dumps({"kind": "Status", "message": message, "details": {"name": name} if name else {}})


@pytest.mark.parametrize(
    ("code", "body", "sentence_part"),
    [
        (403, status_body('inferenceservices is forbidden: User "u" cannot list'), 'User "u" cannot list'),
        (404, "404 page not found\n", "the CRD is not installed"),
        (404, status_body("not found", "chat"), "chat: not found"),
        (401, "", "log in again"),
        (409, status_body("conflict"), "somebody else"),
        (422, status_body("spec.model is missing"), "spec.model is missing"),
        (500, "<html>", "answers 500 Reason"),
    ],
)
def test_an_answer_of_the_api_server_becomes_a_sentence(code: int, body: str, sentence_part: str) -> None:
    assert sentence_part in str(api_error(code, "Reason", body, "chat"))


def test_the_innermost_cause_of_a_lost_connection_is_named() -> None:
    inner = OSError("HTTPConnection(host='h'): Failed to establish a new connection: [Errno 111] Connection refused")
    outer = RuntimeError("Max retries exceeded")
    outer.__cause__ = inner
    assert (
        str(unreachable("https://h", outer))
        == "the API server https://h does not answer: [Errno 111] Connection refused"
    )


def test_an_unknown_service_is_told_near_names() -> None:
    known = [("team-a", "chat"), ("team-a", "embed"), ("team-b", "search")]
    assert "did you mean chat?" in str(unknown_service("caht", "team-a", known))
    assert "it exists in team-b" in str(unknown_service("search", "team-a", known))
    assert "it has chat, embed" in str(unknown_service("zzz", "team-a", known))
    assert "the namespace has none" in str(unknown_service("zzz", "team-c", known))


def test_numbers_are_short() -> None:
    assert [span(value) for value in (None, 0.4, 59, 125, 11_400, 180_000)] == [
        "unknown",
        "0s",
        "59s",
        "2m05s",
        "3h10m",
        "2d2h",
    ]
    assert [milliseconds(value) for value in (None, 0.00085, 0.0123, 0.4804, 1.254)] == [
        "-",
        "0.85 ms",
        "12.3 ms",
        "480 ms",
        "1.25 s",
    ]
    assert [binary(value) for value in (512, 131072, 16_060_522_496)] == ["512 B", "128 KiB", "14.96 GiB"]


def test_a_table_shows_brackets_as_they_are() -> None:
    """A message is text: what looks like rich's markup in it is neither swallowed nor an error."""
    document = service()
    document["status"]["decisions"][0]["message"] = "image [bold]x[/nothing] is missing"
    assert "[bold]x[/nothing]" in "".join(shown(table) for table in details(document))
    document["status"]["rollout"]["verdict"]["message"] = "[/red] limit"
    assert "[/red] limit" in shown(picture(progress(document, NOW)))


def test_the_capacity_plan_is_shown_beside_what_is_measured() -> None:
    document = service()
    known = {"name": "perRequest.kvTokens", "revision": "a" * 8, "planned": 1200.0, "measured": 1850.0, "low": 1800.0,
             "high": 1900.0, "finding": "AbovePlan"}  # fmt: skip
    unknown = {"name": "perReplica.outputTokensPerSecond", "revision": "a" * 8, "planned": 1500.0, "low": 400.0}
    document["status"]["capacityPlan"] = {
        "assumptions": [known, unknown, {"name": "requestsPerSecond", "planned": 12.0}]
    }
    lines = [line for table in details(document) for line in shown(table).splitlines()]
    rows = [line.split() for line in lines if "per" in line]
    assert ["perRequest.kvTokens", "a" * 8, "1,200", "1,850", "1,800", "and", "1,900", "AbovePlan"] in rows
    assert [
        "perReplica.outputTokensPerSecond", "a" * 8, "1,500", "400", "and", "any", "too", "little", "data",
    ] in rows  # fmt: skip
    assert any(line.split() == ["requestsPerSecond", "12", "too", "little", "data"] for line in lines)
