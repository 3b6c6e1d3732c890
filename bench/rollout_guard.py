"""The rollout guard on simulated traffic, beside the rules of others on the same traces.

    python bench/rollout_guard.py [PART ...] [--quick] [--check] [--plot docs/rollout_guard.png] [--processes N]

- 2,000 rollouts of identical revisions (half lognormal, half Pareto), half an hour at 10 requests/s, autocorrelated and
  drifting (bench/rolloutbench/trace.py): how many are rolled back;
- a canary whose p95 is 25 % worse, where 15 % is accepted, up to twelve hours: how many are rolled back, and after how
  many of its requests;
- four times as many long prompts on the canary, both revisions alike at each length; one request 1,000 times as slow;
- from the onset of a regression to the rollback, in requests and seconds, at 10 and 100 requests/s;
- the same rollouts by an engine's histogram instead of single requests (`edges`);
- the chance of a rollback by the size of the regression and the number of requests (`--plot`).

The time is virtual: the figures do not depend on the machine, nor on its other load. `--check` exits 1 when a target
is missed (false rollbacks <= 1 %, also for the prompt mix; detection >= 99 %; the outlier never decides).
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from rolloutbench.judges import Pagefleet, edged_judges, judges
from rolloutbench.trace import Piece, Traffic, pieces

SECONDS_TO_ACT = 4.0  # a slice is closed 2 s after its end, and the operator decides every 2 s
OURS = "Pagefleet"
FACTORS = (1.0, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.75, 2.0)
BUDGETS = (300, 1000, 3000, 10000)


@dataclass(frozen=True)
class Run:
    """`others`: judge the rest as well; `edges`: by histograms as well. `outlier`: one canary request in the middle is
    1,000 times as slow."""

    traffic: Traffic
    seed: int
    others: bool = True
    outlier: bool = False
    edges: bool = False


@dataclass(frozen=True)
class Fired:
    """The moment at which a judge rolled back: after so many canary requests and seconds."""

    requests: int
    seconds: float


def run(request: Run) -> dict[str, Fired | None]:
    """Play one trace to its end, or until our guard has fired where nobody else is judged."""
    chosen = judges(request.traffic) if request.others else edged_judges() if request.edges else {OURS: Pagefleet()}
    decisions: dict[str, Fired | None] = dict.fromkeys(chosen)
    requests = 0
    for index, piece in enumerate(_pieces(request)):
        now = (index + 1) * request.traffic.block
        requests += sum(values.size for values in piece.canary.values())
        for name, judge in chosen.items():
            if decisions[name] is None and judge.take(piece, now):
                decisions[name] = Fired(requests, now + SECONDS_TO_ACT)
        if all(decisions.values()):
            break
    return decisions


def _pieces(request: Run) -> Iterator[Piece]:
    middle = int(request.traffic.seconds / request.traffic.block / 2)
    for index, piece in enumerate(pieces(request.traffic, request.seed)):
        if request.outlier and index == middle:
            slow = np.append(piece.canary["s"], 1000 * 0.1)
            yield replace(piece, canary={**piece.canary, "s": slow})
        else:
            yield piece


class Bench:
    def __init__(self, processes: int) -> None:
        self._pool = multiprocessing.Pool(processes)
        self.missed: list[str] = []

    def play(self, runs: Iterable[Run]) -> list[dict[str, Fired | None]]:
        return self._pool.map(run, list(runs), chunksize=4)

    def table(self, title: str, results: Sequence[dict[str, Fired | None]]) -> dict[str, float]:
        """Print each judge's share of rollbacks and when; answer the shares."""
        print(f"\n{title} ({len(results)} rollouts)")
        shares = {}
        for name in results[0]:
            fired = [one for result in results if (one := result[name]) is not None]
            shares[name] = len(fired) / len(results)
            when = f", median after {median(one.requests for one in fired):,.0f} canary requests" if fired else ""
            print(f"  {name:<32} {shares[name]:>7.2%} rolled back{when}")
        return shares

    def expect(self, holds: bool, what: str) -> None:
        print(f"  {'ok' if holds else 'MISSED'}: {what}")
        if not holds:
            self.missed.append(what)


