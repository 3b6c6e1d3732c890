"""The simulator's prediction held against measured runs: the same requests through a real engine, and through its model.

    python bench/simulator_reality.py [--quick] [--check] [--json FILE]

The engine is ours on this machine's CPU, a process behind HTTP, with int8 weights and without draft tokens, which the simulator does
not know. Its profile is fitted to scrapes of its own `/metrics` during calibration runs, as for any running engine
(pagefleet_simulator.fleet.fit), and nothing else of it is told to the simulator. Then Poisson arrivals at fractions of its saturation are
sent. No prompt is sent twice, so the engine's prefix cache answers nothing. The simulator gets the requests' times and lengths and predicts
each request's time to the first token and time per further token.

One replica is measured, so scaling and replica-hours are not. A machine that does anything else makes steps longer than the profile
says: a run that others disturbed is marked, and counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from cpubench import client, float_model, report, runs, workload
from cpubench.measures import Answer, makespan, percentile
from cpubench.scraping import scraping
from cpubench.servers import Running, running
from cpubench.shapes import LOADS, Shape
from cpubench.systems import MODEL, SEQUENCES, everything

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model.checkpoint.source import resolve
from pagefleet_engine.model.text import tokenizer
from pagefleet_simulator.fleet.fit import Fit, fit, scrapes
from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.profile import Profile
from pagefleet_simulator.fleet.request import Arrival
from pagefleet_simulator.fleet.view import Bounds, Decision, View
from pagefleet_simulator.results.outcome import Latencies
from pagefleet_simulator.simulation import Setting, Simulation

SYSTEM = "pagefleet-int8-nospec"
FRACTIONS, SEEDS, REQUESTS = (0.3, 0.5, 0.7, 0.85), range(5), 44
QUICK_FRACTIONS, QUICK_SEEDS, QUICK_REQUESTS = (0.3, 0.7), range(1), 16
CALIBRATION = (0.2, 0.5, 0.8)  # fractions of the saturation
PROMPTS = 100  # the seed of all prompts: parts of one seed share no prompt
FIRST_PART = 1 + len(CALIBRATION)
PAGE, TIMEOUT = 16, 1800.0
MAX_ERROR = 0.08  # of the p95 to the first token, the median over the runs


@dataclass(frozen=True)
class One:
    """One replica, whatever happens."""

    name: str = "one"
    period: float = 60.0
    removal: Removal = Removal.NEWEST

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None, bounds: Bounds) -> Decision:
        return Decision(1, None)


@dataclass(frozen=True)
class Quantiles:
    """Seconds: to the first token, and of each further token in the mean of an answer."""

    ttft_p50: float
    ttft_p95: float
    tpot_p50: float
    tpot_p95: float


@dataclass(frozen=True)
class Compared:
    """`others_cpu`: what the rest of the machine used meanwhile (100 is one core busy)."""

    fraction: float
    seed: int
    requests_per_s: float
    measured: Quantiles
    predicted: Quantiles
    others_cpu: float

    def error(self, name: str) -> float:
        return abs(getattr(self.predicted, name) / getattr(self.measured, name) - 1)


def main() -> int:
    parser = argparse.ArgumentParser(description="The simulator beside a real engine.")
    parser.add_argument("--quick", action="store_true", help="two rates, 16 requests each")
    parser.add_argument("--check", action="store_true", help="exit 1 when the target is missed")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    quick = arguments.quick
    fractions, seeds, count = (QUICK_FRACTIONS, QUICK_SEEDS, QUICK_REQUESTS) if quick else (FRACTIONS, SEEDS, REQUESTS)
    text = tokenizer.load(resolve(float_model.URI)).encode(
        Path(__file__).with_name("cpubench").joinpath("text.txt").read_text(), add_special_tokens=False
    )
    log = Path(tempfile.mkdtemp(prefix="pagefleet-bench-")) / "engine.log"
    with running(everything()[SYSTEM], log) as served:
        runs.warm_up(served)
        fitted, most = calibrated(served, text, count)
        print(
            f"saturation {most:.2f} requests/s; {fitted.step}, mean error {fitted.error:.1%} of {fitted.samples} scrapes"
        )
        profile = described(fitted)
        compared = []
        for part, (seed, fraction) in enumerate(product(seeds, fractions), FIRST_PART):
            compared.append(compare(served, profile, workload.make(text, count, PROMPTS, part), seed, fraction, most))
            show(compared[-1])
    return verdict(compared, arguments.check, arguments.json)


def calibrated(served: Running, text: Sequence[int], count: int) -> tuple[Fit, float]:
    """Return the fitted step time, and the requests a second with all sent at once."""
    with scraping(f"{served.url}/metrics") as pages:
        answers = drive(served, workload.make(text, count, PROMPTS))
        most = count / makespan(answers)
        for part, fraction in enumerate(CALIBRATION, 1):
            drive(served, workload.spread(workload.make(text, count, PROMPTS, part), fraction * most, part))
    return fit(scrapes(pages, PAGE)), most


def drive(served: Running, requests: Sequence[workload.Request]) -> list[Answer]:
    return asyncio.run(client.drive(served.url, MODEL, requests, TIMEOUT))


def described(fitted: Fit) -> Profile:
    """Return the engine as it is started. A prompt of this load is no longer than a step's budget, and is computed whole."""
    budget = EngineConfig(model=MODEL).max_num_batched_tokens
    return Profile("measured", fitted.step, LOADS[Shape.SMOLLM2].kv_tokens // PAGE, PAGE, budget, budget, SEQUENCES)


def compare(
    served: Running,
    profile: Profile,
    prompts: Sequence[workload.Request],
    seed: int,
    fraction: float,
    most: float,
) -> Compared:
    rate = fraction * most
    requests = workload.spread(prompts, rate, seed)
    busy = runs.Others(served)
    answers = drive(served, requests)
    first = [answer.times[0] - answer.sent for answer in answers]
    each = [
        (answer.times[-1] - answer.times[0]) / (answer.output_tokens - 1)
        for answer in answers
        if answer.output_tokens > 1
    ]
    return Compared(fraction, seed, rate, quantiles(first, each), predicted(profile, requests), busy.share())


def predicted(profile: Profile, requests: Sequence[workload.Request]) -> Quantiles:
    arrivals = [Arrival(request.at, len(request.prompt), request.output) for request in requests]
    setting = Setting(profile, Bounds(1, 1), prefix_caching=False)
    found: Latencies = Simulation(setting, One(), arrivals, requests[-1].at + 1.0).run().latencies
    return quantiles(list(found.ttft), list(found.tpot))


def quantiles(first: Sequence[float], each: Sequence[float]) -> Quantiles:
    return Quantiles(*(percentile(values, share) for values in (first, each) for share in (50, 95)))


def show(one: Compared) -> None:
    pairs = ", ".join(
        f"{name} {1000 * getattr(one.measured, name):.0f} ms (predicted {1000 * getattr(one.predicted, name):.0f})"
        for name in asdict(one.measured)
    )
    disturbed = f"; others used {one.others_cpu:.0f} % of a core" if one.others_cpu > runs.QUIET else ""
    print(f"{one.fraction:.0%} of saturation, seed {one.seed}: {pairs}{disturbed}", flush=True)


def verdict(compared: Sequence[Compared], check: bool, path: Path | None) -> int:
    errors = {name: median(one.error(name) for one in compared) for name in asdict(compared[0].measured)}
    for name, error in errors.items():
        print(f"median error of {name} over {len(compared)} runs: {error:.1%}")
    missed = errors["ttft_p95"] > MAX_ERROR
    print(f"{'MISSED' if missed else 'met'}: {errors['ttft_p95']:.1%} of ttft_p95 (<= {MAX_ERROR:.0%})")
    if path:
        figures: dict[str, Any] = {
            "machine": report.machine(),
            "errors": errors,
            "runs": [asdict(one) for one in compared],
        }
        path.write_text(json.dumps(figures, indent=1) + "\n")
    return int(check and missed)


if __name__ == "__main__":
    raise SystemExit(main())
