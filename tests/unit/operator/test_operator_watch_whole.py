"""Protects the watches after a promotion of a service whose clients do not stream: whole answers are recorded and judged where nobody
waits for a first token, in `afterPromotion.watch` and, without output tokens, always."""

from __future__ import annotations

from typing import Any

import pytest
from support.virtual.cluster import TICK
from support.virtual.watched import Watched

from pagefleet_contract.sketch import bucket_of
from pagefleet_operator.domain.analysis.watching import load_records
from pagefleet_operator.domain.analysis.watching.thinning import thinned
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import Phase

STEPS = [{"weight": 50, "hold": "400s"}]


class Whole(Watched):
    """A cluster whose clients wait for whole answers of `seconds`, of `tokens` output tokens each; 10 requests a second."""

    def __init__(self, tokens: int | None = None, latency: list[dict[str, Any]] | None = None, **rollout: Any) -> None:
        super().__init__()
        guard = {"errors": {"maxRate": "1%"}, **({} if latency is None else {"latency": latency})}
        self.spec["rollout"] = {"steps": STEPS, "guard": guard, **rollout}
        self.tokens, self.seconds, self.silent = tokens, 0.1, False

    def measure(self, engines: bool = True) -> None:
        self.was_ready |= {name for name, pods in self.pods.items() if any(at <= self.now for at in pods)}
        assert self.slices is not None
        for entry in self.status.traffic if not self.silent else ():
            count = entry.weight // 5
            if not count:
                continue
            timed = self.timed(count, self.seconds)
            at = "g", self.now - TICK, TICK, entry.revision
            tokens = None if self.tokens is None else self.tokens * count
            counted = Slice(*at, "64-180", count, 0, latency={"e2e": timed.ttft}, tokens=tokens, started=count)
            load = {"64-180": timed}
            found = [counted, Slice(*at, "", 0, 0, load=load, whole=True)]
            self.slices += found
        if len(self.slices) > 2400:
            self.slices = thinned(self.slices, self.now)

    def promoted(self) -> tuple[str, str]:
        """Let the first revision serve for a while, and promote another; return both."""
        self.until(lambda status: status.rollout.phase is Phase.IDLE and bool(status.traffic))
        first = self.status.stable
        self.minutes(12)
        self.edit(7)
        self.until(lambda status: status.stable != first, ticks=900)
        return first, self.status.stable

    def minutes(self, count: float) -> None:
        for _ in range(round(6 * count)):
            self.tick()


@pytest.mark.parametrize("tokens", [None, 100], ids=["embeddings", "texts"])
def test_a_regression_of_whole_answers_after_the_promotion_rolls_back(tokens: int | None) -> None:
    """Nothing was judged: the record and the watch knew first tokens only, which nobody waits for."""
    cluster = Whole(tokens, afterPromotion={"watch": "30m"}, watch={})
    first, second = cluster.promoted()
    cluster.minutes(5)
    assert cluster.status.stable == second and cluster.status.rollout.verdict is not None
    assert (cluster.status.rollout.verdict.signal, cluster.status.rollout.verdict.outcome) == ("e2e p95", "Passed")
    cluster.seconds = 0.3
    cluster.until(lambda status: status.stable == first or status.rollout.phase is Phase.ROLLED_BACK, ticks=90)
    (rejection,) = cluster.status.rejected
    assert (rejection.hash, rejection.reason) == (second, "LatencyRegression")
    assert "e2e p95" in rejection.message


def test_a_good_revision_of_whole_answers_stays() -> None:
    cluster = Whole(afterPromotion={"watch": "30m", "keepPrevious": "1h"})
    _, second = cluster.promoted()
    cluster.minutes(70)
    assert cluster.status.stable == second and not cluster.status.rejected
    assert cluster.condition("Regressed").reason == "AsRecorded"


def test_whole_answers_without_tokens_are_watched_always() -> None:
    cluster = Whole()
    _, second = cluster.promoted()
    cluster.minutes(10)
    assert cluster.condition("Regressed").reason == "AsRecorded"
    cluster.seconds = 0.3
    cluster.until(lambda _: cluster.condition("Regressed").status == "True", ticks=60)
    assert f"e2e p95 of revision {second}" in cluster.condition("Regressed").message
    cluster.silent = True
    cluster.minutes(20)
    assert cluster.condition("Regressed").status == "True", "a night without requests proves nothing"
    cluster.silent, cluster.seconds = False, 0.1
    cluster.until(lambda _: cluster.condition("Regressed").status == "False", ticks=180)
    assert cluster.reported.count("Regressed") == cluster.reported.count("RegressionEnded") == 1


def test_whole_answers_with_tokens_are_not_watched_always() -> None:
    """Another hour's clients may ask for longer ones."""
    cluster = Whole(tokens=100)
    cluster.promoted()
    cluster.seconds = 0.3
    cluster.minutes(30)
    assert cluster.condition("Regressed").reason == "NoRecord"
    assert not load_records.only(cluster.status.baseline)


def test_a_spec_that_names_a_latency_is_watched_by_its_own_signal() -> None:
    cluster = Whole(latency=[{"signal": "e2e", "quantile": 0.95, "maxIncrease": "15%"}])
    cluster.promoted()
    cluster.minutes(10)
    assert cluster.condition("Regressed").reason == "NoRecord"


class Copied(Whole):
    """A cluster whose engines measure whole answers, and first tokens where they are texts; the canary gets copies."""

    def __init__(self, canary: float, texts: bool = False) -> None:
        super().__init__()
        self.spec["rollout"]["steps"] = [{"mirror": "50%", "hold": "5m"}, {"weight": 100, "hold": "10s"}]
        self.canary, self.texts = canary, texts

    def measure(self, engines: bool = True) -> None:
        super().measure(engines)
        own = [(self.status.stable, 10, 1.0)] if self.status.traffic else []
        if self.status.mirror is not None:
            own.append((self.status.mirror.revision, 5, self.canary))
        for revision, count, factor in own:
            times: dict[int, int] = {}
            for _ in range(count):
                bucket = bucket_of(0.1 * factor * self.source.lognormvariate(0, 0.3))
                times[bucket] = times.get(bucket, 0) + 1
            latency = {"e2e": times, "ttft": times if self.texts else {}}
            found = [Slice(f"pod-{revision}", self.now - TICK, TICK, revision, "", count, 0, latency=latency)]
            self.engine = [*(self.engine or ()), *found]


def test_a_mirror_of_embeddings_is_judged_by_whole_answers() -> None:
    """It waited for first tokens, which embeddings have none of, and held its step for ever."""
    for canary, phase in ((1.0, Phase.STEP), (3.0, Phase.ROLLED_BACK)):
        cluster = Copied(canary)
        cluster.serving()
        cluster.edit(7)
        cluster.until(lambda status: status.rollout.phase in (Phase.STEP, Phase.ROLLED_BACK))
        assert cluster.status.rollout.phase is phase
        verdict = cluster.status.rollout.verdict
        assert verdict is not None and (verdict.signal, verdict.source) == ("e2e p95", "Engine")


def test_a_mirror_of_texts_is_judged_by_first_tokens() -> None:
    cluster = Copied(3.0, texts=True)
    cluster.serving()
    cluster.edit(7)
    cluster.until(lambda status: bool(status.rejected))
    verdict = cluster.status.rejected[-1].verdict
    assert verdict is not None and verdict.signal == "ttft p95"
