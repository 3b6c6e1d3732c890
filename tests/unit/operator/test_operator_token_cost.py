"""Protects the signal `cost` of the guard: a canary whose output tokens clearly cost more at equal load is rolled back, with both
costs and the limit; one whose tokens cost as much is not, whatever its replicas cost; an idle stable leaves the question open."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.virtual.cluster import Cluster
from support.virtual.traffic import SLICE

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.throughput import Prices
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.rollout import Guard
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.status import Phase, Status

GUARD = Guard((), None, 5, "hold", 600.0, max_cost_increase=0.2)
SAME, DOUBLE = Prices(2.5, 2.5, 4), Prices(2.5, 5.0, 4)
TOKENS = 50  # of an answer


def traffic(seed: int, slower: float, share: float = 0.3, slices: int = 200, idle: bool = False) -> list[Slice]:
    """Ten answers a slice, unless the stable is idle; a token takes 20 ms on the stable, and more in waves of load."""
    source, pieces = random.Random(seed), []
    for index in range(slices):
        wave = 1.5 if index % 50 < 15 else 1.0
        for revision, weight, factor in (("s", 0.0 if idle else 1 - share, 1.0), ("c", share, slower)):
            histogram: dict[int, int] = {}
            requests = max(0, round(source.gauss(10 * weight, 1))) if weight else 0
            for _ in range(requests):
                bucket = sketch.bucket_of(0.02 * wave * factor * source.lognormvariate(0, 0.2))
                histogram[bucket] = histogram.get(bucket, 0) + 1
            latency = {"tpot": histogram} if histogram else {}
            tokens = TOKENS * requests if requests else None
            pieces.append(Slice("g", index * SLICE, SLICE, revision, "s", requests, 0, latency, tokens=tokens))
    return pieces


def judge(pieces: list[Slice] | None, prices: Prices | None = SAME, **more: object) -> Verdict | None:
    slices = None if pieces is None else tuple(pieces)
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=slices)
    return guard.assess(observation, GUARD, Comparison("s", "c", 0.0, 1000.0, prices=prices, **more))


@pytest.mark.parametrize(("slower", "prices"), [(1.4, SAME), (0.7, DOUBLE), (1.0, Prices(2.5, 3.5, 4))])
def test_a_canary_whose_tokens_cost_40_percent_more_is_rolled_back_with_both_costs(
    slower: float, prices: Prices
) -> None:
    for seed in range(5):
        verdict = judge(traffic(seed, slower), prices)
        assert verdict is not None
        assert (verdict.outcome, verdict.reason) == (Outcome.REGRESSED, "Cost"), verdict.record.message
    message = verdict.record.message
    # 7 answers of 50 tokens in two seconds by four replicas at 2.5 an hour: 10 / 3600 / 175 for one token.
    assert " on the canary, 0.015" in message or " on the canary, 0.016" in message
    assert message.startswith("cost: 1,000 output tokens cost 0.02")
    assert "for like prompts +" in message and "%, limit +20%; dearer than that in " in message
    assert message.endswith(f"a replica costs {prices.canary:g} an hour, one of the stable 2.5; source Gateway")
    assert verdict.record.statistic == pytest.approx(0.4, abs=0.06) and verdict.record.limit == 0.2
    assert [(one.signal, one.outcome) for one in verdict.signals] == [("cost", "Regressed")]


@pytest.mark.parametrize(
    ("slower", "share", "prices"),
    [
        (1.0, 0.3, SAME),
        (1.0, 0.1, SAME),
        (0.5, 0.3, DOUBLE),  # twice the accelerators, twice as fast
        (2.0, 0.3, Prices(5.0, 2.5, 4)),
        (1.1, 0.3, SAME),
        (1.0, 0.3, Prices(0.0, 0.0, 4)),
    ],
)
def test_a_canary_whose_tokens_cost_about_as_much_never_is(slower: float, share: float, prices: Prices) -> None:
    for seed in range(15):
        verdict = judge(traffic(seed, slower, share), prices)
        assert verdict is not None and verdict.reason == "", verdict.record.message


def test_an_idle_stable_leaves_it_open_whatever_the_canary_costs() -> None:
    for prices in (SAME, DOUBLE, Prices(2.5, 100.0, 4)):
        verdict = judge(traffic(1, 3.0, idle=True), prices)
        assert verdict is not None
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert verdict.record.message.startswith("cost: 0 of the 6 blocks needed")


def test_without_prices_or_measurements_it_is_inconclusive_and_names_the_signal() -> None:
    unknown = judge(traffic(1, 3.0), None)
    assert unknown is not None and unknown.outcome is Outcome.INCONCLUSIVE
    assert unknown.record.message.startswith("cost: the price of a replica is not known")
    silent = judge(None)
    assert silent is not None and silent.record.message.startswith("cost: no measurement to judge by")
    without_tokens = [replace(piece, tokens=None) for piece in traffic(1, 1.0)]
    verdict = judge(without_tokens)
    assert verdict is not None and verdict.outcome is Outcome.PASSED
    assert "what 1,000 output tokens of the stable cost is not known" in verdict.record.message


def test_it_is_not_judged_without_a_concurrent_stable() -> None:
    assert judge(traffic(1, 3.0), after_promotion=True) is None
    assert judge(traffic(1, 3.0), mirrored=True) is None


class Generating(Cluster):
    """A cluster whose gateways measure tokens: one takes as long on either revision."""

    def _slice(self, revision: str, requests: int) -> Slice:
        piece = super()._slice(revision, requests)
        return replace(piece, latency={"tpot": piece.latency["ttft"]}, tokens=TOKENS * requests)


@pytest.mark.parametrize(("accelerators", "reason"), [(1, ""), (2, "Cost")])
def test_replicas_are_priced_by_the_specs_that_they_were_made_from(accelerators: int, reason: str) -> None:
    cluster = Generating(1)
    cluster.spec["cost"] = {"perAcceleratorHour": 2.5}
    cluster.spec["resources"] = {"accelerator": {"name": "nvidia.com/gpu", "count": 1}}
    cluster.spec["rollout"] = {
        "steps": [{"weight": 50, "hold": "10m"}],
        "guard": {"latency": [], "errors": {}, "cost": {"maxIncrease": "20%"}},
    }
    cluster.until(lambda status: status.rollout.phase is Phase.IDLE)
    cluster.edit(4)
    cluster.spec["resources"]["accelerator"]["count"] = accelerators
    cluster.until(lambda status: status.rollout.phase in (Phase.ROLLED_BACK, Phase.PROMOTING))
    assert [one.reason for one in cluster.status.rejected] == [reason] * bool(reason)
    verdict = cluster.status.rollout.verdict or cluster.status.rejected[0].verdict
    assert verdict is not None and verdict.signal == "cost"
    assert f"a replica costs {2.5 * accelerators:g} an hour, one of the stable 2.5" in verdict.message


@pytest.mark.parametrize(("given", "increase"), [("20%", 0.2), ("150%", 1.5), ("-1%", None)])
def test_the_accepted_increase_is_read(given: str, increase: float | None) -> None:
    guarded = {"guard": {"cost": {"maxIncrease": given}}}
    parsed = parse({"model": {"source": "file:///m"}, "cost": {"perAcceleratorHour": 2}, "rollout": guarded})
    assert isinstance(parsed, Spec) is (increase is not None)
    if isinstance(parsed, Spec):
        assert parsed.rollout.guard.max_cost_increase == pytest.approx(increase)
    else:
        assert "spec.rollout.guard.cost.maxIncrease" in str(parsed)