def false_rollbacks(bench: Bench, count: int) -> None:
    for noise in ("lognormal", "pareto"):
        traffic = Traffic(noise, seconds=1800)
        results = bench.play(Run(traffic, seed) for seed in range(count // 2))
        shares = bench.table(f"identical revisions, {noise}", results)
        bench.expect(shares[OURS] <= 0.01, "at most 1 % false rollbacks")


def detection(bench: Bench, count: int) -> None:
    for noise in ("lognormal", "pareto"):
        traffic = Traffic(noise, worse=1.25, seconds=12 * 3600)
        ours = bench.play(Run(traffic, seed, others=False) for seed in range(count))
        shares = bench.table(f"p95 25 % worse, 15 % accepted, {noise}, at most 12 h", ours)
        bench.expect(shares[OURS] >= 0.99, "at least 99 % detected")
        others = bench.play(Run(replace(traffic, seconds=3600), seed) for seed in range(count // 2))
        bench.table(f"the same, {noise}, at most 1 h", others)


def robustness(bench: Bench, count: int) -> None:
    traffic = Traffic(long_share=(0.1, 0.4), seconds=1800)
    shares = bench.table("only the mix of prompts shifts", bench.play(Run(traffic, seed) for seed in range(count)))
    bench.expect(shares[OURS] <= 0.01, "at most 1 % rolled back for the mix of prompts")
    outlier = bench.play(Run(Traffic(seconds=600), seed, others=False, outlier=True) for seed in range(count))
    without = bench.play(Run(Traffic(seconds=600), seed, others=False) for seed in range(count))
    bench.table("one request 1,000 times as slow", outlier)
    bench.expect(outlier == without, "the outlier changes no decision")


def onset(bench: Bench, count: int) -> None:
    print("\nfrom the onset of a regression to the rollback (lognormal; medians, and the slowest of 100)")
    for rate in (10.0, 100.0):
        for share in (0.1, 0.5):
            for worse in (1.5, 2.0, 3.0):
                traffic = Traffic(rate=rate, share=share, worse=worse, seconds=3600)
                rollbacks = [r[OURS] for r in bench.play(Run(traffic, seed, others=False) for seed in range(count))]
                fired = sorted((one for one in rollbacks if one is not None), key=lambda one: one.seconds)
                slow = fired[min(len(fired) - 1, int(0.99 * len(fired)))]
                print(
                    f"  {rate:>4.0f} requests/s, {share:>4.0%} on the canary, {worse:g} x: {len(fired)}/{count} after "
                    f"{median(one.requests for one in fired):,.0f} requests, "
                    f"{median(one.seconds for one in fired):.0f} s (99 %: {slow.requests:,}, {slow.seconds:.0f} s)"
                )


def edges(bench: Bench, count: int) -> None:
    for noise in ("lognormal", "pareto"):
        for worse, seconds in ((1.0, 1800.0), (1.25, 7200.0), (3.0, 1800.0)):
            traffic = Traffic(noise, rate=20.0, worse=worse, seconds=seconds)
            results = bench.play(Run(traffic, seed, others=False, edges=True) for seed in range(count))
            shares = bench.table(f"by histograms: p95 x {worse:g}, {noise}, {seconds / 3600:g} h", results)
            if worse == 1.0:
                bench.expect(max(shares.values()) <= 0.01, "at most 1 % false rollbacks, wherever the edges are")


def power(bench: Bench, count: int) -> dict[str, dict[float, list[float]]]:
    """Share of rollbacks within each budget of canary requests, by noise and size of the regression."""
    curves: dict[str, dict[float, list[float]]] = {}
    for noise in ("lognormal", "pareto"):
        print(f"\nshare rolled back within {', '.join(f'{n:,}' for n in BUDGETS)} canary requests, {noise}")
        for worse in FACTORS:
            traffic = Traffic(noise, worse=worse, seconds=BUDGETS[-1] / 5)
            rollbacks = [r[OURS] for r in bench.play(Run(traffic, seed, others=False) for seed in range(count))]
            shares = [sum(one is not None and one.requests <= n for one in rollbacks) / count for n in BUDGETS]
            curves.setdefault(noise, {})[worse] = shares
            print(f"  {worse:>5.2f} x: " + "  ".join(f"{share:>6.1%}" for share in shares))
    return curves


def plot(curves: dict[str, dict[float, list[float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, (noise, by_factor) in zip(axes, curves.items(), strict=True):
        for index, budget in enumerate(BUDGETS):
            points = [100 * shares[index] for shares in by_factor.values()]
            axis.plot([100 * (factor - 1) for factor in by_factor], points, marker="o", label=f"{budget:,} requests")
        axis.axvline(15, color="grey", linestyle=":", label="maxIncrease")
        axis.set(title=noise, xlabel="p95 of the canary above the stable's, %")
    axes[0].set_ylabel("rolled back, %")
    axes[1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


PARTS: dict[str, tuple[Callable[[Bench, int], None], int]] = {
    "false": (false_rollbacks, 2000),
    "robustness": (robustness, 400),
    "detection": (detection, 200),
    "onset": (onset, 100),
    "edges": (edges, 100),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="The rollout guard, simulated.")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all when omitted")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the rollouts, no power curves")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--plot", type=Path, help="write the power curves as a picture")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    part, began = (20 if arguments.quick else 1), time.monotonic()
    bench = Bench(arguments.processes)
    for name, (play, count) in PARTS.items():
        if name in (arguments.parts or PARTS):
            play(bench, count // part)
    if not arguments.quick and not arguments.parts:
        curves = power(bench, 40)
        if arguments.plot:
            plot(curves, arguments.plot)
    print(f"\n{time.monotonic() - began:.0f} s on {arguments.processes} processes")
    for what in bench.missed:
        print(f"missed: {what}")
    return int(arguments.check and bool(bench.missed))


if __name__ == "__main__":
    raise SystemExit(main())
