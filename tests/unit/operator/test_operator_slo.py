"""Protects error budgets: each request counts once, whichever operator leads and however often it restarts; what is left, the pace
and the end follow from the counts; a used-up budget is a condition, one Event with the owner, and a column; and a promise
bounds the guard and the scaler where the spec leaves them open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.virtual.cluster import Cluster

from pagefleet_contract.slo import objectives
from pagefleet_operator.domain.slo import report
from pagefleet_operator.domain.slo.attainment import MAX_KEYS, Attainment
from pagefleet_operator.domain.slo.budget import record
from pagefleet_operator.domain.slo.days import DAY_SECONDS
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.schema.slo import SLO
from pagefleet_operator.domain.status.gateway_slices import slices
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.records.slo import DayRecord, ObjectiveRecord, SLORecord
from pagefleet_operator.domain.status.turn import Journal

CHAT = {"name": "chat", "signal": "ttft", "seconds": 2, "quantile": 0.95}
UP = {"name": "up", "signal": "errors", "maxRate": "1%"}
KEY = "chat/ttft<=2/"
NOON = 20_000.5 * DAY_SECONDS
PROMISED = SLO(30 * DAY_SECONDS, objectives({"objectives": [CHAT]}))


def counted(start: float, requests: int, missed: int, key: str = KEY, instance: str = "g") -> Slice:
    return Slice(instance, start, 2.0, "", "", 0, 0, slo={key: (requests, missed)})


def kept(attainment: Attainment, before: SLORecord | None, now: float, slo: SLO = PROMISED) -> SLORecord:
    made = record(slo, attainment.reading(now), before, now)
    assert made is not None
    return made


def test_what_is_left_follows_from_the_counts_of_the_window() -> None:
    attainment = Attainment()
    attainment.add([counted(NOON, 1000, 20), counted(NOON - 3 * DAY_SECONDS, 1000, 10)])
    (chat,) = kept(attainment, None, NOON + 4).objectives
    assert (chat.requests, chat.missed, chat.left) == (2000, 30, 0.7)
    assert [(day.requests, day.missed) for day in chat.days] == [(1000, 10), (1000, 20)]
    shorter = replace(PROMISED, window=2 * DAY_SECONDS)
    (chat,) = kept(attainment, None, NOON + 4, shorter).objectives
    assert (chat.requests, chat.left) == (1000, 0.6)


def test_the_pace_of_the_last_hour_says_when_the_budget_is_gone() -> None:
    attainment = Attainment()
    attainment.add([counted(NOON - 10 * DAY_SECONDS, 10_000, 0), counted(NOON - 3540, 1000, 150)])
    (chat,) = kept(attainment, None, NOON).objectives
    assert chat.burn == 3.0
    assert chat.runs_out is not None
    # 400 more may miss, and 100 more than may did so in the 59 minutes that were counted.
    assert chat.runs_out - NOON == pytest.approx(400 / 100 * 3540)
    attainment.add([counted(NOON - 60, 9000, 0)])
    (chat,) = kept(attainment, None, NOON).objectives
    assert chat.burn == 0.3 and chat.runs_out is None


def test_a_restarted_operator_counts_nothing_twice_and_loses_nothing() -> None:
    first, all_slices = Attainment(), [counted(NOON + 2 * i, 10, 1) for i in range(600)]
    stored = None
    for place, piece in enumerate(all_slices[:400]):
        first.add([piece])
        stored = kept(first, stored, piece.start + 4)
        if place == 100:
            first = Attainment(stored)  # restarted: the gateways send their last hour again
            first.add(all_slices[: place + 1])
    assert stored is not None and stored.until < all_slices[399].start, "the record is written once a minute"
    second = Attainment(stored)
    second.add(all_slices)
    (chat,) = kept(second, None, all_slices[-1].start).objectives
    assert (chat.requests, chat.missed) == (6000, 600)


def test_a_changed_promise_keeps_its_counts_while_no_gateway_answers() -> None:
    """What was counted under the same key counts on, in the new window; another promise begins without counts."""
    attainment = Attainment()
    attainment.add([counted(NOON, 1000, 20), counted(NOON - 3 * DAY_SECONDS, 1000, 10)])
    stored = kept(attainment, None, NOON + 4)
    shorter = record(replace(PROMISED, window=2 * DAY_SECONDS), None, stored, NOON + 10)
    assert shorter is not None
    assert [(one.requests, one.missed, one.left) for one in shorter.objectives] == [(1000, 20, 0.6)]
    other = record(SLO(PROMISED.window, objectives({"objectives": [UP]})), None, stored, NOON + 10)
    assert other is not None
    assert [(one.name, one.requests, one.left) for one in other.objectives] == [("up", 0, None)]


def test_the_record_changes_once_a_minute_or_with_the_spec() -> None:
    attainment = Attainment()
    attainment.add([counted(NOON, 10, 0)])
    stored = kept(attainment, None, NOON)
    attainment.add([counted(NOON + 40, 10, 0)])
    assert kept(attainment, stored, NOON + 59) is stored
    tighter = SLO(PROMISED.window, objectives({"objectives": [{**CHAT, "quantile": 0.99}]}))
    assert kept(attainment, stored, NOON + 59, tighter).objectives[0].requests == 20
    later = kept(attainment, stored, NOON + 60)
    assert later.objectives[0].requests == 20, "also when no request has come since"
    assert kept(attainment, later, NOON + 300) is later, "nothing is written while nothing changes"


def test_the_counts_go_on_after_the_clock_was_set_back() -> None:
    attainment = Attainment()
    attainment.add([counted(NOON, 100, 0)])
    stored = kept(attainment, None, NOON)
    attainment.add([counted(NOON - 3500, 900, 500)])
    assert kept(attainment, stored, NOON - 3500).objectives[0].requests == 1000


def test_a_restart_after_the_clock_was_set_back_goes_on_with_the_counts() -> None:
    """What the wrong clock has counted counts as of now, and leaves the last hour and the window in time."""
    ahead = NOON + 400 * DAY_SECONDS
    attainment = Attainment()
    attainment.add([counted(ahead, 1000, 100)])
    stored = kept(attainment, None, ahead)
    seen_both = kept(attainment, stored, NOON)
    assert (seen_both.until, seen_both.objectives[0].burn) == (NOON, 2.0)
    assert kept(attainment, stored, NOON + 4000).objectives[0].burn is None
    restarted = Attainment(stored, NOON)
    assert not restarted.lacks(stored)
    restarted.add([counted(NOON + 2, 1000, 10)])
    (chat,) = kept(restarted, stored, NOON + 4).objectives
    assert (chat.requests, chat.missed, [day.day for day in chat.days]) == (2000, 110, ["2024-10-04"])
    assert chat.burn == 0.2, "its gateways have not sent what was counted before"
    (chat,) = kept(restarted, None, NOON + 31 * DAY_SECONDS).objectives
    assert chat.requests == 0


def test_the_last_hour_passes_and_old_days_leave_the_window_without_any_request() -> None:
    attainment = Attainment()
    attainment.add([counted(NOON, 100, 9)])
    stored = kept(attainment, None, NOON)
    assert stored.objectives[0].burn == 1.8
    stored = kept(attainment, stored, NOON + 3700)
    assert (stored.objectives[0].burn, stored.objectives[0].requests) == (None, 100)
    assert kept(attainment, stored, NOON + 31 * DAY_SECONDS).objectives[0].left is None


def test_another_bound_is_another_objective_and_begins_with_no_requests() -> None:
    attainment = Attainment()
    attainment.add([counted(NOON, 100, 90)])
    stored = kept(attainment, None, NOON)
    other = SLO(PROMISED.window, objectives({"objectives": [{**CHAT, "seconds": 3}]}))
    (chat,) = kept(attainment, stored, NOON, other).objectives
    assert (chat.requests, chat.left) == (0, None)


def test_days_beyond_the_longest_window_and_names_without_end_are_forgotten() -> None:
    attainment = Attainment()
    attainment.add([counted(NOON - 100 * DAY_SECONDS, 5, 1), counted(NOON, 5, 1)])
    attainment.add([counted(NOON, 1, 0, key=f"made-up-{i}") for i in range(1000)])
    reading = attainment.reading(NOON)
    assert reading is not None and len(reading.counts) == MAX_KEYS
    assert list(reading.counts[KEY].days.values()) == [(5, 1)]


def test_names_that_a_tenant_s_picker_makes_up_for_days_take_no_memory_for_ever() -> None:
    attainment = Attainment()
    for hour in range(100):
        now = NOON + hour * 3700.0
        attainment.add([counted(now, 5, 1), *(counted(now, 1, 0, key=f"made-up-{hour}-{i}") for i in range(1000))])
        reading = attainment.reading(now)
        assert reading is not None and len(reading.counts) <= MAX_KEYS
    (chat,) = kept(attainment, None, now).objectives
    assert (chat.requests, chat.missed) == (500, 100)


def test_stored_counts_that_cannot_be_are_not_continued() -> None:
    days = (
        DayRecord("2024-10-04", 5, 6),
        DayRecord("soon", 5, 1),
        DayRecord("2024-10-04", -5, 0),
        DayRecord("2024-10-04", 5, 1),
    )
    stored = SLORecord(NOON - 9, NOON - 9, PROMISED.window, "", (ObjectiveRecord("chat", KEY, "", days=days),))
    reading = Attainment(stored).reading(NOON)
    assert reading is not None and reading.counts[KEY].days == {20_000: (5, 1)}


def test_counts_of_windows_that_cannot_be_are_left_out() -> None:
    piece = {"start": 100, "revision": "", "stratum": "", "arrivals": 1, "requests": 0, "errors": 0}
    odd = {"a": [1, 2], "b": [-1, -2], "c": [1], "d": "x", "e": [True, False], "f": [3, 1]}
    answer = {"version": 3, "instance": "g", "now": 104.0, "sliceSeconds": 2, "slices": [{**piece, "slo": odd}]}
    (read,) = slices(answer)
    assert read.slo == {"f": (3, 1)}
    (plain,) = slices({**answer, "slices": [{**piece, "slo": 7}]})
    assert plain.slo == {}


class Promising(Cluster):
    """A cluster whose gateways count two objectives; `missing` of 20 requests in two seconds are late."""

    def __init__(self) -> None:
        super().__init__(seed=5)
        self.spec["slo"] = {"objectives": [CHAT, UP]}
        self.spec["owner"] = {"team": "chat-platform", "contact": "#chat-oncall"}
        self.attainment, self.missing, self.events = Attainment(), 0, list[tuple[str, str]]()

    def observe(self) -> Observation:
        start = self.now - 2
        self.attainment.add(
            [replace(counted(start, 20, self.missing), slo={KEY: (20, self.missing), "up/errors/": (20, 0)})]
        )
        return replace(super().observe(), slo=self.attainment.reading(self.now))

    def apply(self, plan: Any) -> None:
        super().apply(plan)
        self.events += [(event.reason, event.message) for event in plan.events]


def test_a_used_up_budget_is_a_condition_one_event_with_the_owner_and_a_column() -> None:
    cluster = Promising()
    cluster.until(lambda status: status.slo is not None and status.slo.objectives[0].requests > 0)
    assert cluster.condition("SLOMet").status == "True"
    assert cluster.status.slo is not None and cluster.status.slo.left == "100.0%"
    cluster.missing = 10
    cluster.until(lambda _: cluster.condition("SLOMet").status == "False")
    gone = cluster.condition("SLOMet")
    assert gone.reason == "BudgetExhausted"
    assert gone.message.startswith("chat (95% of ttft within 2 s): its error budget is used up, ")
    assert "up (" not in gone.message, "the other objective is met"
    for _ in range(20):
        cluster.tick()
    (told,) = [message for reason, message in cluster.events if reason == "SLOBudgetExhausted"]
    assert told.endswith("(owner: chat-platform, #chat-oncall)")
    cluster.missing = 0
    cluster.until(lambda _: cluster.condition("SLOMet").status == "True", ticks=2_000)
    assert [reason for reason, _ in cluster.events].count("SLOBudgetRestored") == 1


def test_without_objectives_there_is_no_record_and_no_condition() -> None:
    cluster = Promising()
    cluster.until(lambda status: status.slo is not None)
    del cluster.spec["slo"]
    cluster.tick()
    assert cluster.status.slo is None
    assert "SLOMet" not in {one.type for one in cluster.status.conditions}


def spec(**more: Any) -> Spec:
    parsed = parse({"model": {"source": "hf://a/b"}, **more})
    assert isinstance(parsed, Spec), parsed
    return parsed


def test_a_promise_bounds_the_guard_and_aims_the_scaler_where_the_spec_leaves_them_open() -> None:
    promised = {"slo": {"objectives": [CHAT]}}
    given = spec(**promised)
    assert [entry.max_seconds for entry in given.rollout.guard.latency] == [2.0]
    assert given.scaling.target.ttft == 2.0
    own = {
        "rollout": {"guard": {"latency": [{"signal": "ttft", "maxSeconds": 9}]}},
        "scaling": {"target": {"ttft": {"p95": "7s"}}},
    }
    given = spec(**promised, **own)
    assert [entry.max_seconds for entry in given.rollout.guard.latency] == [9]
    assert given.scaling.target.ttft == 7.0
    token = {"name": "pace", "signal": "tpot", "quantile": 0.95, "seconds": 0.1}
    given = spec(slo={"objectives": [CHAT, token]}, scaling={"target": {"ttft": {"p95": "7s"}}})
    assert (given.scaling.target.ttft, given.scaling.target.tpot) == (7.0, 0.1)


@pytest.mark.parametrize(
    "objective",
    [
        {**CHAT, "quantile": 0.99},
        {**CHAT, "signal": "e2e"},
        {**CHAT, "priority": "live"},
    ],
)
def test_a_promise_about_something_else_bounds_nothing(objective: dict[str, Any]) -> None:
    traffic = {"priorities": [{"name": "live", "header": {"x-tier": "live"}}]}
    given = spec(slo={"objectives": [objective]}, traffic=traffic)
    assert [entry.max_seconds for entry in given.rollout.guard.latency] == [None]
    assert given.scaling.target.ttft is None


GIVING_UP = {"objectives": [CHAT | {"priority": "live"}, UP], "atRisk": {"shed": ["batch"], "maxOutputTokens": 256}}
CLASSES = {"priorities": [{"name": name, "header": {"x-tier": name}} for name in ("live", "batch")]}


def promised(**more: Any) -> SLO:
    found = parse({"model": {"source": "file:///m"}, "slo": GIVING_UP | more, "traffic": CLASSES})
    assert isinstance(found, Spec), found.message
    return found.slo


@pytest.mark.parametrize(
    ("earlier", "missed", "at_risk"),
    [
        ((100_000, 4600), 120, True),  # 8 % of the budget is left, and the last hour misses twice as often as it may
        ((100_000, 4600), 40, False),  # little is left, and the last hour keeps the promise
        ((100_000, 1000), 120, False),  # much is left, for days
        ((100_000, 5100), 120, True),  # used up: what is still missed counts
        ((1000, 0), 90, True),  # 6 are left at this pace, for minutes
        ((150, 0), 9, False),  # a few misses are chance
    ],
)
def test_a_promise_is_at_risk_when_it_is_missed_and_little_is_left(
    earlier: tuple[int, int], missed: int, at_risk: bool
) -> None:
    slo, key = promised(), "chat/ttft<=2/live"
    attainment = Attainment()
    attainment.add(
        [counted(NOON - 10 * DAY_SECONDS, *earlier, key), counted(NOON - 3500, 1200 if missed > 9 else 30, missed, key)]
    )
    made = kept(attainment, None, NOON, slo)
    assert made.at_risk == (("chat",) if at_risk else ())
    assert (made.shed, made.max_output_tokens) == ((("batch",), 256) if at_risk else ((), 0))
    assert kept(attainment, None, NOON, replace(slo, at_risk=None)).at_risk == ()


def test_a_class_that_is_given_up_asks_for_nothing_itself() -> None:
    slo = promised(objectives=[CHAT | {"priority": "batch"}])
    attainment = Attainment()
    attainment.add([counted(NOON - 3500, 1200, 900, "chat/ttft<=2/batch")])
    assert kept(attainment, None, NOON, slo).at_risk == ()


def test_a_promise_at_risk_is_said_and_an_event_at_its_beginning_and_end() -> None:
    one = ObjectiveRecord("chat", KEY, "95% of ttft within 2 s", 101_200, 4720, 0.067, 2.0)
    risked = SLORecord(NOON, NOON, 30 * DAY_SECONDS, "6.7%", (one,), ("chat",), ("batch",), 256)
    safe = replace(risked, at_risk=(), shed=(), max_output_tokens=0)
    ((kind, status, reason, message),) = report.conditions(risked)
    assert (kind, status, reason) == ("SLOMet", "True", "AtRisk")
    assert message.endswith(
        "for chat the gateways refuse requests of priority batch and give answers at most 256 new tokens"
    )
    assert report.conditions(safe)[0][2] == "WithinBudget"

    def announced(now: SLORecord, before: SLORecord | None) -> list[str]:
        journal = Journal(NOON)
        report.announce(now, before, journal)
        return [event.reason for event in journal.events]

    assert announced(risked, safe) == announced(risked, None) == ["SLOAtRisk"]
    assert announced(risked, risked) == announced(safe, safe) == []
    assert announced(safe, risked) == ["SLONoLongerAtRisk"]
