"""Protects a new revision under a rollout block that leaves fields out: each absent field has the default that it has without
the block. Only `steps: []`, `guard: {}`, `latency: []` and `errors: {}` switch something off, condition Guarded shows it, and
a rollout that an operator without these defaults began goes on from where it is."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.virtual.cluster import Cluster

from pagefleet_cli.rollout.progress import progress
from pagefleet_operator.domain.base.revision import revision_hash
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.rollout import Guard, Rollout
from pagefleet_operator.domain.spec.schema import structure
from pagefleet_operator.domain.spec.schema.rollout import ROLLOUT
from pagefleet_operator.domain.status.status import Phase, Status

OTHERS = {
    "model": {"source": "file:///m"},
    "traffic": {"fallback": {"service": "small"}},
    "cost": {"perAcceleratorHour": 2},
}
ALERTS = {"matchLabels": {"severity": "page"}}
# A value of each field that differs from its default, and the typed fields that it decides.
FIELDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "steps": ([{"weight": 30}], ("steps",)),
    "guard": ({"deadline": "9m"}, ("guard",)),
    "afterPromotion": ({"watch": "3m", "keepPrevious": "4m"}, ("watch", "keep_previous")),
    "alerts": ({**ALERTS, "onAlert": "pause"}, ("alert_labels", "alerts_pause")),
    "historyLimit": (3, ("history",)),
    "route": ({"stickyBy": "header/x-session"}, ("route",)),
}
SIGNALS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "latency": ([{"signal": "e2e"}], ("latency",)),
    "errors": ({"maxRate": "3%", "source": "Engine"}, ("max_error_rate", "error_source")),
    "freePages": ({"min": "7%"}, ("free_pages",)),
    "fallbacks": ({"maxRate": "2%"}, ("max_fallback_rate",)),
    "cost": ({"maxIncrease": "25%"}, ("max_cost_increase",)),
    "throughput": ({"maxDecrease": "15%"}, ("max_throughput_decrease",)),
    "promql": ([{"name": "a", "query": "up", "min": 1}], ("gates",)),
    "warmupRequests": (9, ("warmup_requests",)),
    "onInconclusive": ("rollback", ("on_inconclusive",)),
    "deadline": ("9m", ("deadline",)),
}


def rollout(block: dict[str, Any] | None) -> Rollout:
    parsed = parse(OTHERS if block is None else {**OTHERS, "rollout": block})
    assert isinstance(parsed, Spec), parsed
    return parsed.rollout


def subsets(fields: dict[str, Any]) -> list[tuple[str, ...]]:
    return [chosen for size in range(len(fields) + 1) for chosen in itertools.combinations(fields, size)]


def values(typed: Rollout | Guard, names: tuple[str, ...]) -> list[object]:
    return [getattr(typed, name) for name in names]


@pytest.mark.parametrize("chosen", subsets(FIELDS), ids="+".join)
def test_every_absent_field_is_as_without_the_block(chosen: tuple[str, ...]) -> None:
    typed, default = rollout({name: FIELDS[name][0] for name in chosen}), rollout(None)
    for name, (_, decided) in FIELDS.items():
        same = values(typed, decided) == values(default, decided)
        assert same is (name not in chosen), name


@pytest.mark.parametrize("chosen", [one for one in subsets(SIGNALS) if one], ids="+".join)
def test_every_absent_signal_of_a_guard_is_as_in_the_default_guard(chosen: tuple[str, ...]) -> None:
    typed = rollout({"guard": {name: SIGNALS[name][0] for name in chosen}}).guard
    default = rollout(None).guard
    for name, (_, decided) in SIGNALS.items():
        same = values(typed, decided) == values(default, decided)
        assert same is (name not in chosen), name


def test_the_defaults() -> None:
    for block in (None, {}, {"alerts": ALERTS}):
        typed = rollout(block)
        assert [(step.weight, step.hold) for step in typed.steps] == [(10, 300.0), (50, 300.0)]
        assert [(one.signal, one.quantile, one.max_increase) for one in typed.guard.latency] == [("ttft", 0.95, 0.15)]
        assert (typed.guard.max_error_rate, typed.guard.warmup_requests, typed.guard.deadline) == (0.01, 5, 7200.0)
        assert typed.guard.on_inconclusive == "hold"


def test_errors_with_a_source_only_have_the_default_rate() -> None:
    guard = rollout({"guard": {"errors": {"source": "Engine"}}}).guard
    assert (guard.max_error_rate, guard.error_source) == (0.01, "Engine")


@pytest.mark.parametrize(
    ("block", "steps", "latency", "errors"),
    [
        ({"steps": []}, 0, 1, True),
        ({"guard": {}}, 2, 0, False),
        ({"guard": {"latency": []}}, 2, 0, True),
        ({"guard": {"errors": {}}}, 2, 1, False),
        ({"guard": {"latency": [], "errors": {}}}, 2, 0, False),
        ({"steps": [], "guard": {}}, 0, 0, False),
    ],
)
def test_doing_without_is_said(block: dict[str, Any], steps: int, latency: int, errors: bool) -> None:
    typed = rollout(block)
    assert (len(typed.steps), len(typed.guard.latency)) == (steps, latency)
    assert (typed.guard.max_error_rate is not None) is errors
    assert typed.guard.empty is (not latency and not errors)


def test_the_api_server_leaves_an_empty_guard_and_empty_steps_as_they_are_written() -> None:
    """A default of the schema within `guard` would make `guard: {}` and `guard: {deadline: 2h}` one text."""
    written = {"steps": [], "guard": {}}
    assert structure.filled(dict(written), ROLLOUT) == {**written, "historyLimit": 10}


@pytest.mark.parametrize(
    ("block", "status", "reason", "words"),
    [
        (None, "True", "Guarded", "is judged in its steps"),
        ({"alerts": ALERTS}, "True", "Guarded", "is judged in its steps"),
        ({"guard": {"latency": []}}, "True", "Guarded", "is judged in its steps"),
        ({"guard": {"latency": [], "errors": {}, "freePages": {"min": "1%"}}}, "True", "Guarded", "is judged"),
        ({"steps": [{"mirror": "10%", "hold": "1m"}]}, "True", "Guarded", "is judged in its steps"),
        ({"guard": {}}, "False", "NoGuard", "only people roll"),
        ({"guard": {}, "alerts": ALERTS}, "False", "NoGuard", "alerts and people roll"),
        ({"guard": {"latency": [], "errors": {}}}, "False", "NoGuard", "remove the field"),
        ({"steps": []}, "False", "NoSteps", "takes all traffic unjudged"),
        ({"steps": [{"pause": {}}]}, "False", "NoSteps", "takes all traffic unjudged"),
        ({"steps": [], "guard": {}}, "False", "NoGuard", "spec.rollout.guard"),
        ({"steps": 7}, "Unknown", "InvalidSpec", "spec.rollout.steps: must be an array"),
    ],
)
def test_the_condition(block: dict[str, Any] | None, status: str, reason: str, words: str) -> None:
    cluster = Cluster(1)
    cluster.spec = {**OTHERS} if block is None else {**OTHERS, "rollout": block}
    cluster.tick()
    guarded = cluster.condition("Guarded")
    assert (guarded.status, guarded.reason) == (status, reason)
    assert words in guarded.message


def test_the_command_line_shows_the_steps_that_apply() -> None:
    def steps(spec: dict[str, Any]) -> list[str]:
        return [step.text for step in progress({"metadata": {"name": "a"}, "spec": spec}, 0.0).steps]

    assert steps({"rollout": {"alerts": ALERTS}}) == steps({}) == ["10 % (hold 5m)", "50 % (hold 5m)"]
    assert steps({"rollout": {"steps": []}}) == []


def test_no_field_of_the_block_is_part_of_a_revision() -> None:
    bare = parse(OTHERS)
    assert isinstance(bare, Spec)
    for chosen in subsets(FIELDS):
        parsed = parse({**OTHERS, "rollout": {name: FIELDS[name][0] for name in chosen}})
        assert isinstance(parsed, Spec)
        assert revision_hash(parsed.raw) == revision_hash(bare.raw)


def begun(block: dict[str, Any], phase: Phase) -> Cluster:
    """A rollout in `phase` by an operator to which an absent field meant nothing: it is written so for this one."""
    cluster = Cluster(5)
    cluster.spec["rollout"] = {"steps": [], "guard": {}, **block}
    cluster.until(lambda status: bool(status.traffic))
    cluster.edit(2)
    cluster.until(lambda status: status.rollout.phase is phase)
    return cluster


def upgraded(cluster: Cluster, block: dict[str, Any]) -> Status:
    """The next decision, by this operator: no pod, revision or weight may change."""
    before, pods = cluster.status, {name: list(ready) for name, ready in cluster.pods.items()}
    cluster.spec["rollout"] = block
    after = cluster.decided(cluster.observe())
    assert (after.stable, after.canary, after.traffic) == (before.stable, before.canary, before.traffic)
    assert cluster.pods == pods
    return after


def test_an_upgrade_gives_a_canary_that_starts_the_default_steps() -> None:
    cluster = begun({"alerts": ALERTS}, Phase.STARTING)
    assert upgraded(cluster, {"alerts": ALERTS}).rollout.phase is Phase.STARTING
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    cluster.until(lambda _: cluster.weight() == 10)
    cluster.until(lambda _: cluster.weight() == 50)
    cluster.until(lambda status: not status.canary)
    assert not cluster.status.rejected


def test_an_upgrade_lets_a_promotion_go_on() -> None:
    cluster = begun({"alerts": ALERTS}, Phase.PROMOTING)
    canary = cluster.status.canary
    cluster.spec["rollout"] = {"alerts": ALERTS}
    cluster.until(lambda status: status.rollout.phase is not Phase.PROMOTING)
    assert (cluster.status.stable, cluster.weights()) == (canary, {canary: 100})
    assert not cluster.status.rejected


def test_an_upgrade_in_a_step_keeps_its_weight_and_judges_it() -> None:
    steps = {"steps": [{"weight": 20, "hold": "60s"}, {"weight": 40, "hold": "60s"}]}
    cluster = begun(steps, Phase.STEP)
    cluster.until(lambda _: cluster.weight() == 20)
    assert cluster.status.rollout.verdict is None
    after = upgraded(cluster, dict(steps))
    assert (after.rollout.phase, after.rollout.step) == (Phase.STEP, 0)
    cluster.factor = 5.0
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert cluster.status.rejected[-1].reason == "LatencyRegression"
