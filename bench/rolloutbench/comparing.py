"""Ours and others' rules on the same traces: who rolls back what, and after how many canary requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from bench.rolloutbench import intervals, peers, traces
from bench.rolloutbench.parts import cells
from bench.rolloutbench.scenario import Scenario
from bench.rolloutbench.traces import SECONDS, Trace

OURS = "Pagefleet"
CELLS = ("identical/u0.3/g1", "identical/u0.8/g1", "cold/u0.3/g2", "waves/u0.3/g2", "errors3/u0.3/g2",
         "hang/u0.3/g2", "x3/u0.3/g2", "x2/u0.3/g2", "x1.5/u0.3/g2", "tail/u0.3/g2", "errors5/u0.3/g2")  # fmt: skip
ROLLOUTS = 200


@dataclass(frozen=True)
class Decision:
    """When a judge rolled a trace back, and the canary's requests from the onset to then; None: it did not."""

    judge: str
    at: float | None
    requests: int | None


def scenarios() -> list[Scenario]:
    return [cells([name])[0].scenario for name in CELLS]


def judged(job: tuple[Scenario, int]) -> list[Decision]:
    """Play a scenario with and without a baseline group, and let everybody judge; the work of a process."""
    scenario, seed = job
    decisions = []
    for own in (scenario, replace(scenario, baseline=True)):
        trace = traces.play(own, seed)
        if not own.baseline:
            decisions.append(decision(OURS, trace, trace.decided))
        known = peers.events(trace)
        decisions += [decision(name, trace, peers.decide(one, known, SECONDS)) for name, one in peers.judges(trace)]
    return decisions


def decision(judge: str, trace: Trace, at: float | None) -> Decision:
    """Count the canary's requests from the onset to a decision. One before the onset counts as none."""
    onset = trace.onset or 0.0
    if at is None or at < onset:
        return Decision(judge, None, None)
    return Decision(judge, at, sum(one.revision == "canary" and onset <= one.at <= at for one in trace.requests))


def rows(decisions: Sequence[Decision]) -> list[dict[str, object]]:
    """Sum up by judge: the share that was rolled back with its interval, and the median number of requests."""
    names = list(dict.fromkeys(one.judge for one in decisions))
    result: list[dict[str, object]] = []
    for name in names:
        own = [one for one in decisions if one.judge == name]
        fired = [one.requests for one in own if one.requests is not None]
        low, high = intervals.share(len(fired), len(own))
        row: dict[str, object] = {"judge": name, "rollouts": len(own), "rolledBack": len(fired) / len(own)}
        result.append({**row, "low": low, "high": high, "requests": median(fired) if fired else None})
    return result
